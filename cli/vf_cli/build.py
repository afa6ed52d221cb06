"""`vf-build`: build an environment into a wheel and a source archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vf_cli import output

app = typer.Typer(add_completion=False)


@app.command()
def build(
    env: Annotated[
        str | None,
        typer.Argument(
            metavar="[ENV]",
            help="Environment to build: a folder of --path; without it --path itself.",
        ),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(
            "--path",
            "-p",
            help="Folder of environments (default: ./environments), or the project itself without ENV.",
        ),
    ] = None,
    out_dir: Annotated[
        str | None,
        typer.Option("--out-dir", "-o", help="Output folder. (default: dist/ in the project)"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Build an environment into dist/: a wheel and a source archive, with the checks that a hub makes.

    The wheel must define load_environment in the module with the project's name. (In verifiers 0.1.14 this command
    built Docker images for OpenEnv projects; names and options are the same, images are not built.)
    """
    from verifiers.packages.build import build_environment

    folder = Path(path or ("./environments" if env else "."))
    if env is not None:
        given = Path(env)
        is_project = given.is_dir() and (given / "pyproject.toml").is_file() and path is None
        folder = given if is_project else folder / env.replace("-", "_")
    with output.stderr().status(f"building {folder} …"):
        built = build_environment(folder, out_dir)
    if as_json:
        output.show_json(
            {
                "name": built.manifest.name,
                "version": built.manifest.version,
                "module": built.module,
                "wheel": {**built.wheel._asdict(), "path": str(built.wheel.path)},
                "sdist": {**built.sdist._asdict(), "path": str(built.sdist.path)},
            }
        )
        return 0
    output.show(
        f"{built.manifest.name} {built.manifest.version}   load_environment is in {built.module}"
    )
    for kind, file in (("wheel", built.wheel), ("sdist", built.sdist)):
        output.show(f"{kind}  {_shown(file.path)}  {file.size_bytes:,} bytes  sha256 {file.sha256}")
    output.show(f"next   vf-install {_shown(built.wheel.path)}")
    return 0


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
