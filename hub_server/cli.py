"""`vf-hub`: the operator's command."""

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from hub_server.accounts.authorisation import Action
from hub_server.errors import HubFailure, NotFound, SettingsError, Unavailable
from hub_server.private_files import keep_private, make_folder, tighten
from hub_server.process import configure_logging, is_prepared, leave, utc_now
from hub_server.settings import Settings, environment_of, settings_from_environment

if TYPE_CHECKING:
    from hub_server.database import Database

# Commands import SQLAlchemy inside their functions. `serve` replaces this process by another program, and a hub
# that restarts after a crash should not wait twice for the same imports.

T = TypeVar("T")
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="A registry for environments. Settings come from VF_HUB_* variables; see docs/hub.md.",
)
user_app = typer.Typer(no_args_is_help=True, help="People.")
token_app = typer.Typer(no_args_is_help=True, help="API tokens.")
app.add_typer(user_app, name="user")
app.add_typer(token_app, name="token")

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of the hub's data.")]


@app.command()
def serve(
    data_dir: DataDir = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    workers: Annotated[int | None, typer.Option(help="Number of worker processes.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Public address of the hub.")] = None,
    migrate: Annotated[
        bool, typer.Option(help="Update the tables of the database before serving.")
    ] = True,
) -> None:
    """Serve the hub. If the hub has no users, print the token that creates the first administrator."""
    settings = settings_from_environment(
        data_dir=data_dir, host=host, port=port, workers=workers, base_url=base_url
    )
    configure_logging()
    _check_address(settings)
    tighten(settings.data_dir, settings.sqlite_path)
    setup_token = None
    if not is_prepared(settings):
        setup_token = _run(settings, lambda database: _prepare(settings, database, migrate))
    address = settings.base_url or f"http://{settings.host}:{settings.port}"
    if setup_token is not None:
        typer.echo(
            "This hub has no users. Create the first administrator with this token, which works once:\n\n"
            f"  curl {address}/api/v1/setup -H 'content-type: application/json' -d"
            f' \'{{"token": "{setup_token}", "username": "NAME", "password": "PASSWORD"}}\'\n'
        )
    typer.echo(f"Serving {address} from {settings.data_dir}")
    sys.stdout.flush()
    # A new interpreter replaces this one, so that the modules for the preparation do not stay in memory.
    arguments = [sys.executable, "-m", "hub_server.server"]
    os.execve(sys.executable, arguments, {**os.environ, **environment_of(settings)})


