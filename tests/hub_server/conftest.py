"""A hub for each test, on SQLite and a folder or on PostgreSQL and S3; wheels; people."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import httpx
import pytest

from hub_server import cli
from hub_server.accounts import service as accounts
from hub_server.accounts.authorisation import Action
from hub_server.app import create_app
from hub_server.database import Database
from hub_server.migrations import upgrade
from hub_server.settings import Settings

ALL_ACTIONS = [action.value for action in Action]
BOTH_GROUNDS_ALWAYS = {
    "test_publish_and_index.py",
    "test_lifecycle.py",
    "test_uv_installs_from_an_owners_and_an_environments_index",
}
"""Files and tests that run on PostgreSQL and S3 in the fast suite too; the others do in the long one."""


HERE = Path(__file__).parent


def _load(file: Path) -> ModuleType:
    """A helper module: the folders of the tests are no packages."""
    spec = util.spec_from_file_location(f"hub_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


processes = _load(HERE / "processes.py")
wheels = _load(HERE.parent / "verifiers" / "packages" / "wheels.py")
Wheel, source_archive, sha256_of = wheels.Wheel, wheels.source_archive, wheels.sha256_of
LiveHub, free_port, wait_for_port = processes.LiveHub, processes.free_port, processes.wait_for_port
start_hub, stop_hub, served_hub = processes.start_hub, processes.stop_hub, processes.served_hub


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        here = HERE in item.path.parents
        known_as = {item.path.name, getattr(item, "originalname", item.name)}
        if here and "postgresql" in item.name and not known_as & BOTH_GROUNDS_ALWAYS:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def wheel() -> type[Wheel]:
    return Wheel


@pytest.fixture
def make_source() -> Callable[..., bytes]:
    return source_archive


# --- a hub inside the test --------------------------------------------------------------------


@contextlib.asynccontextmanager
async def running(app: Any) -> AsyncIterator[None]:
    """Run an application's lifespan around the block."""
    inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    outbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    task = asyncio.create_task(
        app({"type": "lifespan", "asgi": {"version": "3.0"}}, inbox.get, outbox.put)
    )
    await inbox.put({"type": "lifespan.startup"})
    started = await outbox.get()
    assert started["type"] == "lifespan.startup.complete", started
    try:
        yield
    finally:
        await inbox.put({"type": "lifespan.shutdown"})
        await outbox.get()
        await task


@dataclass
class Person:
    """Somebody with a token; `http` sends it."""

    slug: str
    id: str
    token: str
    http: httpx.AsyncClient

    async def upload(self, wheel: Wheel, owner: str | None = None, **form: str) -> httpx.Response:
        """The upload form, as twine sends it."""
        content = wheel.bytes()
        fields = {":action": "file_upload", "name": wheel.name, "version": wheel.version}
        fields |= {"filetype": "bdist_wheel", "sha256_digest": sha256_of(content), **form}
        address = f"/{owner or self.slug}/legacy/"
        return await self.http.post(
            address, data=fields, files={"content": (wheel.filename, content)}
        )

    async def push(
        self, wheel: Wheel, source: bytes | None = None, **resolve: str
    ) -> tuple[httpx.Response, dict[str, Any]]:
        """The whole sequence of `prime env push`; the last answer, and what the steps gave."""
        body, archive = wheel.bytes(), source or source_archive()
        answer = await self.http.post(
            "/api/v1/environmentshub/resolve", json={"name": wheel.name, **resolve}
        )
        if answer.status_code != 200:
            return answer, {}
        environment_id = answer.json()["data"]["id"]
        base = f"/api/v1/environmentshub/{environment_id}"
        common = {
            "content_hash": sha256_of(archive),
            "semantic_version": wheel.version,
            "metadata": {"tags": ["train"], "description": "as the client says"},
        }
        steps: dict[str, Any] = {"environment_id": environment_id}
        plural = {"wheel": "wheels", "version": "versions"}
        for kind, filename, content in (
            ("wheel", wheel.filename, body),
            ("version", f"{wheel.name}-{wheel.version}-00.tar.gz", archive),
        ):
            declared = {"filename": filename, "sha256": sha256_of(content), **common}
            answer = await self.http.post(f"{base}/{plural[kind]}", json=declared)
            if answer.status_code != 200:
                return answer, steps
            data = answer.json()["data"]
            steps[kind] = data
            async with httpx.AsyncClient(transport=_transport_for(data["upload_url"], self)) as raw:
                put = await raw.put(data["upload_url"], content=content)
            if put.status_code // 100 != 2:
                return put, steps
            finalize = f"{base}/{plural[kind]}/{data[f'{kind}_id']}/finalize"
            answer = await self.http.post(finalize)
            if answer.status_code != 200:
                return answer, steps
        return answer, steps


