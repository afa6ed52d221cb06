"""`vf-install`: install an environment into the Python that runs this command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vf_cli import output

app = typer.Typer(add_completion=False)


@app.command()
def install(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="A name in --path, a folder, a wheel, or owner/name@version on a hub.",
        ),
    ],
    path: Annotated[
        str, typer.Option("--path", "-p", help="Folder of local environments.")
    ] = "./environments",
    from_repo: Annotated[
        bool,
        typer.Option(
            "--from-repo", "-r", help="Install environments/ENV of the git repository --repo."
        ),
    ] = False,
    branch: Annotated[
        str, typer.Option("--branch", "-b", help="Branch or tag to install with --from-repo.")
    ] = "main",
    repo: Annotated[
        str | None,
        typer.Option(
            "--repo",
            envvar="VERIFIERS_ENVIRONMENTS_REPO",
            help="URL of the git repository for --from-repo.",
        ),
    ] = None,
) -> int:
    """Install an environment into the Python that runs this command, with uv if available, else with pip.

    Folders are installed editable: changes in them apply at once.

    \b
    vf-install my-env                 ./environments/my_env
    vf-install my-env -p ~/envs       ~/envs/my_env
    vf-install ./my_env               this folder
    vf-install dist/my_env-0.1.0-py3-none-any.whl
    vf-install owner/my-env@1.2       from your hub (see `prime config`), by exact address and hash
    vf-install my-env -r --repo https://host/owner/repository
    """
    from contextlib import nullcontext

    from verifiers.hub.config import hub_settings
    from verifiers.hub.installation import HubSource
    from verifiers.packages.install import install as install_environment
    from verifiers.packages.published import is_hub_env, parse_hub_id
    from vf_cli.command import configure_logging
    from vf_cli.interrupts import run

    configure_logging(is_verbose=False)
    from_hub = (
        is_hub_env(env) and not from_repo and not env.endswith(".whl") and not Path(env).is_dir()
    )
    if from_hub:
        parse_hub_id(env)
    hub = HubSource(hub_settings(), run=run) if from_hub else nullcontext(None)
    with output.stderr().status(f"installing {env} …"), hub as source:
        name = install_environment(
            env, path, from_repo=from_repo, repo=repo, branch=branch, source=source
        )
    output.show(f"installed  {name}")
    output.show(f"next       vf-validate {name}, then vf-eval {name} -m MODEL")
    return 0