def _check_address(settings: Settings) -> None:
    """Raise SettingsError at once when the address cannot be listened on, before the preparation."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((settings.host, settings.port))
    except OSError as error:
        raise SettingsError(
            f"Cannot listen on {settings.host} port {settings.port}: {error.strerror or error}. "
            "Choose another address with --host and --port."
        ) from error


async def _prepare(settings: Settings, database: "Database", migrate: bool) -> str | None:
    from hub_server.logins.service import new_setup_token
    from hub_server.migrations import check_current, upgrade
    from hub_server.storage.service import open_store

    make_folder(settings.data_dir)
    make_folder(settings.staging_dir)
    await (upgrade(database.engine) if migrate else check_current(database.engine))
    await open_store(settings).check()
    async with database.write() as session:
        return await new_setup_token(session)


@app.command()
def migrate(
    data_dir: DataDir = None,
    sql: Annotated[
        bool, typer.Option(help="Print the SQL statements (PostgreSQL) and change nothing.")
    ] = False,
) -> None:
    """Update the tables of the database. Make a backup first."""
    from hub_server.migrations import offline_sql, upgrade

    if sql:
        typer.echo(offline_sql())
        return
    settings = settings_from_environment(data_dir=data_dir)
    make_folder(settings.data_dir)
    _run(settings, lambda database: upgrade(database.engine))
    typer.echo("The database is up to date.")


@app.command()
def backup(into: Path, data_dir: DataDir = None) -> None:
    """Copy the whole hub to an empty folder. The hub may serve meanwhile."""
    from hub_server.operations import backup as maintenance

    settings = _settings_of_a_hub(data_dir)
    count = _call(lambda: maintenance.backup(settings, into))
    typer.echo(f"Saved the database and {count} blobs to {into}.")


@app.command()
def restore(source: Path, data_dir: DataDir = None) -> None:
    """Fill an empty hub from a backup, then check every file."""
    from hub_server.operations import backup as maintenance

    settings = settings_from_environment(data_dir=data_dir)
    count = _call(lambda: maintenance.restore(settings, source))
    typer.echo(f"Restored the database and {count} blobs from {source}.")
    fsck(data_dir=data_dir, quick=False)


@app.command()
def fsck(
    data_dir: DataDir = None,
    quick: Annotated[bool, typer.Option(help="Compare only the sizes of files.")] = False,
) -> None:
    """Check that every published file is stored and unchanged. The exit code is 1 if a file is not."""
    from hub_server.operations import backup as maintenance
    from hub_server.storage.service import open_store

    settings = _settings_of_a_hub(data_dir)
    report = _run(
        settings,
        lambda database: maintenance.fsck(database, open_store(settings), read_bytes=not quick),
    )
    for problem in report.problems:
        typer.echo(f"{problem.kind}: {problem.what}")
    typer.echo(f"{report.files} files checked, {len(report.problems)} problems.")
    if report.problems:
        raise typer.Exit(1)


@app.command()
def gc(data_dir: DataDir = None) -> None:
    """Remove unused blobs, interrupted uploads, ended tokens and deleted evaluations. The hub may serve meanwhile."""
    from hub_server.operations import backup as maintenance
    from hub_server.storage.service import open_store

    settings = _settings_of_a_hub(data_dir)
    report = _run(
        settings, lambda database: maintenance.gc(settings, database, open_store(settings))
    )
    typer.echo(
        f"Removed {report.blobs} blobs ({report.bytes} bytes), {report.staged} files in transit,"
        f" {report.uploads} reservations, {report.tokens} ended tokens, and the rows of"
        f" {report.evaluations} deleted evaluations."
    )


@app.command()
def export(into: Path, data_dir: DataDir = None) -> None:
    """Write the public environments as a static index, for sites without a network."""
    from hub_server.operations import backup as maintenance

    settings = _settings_of_a_hub(data_dir)
    count = _call(lambda: maintenance.export(settings, into))
    typer.echo(f"Exported {count} environments to {into}.")


@app.command("publish-library")
def publish_the_library(data_dir: DataDir = None) -> None:
    """Publish the library that runs this command as verifiers/verifiers, so that environments are installed with it.

    Package indexes have a different package of that name. The command changes nothing until the library changes.
    """
    from hub_server.publishing.library import publish_library
    from hub_server.storage.service import open_store

    settings = _settings_of_a_hub(data_dir)
    done = _run(
        settings, lambda database: publish_library(settings, database, open_store(settings))
    )
    address = settings.base_url.rstrip("/") or f"http://{settings.host}:{settings.port}"
    typer.echo(f"{'published' if done.is_new else 'unchanged'}  verifiers/verifiers {done.version}")
    typer.echo(f"install    pip install 'verifiers @ {address}/{done.path}'")


@user_app.command("add")
def add_user(
    name: str,
    password: Annotated[str, typer.Option(prompt=True, hide_input=True, envvar="VF_HUB_PASSWORD")],
    email: Annotated[str | None, typer.Option()] = None,
    admin: Annotated[bool, typer.Option(help="Create an administrator.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Create an account."""
    from hub_server.accounts import service as accounts

    async def make(database: "Database") -> None:
        async with database.write() as session:
            await accounts.create_user(
                session, name, password=password, email=email, is_admin=admin
            )

    _run(_settings_of_a_hub(data_dir), make)
    typer.echo(f"Created the account {name}.")


@user_app.command("list")
def list_users(data_dir: DataDir = None) -> None:
    """List all accounts."""
    from hub_server.accounts import service as accounts

    async def rows(database: "Database") -> list[str]:
        async with database.read() as session:
            return [
                f"{slug}\t{'admin' if user.is_admin else 'user'}\t{user.email or ''}"
                f"\t{'disabled' if user.disabled_at else ''}".rstrip()
                for user, slug in await accounts.users(session)
            ]

    for row in _run(_settings_of_a_hub(data_dir), rows):
        typer.echo(row)