def _transport_for(address: str, person: Person) -> httpx.AsyncBaseTransport | None:
    """The hub's own application for its own addresses; the network for S3's."""
    host = str(person.http.base_url.host)
    if address.startswith("http://") and httpx.URL(address).host == host:
        return person.http._transport
    return None


@dataclass
class Hub:
    """A hub and the people on it."""

    settings: Settings
    app: Any
    http: httpx.AsyncClient
    database: Database
    stack: contextlib.AsyncExitStack

    async def person(
        self,
        slug: str,
        *,
        admin: bool = False,
        actions: list[str] | None = None,
        environments: list[str] | None = None,
    ) -> Person:
        async with self.database.write() as session:
            found = await accounts.user_by_login(session, slug)
            user = found[0] if found else await accounts.create_user(session, slug, is_admin=admin)
            new = await accounts.issue_token(
                session,
                user.id,
                name="test",
                actions=actions or (ALL_ACTIONS if admin else list(accounts.DEFAULT_ACTIONS)),
                environments=environments,
            )
        http = await self.client(new.text)
        return Person(slug, user.id, new.text, http)

    async def client(self, token: str | None = None) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://hub", headers=headers)
        return await self.stack.enter_async_context(client)


@contextlib.asynccontextmanager
async def open_hub(settings: Settings) -> AsyncIterator[Hub]:
    async with contextlib.AsyncExitStack() as stack:
        app = create_app(settings, log=lambda line: None)
        await stack.enter_async_context(running(app))
        database = Database(settings.sqlalchemy_url)
        stack.push_async_callback(database.aclose)
        hub = Hub(settings, app, None, database, stack)  # type: ignore[arg-type]
        hub.http = await hub.client()
        yield hub


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy: migrating takes longer than most tests."""
    path = tmp_path_factory.mktemp("template") / "hub.db"
    path.write_bytes(processes.migrated_database())
    return path


@pytest.fixture
def sqlite_settings(tmp_path: Path, empty_database: Path) -> Settings:
    data_dir = tmp_path / "hub-data"
    data_dir.mkdir()
    shutil.copy(empty_database, data_dir / "hub.db")
    return Settings(data_dir=data_dir)


@pytest.fixture(params=["sqlite+folder", "postgresql+s3"])
async def hub(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Hub]:
    """A hub on each of the two kinds of ground."""
    if request.param == "sqlite+folder":
        settings = request.getfixturevalue("sqlite_settings")
    else:
        postgres = request.getfixturevalue("postgres")
        settings = Settings(
            data_dir=tmp_path / "hub-data",
            database_url=await postgres.new_database(),
            **request.getfixturevalue("s3").new_bucket(),
        )
    async with open_hub(settings) as hub:
        yield hub


@pytest.fixture
async def small_hub(sqlite_settings: Settings) -> AsyncIterator[Hub]:
    """A hub on SQLite and a folder, for what does not depend on the ground."""
    async with open_hub(sqlite_settings) as hub:
        yield hub


@pytest.fixture
def open_hub_at() -> Callable[[Settings], Any]:
    """Opens a hub with given settings."""
    return open_hub


@pytest.fixture
def open_small_hub(sqlite_settings: Settings) -> Callable[..., Any]:
    """Opens a hub on SQLite and a folder with other settings."""

    def opened(**changes: Any) -> Any:
        return open_hub(sqlite_settings.model_copy(update=changes))

    return opened


class Done(NamedTuple):
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def vf_hub(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """Run `vf-hub` in this process: `vf_hub("user", "list", VF_HUB_DATA_DIR=folder)`. Nothing is served."""

    def served(*_: Any) -> None:
        raise AssertionError("the hub would be served by this process")

    def call(*arguments: str, **variables: str) -> Done:
        umask = os.umask(0)
        os.umask(umask)
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["vf-hub", *arguments])
            # This process goes on, with its own log.
            patch.setattr(os, "_exit", sys.exit)
            patch.setattr(os, "execve", served)
            patch.setattr(cli, "configure_logging", lambda: None)
            try:
                with pytest.raises(SystemExit) as ended:
                    cli.main()
            finally:
                os.umask(umask)
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out, err)

    return call


# --- PostgreSQL and S3 ------------------------------------------------------------------------


@dataclass
class Postgres:
    port: int
    template_ready: bool = False

    async def new_database(self, *, empty: bool = False) -> str:
        """A database of its own: migrated, copied from a template, or without any table."""
        import asyncpg

        url = f"postgresql+asyncpg://postgres@127.0.0.1:{self.port}"
        connection = await asyncpg.connect(
            host="127.0.0.1", port=self.port, user="postgres", database="postgres"
        )
        if not self.template_ready:
            await connection.execute("CREATE DATABASE hub_template")
            database = Database(f"{url}/hub_template")
            await upgrade(database.engine)
            await database.aclose()
            self.template_ready = True
        name = f"hub_{os.urandom(6).hex()}"
        template = "template1" if empty else "hub_template"
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        await connection.close()
        return f"{url}/{name}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server of the tests' own; it refuses to run as root, so another user runs it."""
    if shutil.which("initdb") is None:
        pytest.skip("PostgreSQL (initdb, pg_ctl) is not installed")
    # Not below pytest's own folder: that is closed to the user the server runs as.
    folder = Path(tempfile.mkdtemp(prefix="vf-hub-postgres-"))
    as_user: list[str] = []
    if os.geteuid() == 0:
        as_user = ["runuser", "-u", "postgres", "--"]
        shutil.chown(folder, "postgres")
    data, port = folder / "data", free_port()
    environment = {**os.environ, "LC_ALL": "C"}
    subprocess.run(
        [*as_user, "initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8"],
        check=True,
        capture_output=True,
        cwd=folder,
        env=environment,
    )
    options = f"-p {port} -k {folder} -h 127.0.0.1 -c fsync=off -c max_connections=200"
    control = [*as_user, "pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log")]
    subprocess.run(
        [*control, "-o", options, "start"],
        check=True,
        capture_output=True,
        cwd=folder,
        env=environment,
    )
    yield Postgres(port)
    subprocess.run(
        [*control, "-m", "immediate", "stop"],
        check=True,
        capture_output=True,
        cwd=folder,
        env=environment,
    )
    shutil.rmtree(folder, ignore_errors=True)


