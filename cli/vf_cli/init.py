"""`vf-init`: create a new environment from a template."""

from __future__ import annotations

from typing import Annotated

import typer

from vf_cli import output

app = typer.Typer(add_completion=False)


@app.command()
def init(
    env: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the new environment, e.g. my-env.")
    ],
    path: Annotated[
        str,
        typer.Option(
            "--path", "-p", help="Folder of environments; the project is created inside it."
        ),
    ] = "./environments",
    template: Annotated[
        str,
        typer.Option(
            "--template",
            "-t",
            help="Template: single-turn, multi-turn, tool, judge or group.",
        ),
    ] = "single-turn",
    multi_file: Annotated[
        bool,
        typer.Option("--multi-file", help="Create a package instead of a single file."),
    ] = False,
    rewrite_readme: Annotated[
        bool, typer.Option("--rewrite-readme", help="Overwrite README.md.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite existing files; by default they are kept.")
    ] = False,
    openenv: Annotated[
        bool, typer.Option("--openenv", help="Not supported; prints an error.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Create a new environment: code, test, README and pyproject.toml that work at once.

    Existing files are kept, so the command can be repeated.
    """
    from verifiers.errors import ConfigError
    from verifiers.packages.scaffold import create_environment

    if openenv:
        raise ConfigError("OpenEnv projects (--openenv) are not supported; leave the option out.")
    made = create_environment(
        env,
        path,
        template=template,
        multi_file=multi_file,
        rewrite_readme=rewrite_readme,
        force=force,
    )
    env_id = made.folder.name.replace("_", "-")
    if as_json:
        written, kept = [str(file) for file in made.written], [str(file) for file in made.kept]
        output.show_json(
            {"env_id": env_id, "folder": str(made.folder), "written": written, "kept": kept}
        )
        return 0
    for file in made.written:
        output.show(f"wrote  {file}")
    for file in made.kept:
        output.show(f"kept   {file}  (--force overwrites it)")
    output.show(
        f"next   vf-install {env_id}{'' if path == './environments' else f' -p {path}'} && vf-validate {env_id}"
    )
    return 0