@user_app.command("password")
def set_password(
    name: str,
    password: Annotated[str, typer.Option(prompt=True, hide_input=True, envvar="VF_HUB_PASSWORD")],
    revoke_tokens: Annotated[
        bool, typer.Option("--revoke-tokens", help="Also revoke all API tokens of the account.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Replace a password and end all sessions of the account. API tokens still work."""
    from hub_server.accounts import service as accounts

    async def change(database: "Database") -> int:
        async with database.write() as session:
            return await accounts.set_password(session, name, password, revoke_tokens=revoke_tokens)

    working = _run(_settings_of_a_hub(data_dir), change)
    typer.echo(f"Changed the password of {name} and ended all open sessions.")
    if working:
        typer.echo(
            f"{working} API tokens of {name} still work. --revoke-tokens revokes them with the password."
        )


@user_app.command("disable")
def disable(
    name: str,
    undo: Annotated[bool, typer.Option(help="Enable the account again.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Disable an account and all its tokens."""
    from hub_server.accounts import service as accounts

    async def change(database: "Database") -> None:
        async with database.write() as session:
            await accounts.set_disabled(session, name, disabled=not undo)

    _run(_settings_of_a_hub(data_dir), change)
    typer.echo(f"{name} is {'enabled' if undo else 'disabled'}.")


@token_app.command("new")
def new_token(
    user: str,
    name: Annotated[str, typer.Option(help="Purpose of the token.")] = "operator",
    action: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(Action)}. Repeatable. (default: all but admin)"),
    ] = None,
    environment: Annotated[
        list[str] | None,
        typer.Option(help="owner/name, where * matches any text. Repeatable. (default: *)"),
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0, help="Days until the token expires. (default: never)")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Create an API token for an account and print it."""
    if days == 0:
        raise typer.BadParameter("A token of 0 days would already be expired.", param_hint="--days")
    from hub_server.accounts import service as accounts

    async def make(database: "Database") -> str:
        async with database.write() as session:
            found = await accounts.user_by_login(session, user)
            if found is None:
                raise NotFound(f"There is no user {user!r}.")
            new = await accounts.issue_token(
                session,
                found[0].id,
                name=name,
                actions=action or list(accounts.DEFAULT_ACTIONS),
                environments=environment or ["*"],
                expires_at=utc_now() + timedelta(days=days) if days is not None else None,
            )
            return new.text

    typer.echo(_run(_settings_of_a_hub(data_dir), make))


@token_app.command("revoke")
def revoke_token(token: str, data_dir: DataDir = None) -> None:
    """Revoke a token, given its text."""
    from hub_server.accounts import service as accounts

    async def end(database: "Database") -> bool:
        async with database.write() as session:
            return await accounts.revoke_leaked(session, token)

    known = _run(_settings_of_a_hub(data_dir), end)
    typer.echo("Revoked." if known else "This is not a working token of this hub.")
    if not known:
        raise typer.Exit(1)


def _settings_of_a_hub(data_dir: Path | None) -> Settings:
    """Return the settings of an existing hub. Raises SettingsError where SQLite would create an empty one."""
    settings = settings_from_environment(data_dir=data_dir)
    path = settings.sqlite_path
    if path is not None and not path.is_file():
        raise SettingsError(
            f"There is no hub in {settings.data_dir}: {path.name} is missing. Name the hub's folder with --data-dir or"
            " VF_HUB_DATA_DIR, or its database with VF_HUB_DATABASE_URL."
        )
    return settings


def _run(settings: Settings, work: "Callable[[Database], Awaitable[T]]") -> T:
    from hub_server.database import Database

    async def with_database() -> T:
        database = Database(settings.sqlalchemy_url)
        try:
            return await work(database)
        finally:
            await database.aclose()

    return _call(with_database)


def _call(work: Callable[[], Awaitable[T]]) -> T:
    async def awaited() -> T:
        return await work()

    return asyncio.run(awaited())


def main() -> NoReturn:
    """Run the command. An error is one line: exit code 1 for a missing, broken or unreachable thing, else 2."""
    keep_private()
    try:
        app()
    except SystemExit as ended:  # Typer also ends successful commands in this way
        leave(ended.code if isinstance(ended.code, int) else 1 if ended.code else 0)
    except (NotFound, Unavailable) as error:
        _fail(error.detail, 1)
    except HubFailure as error:
        _fail(error.detail, 2)
    except ModuleNotFoundError as error:
        _fail(_what_to_install(error), 1)
    except Exception as error:
        # SQLAlchemy is not imported only to name its errors. The first line of an error is the cause; the others repeat
        # the statement with its values.
        if not isinstance(error, OSError) and not type(error).__module__.startswith("sqlalchemy."):
            raise
        first = (str(error).splitlines() or [type(error).__name__])[0]
        _fail(f"{first}. Check that the database is reachable and the folder is writable.", 1)
    leave(0)


def _what_to_install(error: ModuleNotFoundError) -> str:
    """Return the command that installs the hub's further packages. Raises the error for a module of this library."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "hub_server", "verifiers", "vf_cli"):
        raise error
    needed = [
        requirement.partition(";")[0].strip()
        for requirement in requires("verifiers") or []
        if 'extra == "hub"' in requirement or "extra == 'hub'" in requirement
    ]
    listed = " ".join(f"'{requirement}'" for requirement in needed)
    return f"The hub needs packages that are not installed ({package} is missing): pip install {listed}"


def _fail(text: str, code: int) -> NoReturn:
    typer.echo(f"vf-hub: {text}", err=True)
    leave(code)


if __name__ == "__main__":
    main()