@dataclass
class S3:
    endpoint: str

    def new_bucket(self) -> dict[str, str]:
        """Settings for a bucket of its own."""
        name = f"bucket-{os.urandom(6).hex()}"
        httpx.put(f"{self.endpoint}/{name}", timeout=60).raise_for_status()
        return {
            "storage_url": f"s3://{name}/hub",
            "s3_endpoint": self.endpoint,
            "s3_access_key_id": "test",
            "s3_secret_access_key": "test-secret",
        }


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """An S3 server of the tests' own."""
    port = free_port()
    with (tmp_path_factory.mktemp("moto") / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
        )
    try:
        wait_for_port(port, process)
        yield S3(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


# --- a hub as its own process -----------------------------------------------------------------


@pytest.fixture(scope="module")
def live_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveHub]:
    """A served hub on SQLite and a folder."""
    with served_hub(tmp_path_factory.mktemp("live") / "hub-data") as hub:
        yield hub


@pytest.fixture(scope="module", params=["sqlite+folder", "postgresql+s3"])
def live_hub_on_each_ground(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveHub]:
    """A served hub on each of the two kinds of ground; on S3, files come and go by signed addresses."""
    settings: dict[str, Any] = {}
    if request.param == "postgresql+s3":
        postgres = request.getfixturevalue("postgres")
        with ThreadPoolExecutor(1) as thread:
            database_url = thread.submit(lambda: asyncio.run(postgres.new_database())).result()
        settings = {"database_url": database_url, **request.getfixturevalue("s3").new_bucket()}
    with served_hub(tmp_path_factory.mktemp("live") / "hub-data", **settings) as hub:
        yield hub


@pytest.fixture
def serve_hub(tmp_path: Path) -> Iterator[Callable[..., LiveHub]]:
    """Starts served hubs with settings of the test's own, `founded` ones by `alice`; they end with the test."""
    started: list[LiveHub] = []

    def start(*, founded: bool = False, **settings: Any) -> LiveHub:
        data_dir = settings.pop("data_dir", tmp_path / "hub-data")
        token = processes.found(data_dir) if founded else ""
        hub = start_hub(data_dir, **settings)
        hub.token = token
        started.append(hub)
        return hub

    yield start
    for hub in started:
        stop_hub(hub)
