"""The operator's commands, migrations, health, and several workers."""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import text

from hub_server import migrations
from hub_server.database import Database
from hub_server.errors import SettingsError, Unavailable
from hub_server.migrations import ALL_TABLES
from hub_server.operations import backup as maintenance
from hub_server.secrets.cipher import open_cipher
from hub_server.settings import Settings
from hub_server.storage.service import open_store

JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}
API = "/api/v1/environmentshub"


# --- migrations ---------------------------------------------------------------------------------


def test_the_program_knows_the_newest_revision():
    scripts = ScriptDirectory.from_config(migrations.alembic_config())
    assert scripts.get_current_head() == migrations.HEAD


def test_the_name_of_a_migration_starts_with_its_revision():
    for script in ScriptDirectory.from_config(migrations.alembic_config()).walk_revisions():
        name = Path(script.path).name
        assert re.fullmatch(r"\d{4}_\w+\.py", name), name
        assert name.partition("_")[0] == script.revision
        assert int(script.revision) == int(script.down_revision or 0) + 1


def test_a_new_file_is_a_new_revision(tmp_path):
    """A copy of the program with one more file takes the number of this file as the newest revision."""
    package = tmp_path / "hub_server"
    shutil.copytree(Path(migrations.__file__).parents[1], package)
    versions = package / "migrations" / "versions"
    (versions / "9998_more.py").write_text(
        f"revision, down_revision = '9998', {migrations.HEAD!r}\n"
    )
    code = "import hub_server.process as p; print(p.HEAD, p.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["9998", str(package / "process.py")]


@pytest.mark.parametrize("ground", ["sqlite", "postgresql"])
async def test_migrations_make_what_the_models_say_and_go_back(ground, request, tmp_path):
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from hub_server.database import Base

    url = f"sqlite+aiosqlite:///{tmp_path / 'hub.db'}"
    if ground == "postgresql":
        url = await request.getfixturevalue("postgres").new_database()
    database = Database(url)
    await migrations.upgrade(database.engine)
    await migrations.upgrade(database.engine)
    await migrations.check_current(database.engine)

    def differences(connection):
        context = MigrationContext.configure(connection)
        return [
            change
            for change in compare_metadata(context, Base.metadata)
            if "environment_search" not in str(change) and "environment_rows" not in str(change)
        ]

    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await migrations.downgrade(database.engine, "base")
    with pytest.raises(SettingsError, match="vf-hub migrate"):
        await migrations.check_current(database.engine)
    await database.aclose()
    assert len(ALL_TABLES) > 10


def test_migrations_can_be_printed_for_postgresql():
    sql = migrations.offline_sql()
    assert "CREATE TABLE environments" in sql
    assert "USING gin (document)" in sql


# --- fsck, gc, backup, export -------------------------------------------------------------------


def blob_files(settings):
    return [path for path in (settings.data_dir / "blobs").rglob("*") if path.is_file()]


async def test_fsck_finds_a_flipped_bit_a_cut_file_and_a_missing_one(small_hub, wheel):
    alice = await small_hub.person("alice")
    for n in range(3):
        await alice.upload(wheel(version=f"{n}.0"))
    database, store = small_hub.database, open_store(small_hub.settings)
    assert (await maintenance.fsck(database, store)).problems == []
    flipped, cut, gone = blob_files(small_hub.settings)
    data = bytearray(flipped.read_bytes())
    data[100] ^= 1
    flipped.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-1])
    gone.unlink()
    report = await maintenance.fsck(database, store)
    assert sorted(problem.kind for problem in report.problems) == [
        "missing",
        "wrong bytes",
        "wrong size",
    ]
    quick = await maintenance.fsck(database, store, read_bytes=False)
    assert len(quick.problems) == 2


async def test_gc_removes_only_what_is_old_and_not_needed(hub, wheel):
    alice = await hub.person("alice")
    await alice.push(wheel())
    await alice.upload(wheel(version="0.2.0"))
    await alice.http.delete(f"{API}/alice/demo-env/@0.2.0")
    store = open_store(hub.settings)
    young = await maintenance.gc(hub.settings, hub.database, store)
    assert young.blobs == 0
    stray = hub.settings.staging_dir / "left-by-a-crash"
    stray.write_bytes(b"x")
    eager = hub.settings.model_copy(update={"gc_grace_s": 0.0})
    report = await maintenance.gc(eager, hub.database, store)
    assert (report.blobs, report.staged) == (1, 1)
    assert (await maintenance.fsck(hub.database, store)).problems == []
    assert (await maintenance.fsck(hub.database, store)).files == 2


async def test_gc_keeps_what_an_unfinished_upload_has_sent(small_hub, wheel):
    alice = await small_hub.person("alice")
    answer, _ = await alice.push(wheel())
    assert answer.status_code == 200
    body = wheel(version="0.3.0").bytes()
    import hashlib

    wanted = {
        "filename": wheel(version="0.3.0").filename,
        "sha256": hashlib.sha256(body).hexdigest(),
        "size": len(body),
    }
    reserved = await alice.http.post("/api/v1/hub/alice/demo-env/reserve", json={"files": [wanted]})
    [upload] = reserved.json()["data"]["uploads"]
    await small_hub.http.put(upload["upload_url"], content=body)
    store = open_store(small_hub.settings)
    eager = small_hub.settings.model_copy(update={"gc_grace_s": 0.0})
    await maintenance.gc(eager, small_hub.database, store)
    done = await alice.http.post(
        "/api/v1/hub/alice/demo-env/finalize", json={"upload_ids": [upload["upload_id"]]}
    )
    assert done.status_code == 200, done.text
    assert (await maintenance.fsck(small_hub.database, store)).problems == []


async def test_gc_forgets_install_tokens_that_have_ended(open_small_hub, wheel):
    async with open_small_hub(install_token_lifetime_s=0.01, gc_grace_s=0.0) as hub:
        alice = await hub.person("alice")
        await alice.push(wheel(), visibility="PRIVATE")
        for _ in range(3):
            assert (await alice.http.get(f"{API}/alice/demo-env/@latest")).status_code == 200
        await asyncio.sleep(0.02)
        report = await maintenance.gc(hub.settings, hub.database, open_store(hub.settings))
        assert report.tokens >= 1
        assert (await alice.http.get("/api/v1/user/whoami")).status_code == 200


async def test_a_backup_restores_to_a_hub_that_answers_the_same(hub, wheel, tmp_path, request):
    alice = await hub.person("alice")
    await alice.push(wheel())
    await alice.upload(wheel(version="0.2.0"))
    await alice.http.post("/api/v1/secrets/", json={"name": "KEY", "value": "v"})
    page = (await hub.http.get("/alice/simple/demo-env/", headers=JSON)).json()
    count = await maintenance.backup(hub.settings, tmp_path / "backup")
    assert count == 3
    with pytest.raises(SettingsError, match="not empty"):
        await maintenance.backup(hub.settings, tmp_path / "backup")
    changes = {"data_dir": tmp_path / "restored"}
    if not hub.settings.is_sqlite:
        postgres = request.getfixturevalue("postgres")
        changes["database_url"] = await postgres.new_database(empty=True)
        changes |= request.getfixturevalue("s3").new_bucket()
    settings = hub.settings.model_copy(update=changes)
    assert await maintenance.restore(settings, tmp_path / "backup") == 3
    database = Database(settings.sqlalchemy_url)
    report = await maintenance.fsck(database, open_store(settings))
    await database.aclose()
    assert (report.files, report.problems) == (3, [])
    async with request.getfixturevalue("open_hub_at")(settings) as copy:
        assert (await copy.http.get("/alice/simple/demo-env/", headers=JSON)).json() == page
        again = await copy.client(alice.token)
        assert (await again.get("/api/v1/user/whoami")).json()["data"]["slug"] == "alice"
        sealed = (await again.get("/api/v1/secrets/")).json()["data"]
        assert [secret["name"] for secret in sealed] == ["KEY"]
    with pytest.raises(SettingsError, match="into an empty"):
        await maintenance.restore(settings, tmp_path / "backup")
    other = "" if not hub.settings.is_sqlite else "postgresql+asyncpg://u@127.0.0.1:1/x"
    elsewhere = settings.model_copy(
        update={"database_url": other, "data_dir": tmp_path / "elsewhere"}
    )
    with pytest.raises(SettingsError, match="is the backup of a hub on"):
        await maintenance.restore(elsewhere, tmp_path / "backup")
    assert not (tmp_path / "elsewhere").exists()


async def test_damaged_blobs_are_neither_exported_nor_backed_up(small_hub, wheel, tmp_path):
    alice = await small_hub.person("alice")
    await alice.upload(wheel())
    [blob] = (small_hub.settings.data_dir / "blobs").glob("*/*")
    whole = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(whole[:-1] + b"x")
    for number, does in enumerate((maintenance.export, maintenance.backup)):
        with pytest.raises(Unavailable, match="damaged"):
            await does(small_hub.settings, tmp_path / f"copy-{number}")
        copied = [path for path in (tmp_path / f"copy-{number}").rglob("*") if path.is_file()]
        assert blob.read_bytes() not in [path.read_bytes() for path in copied]
    blob.unlink()
    for number, does in enumerate((maintenance.export, maintenance.backup)):
        with pytest.raises(Unavailable, match="vf-hub fsck"):
            await does(small_hub.settings, tmp_path / f"missing-{number}")


async def test_a_database_of_a_newer_release_is_left_alone(small_hub):
    async with small_hub.database.write() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for does in (migrations.upgrade, migrations.check_current):
        with pytest.raises(SettingsError, match="newer release"):
            await does(small_hub.database.engine)


async def test_an_unfinished_backup_is_not_restored(tmp_path):
    (tmp_path / "backup").mkdir()
    with pytest.raises(SettingsError, match="not a finished backup"):
        await maintenance.restore(Settings(data_dir=tmp_path / "new"), tmp_path / "backup")


async def test_the_export_is_an_index_for_a_plain_file_server(hub, wheel, tmp_path):
    alice = await hub.person("alice")
    await alice.upload(wheel())
    await alice.push(wheel(name="secret-env", files={"secret_env.py": b""}), visibility="PRIVATE")
    out = tmp_path / "mirror"
    assert await maintenance.export(hub.settings, out) == 1
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert not any("secret" in name for name in names)
    page = json.loads((out / "alice/simple/demo-env/index.json").read_text())
    wheel_path = (out / "alice/simple/demo-env" / page["files"][0]["url"]).resolve()
    assert wheel_path.read_bytes() == wheel().bytes()
    assert wheel_path.with_name(wheel_path.name + ".metadata").exists()
    html = (out / "alice/simple/demo-env/index.html").read_text()
    assert f'href="{page["files"][0]["url"]}#sha256=' in html


def test_the_key_of_the_secrets_is_made_once_and_a_wrong_one_is_noticed(tmp_path):
    sealed = open_cipher(tmp_path / "a").seal("value", "scope")
    assert open_cipher(tmp_path / "a").open(sealed, "scope") == "value"
    for cipher, context in (
        (open_cipher(tmp_path / "b"), "scope"),
        (open_cipher(tmp_path / "a"), "x"),
    ):
        with pytest.raises(SettingsError, match="cannot be decrypted"):
            cipher.open(sealed, context)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "secret.key").write_text("abcd")
    with pytest.raises(SettingsError, match="32 bytes"):
        open_cipher(tmp_path / "c")


# --- health -------------------------------------------------------------------------------------


async def test_health_readiness_and_metrics(hub, wheel):
    alice = await hub.person("alice")
    await alice.upload(wheel())
    assert (await hub.http.get("/health")).json() == {"status": "ok"}
    assert (await hub.http.get("/ready")).json() == {"status": "ready"}
    for _ in range(3):
        await hub.http.get("/alice/simple/demo-env/")
    text_ = (await hub.http.get("/metrics")).text
    assert "vf_hub_environments 1" in text_
    assert re.search(r'vf_hub_requests_total\{route="index",status="200"\} [23]', text_)
    assert "alice" not in text_, "labels are routes, never names"


async def test_readiness_fails_when_the_storage_is_gone(small_hub):
    blobs = small_hub.settings.data_dir / "blobs"
    blobs.rmdir()
    blobs.write_text("in the way")
    answer = await small_hub.http.get("/ready")
    assert (answer.status_code, "blobs" in answer.text) == (503, True)


async def test_a_fault_of_ours_is_told_without_its_cause(small_hub):
    async with small_hub.database.write() as session:
        await session.execute(text("DROP TABLE environment_tags"))
    answer = await small_hub.http.get(f"{API}/?tags=x")
    assert answer.status_code in (500, 503)
    assert "environment_tags" not in answer.text
    assert answer.headers["x-request-id"]


# --- the command --------------------------------------------------------------------------------


def test_a_hub_that_cannot_start_says_why_in_one_line(tmp_path, vf_hub):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        data_dir = str(tmp_path / "hub")
        busy = vf_hub("serve", "--data-dir", data_dir, "--port", port)
        assert (busy.returncode, busy.stdout) == (2, "")
        assert f"port {port}: Address already in use" in busy.stderr
    (tmp_path / "file").write_text("")
    database = f"postgresql+asyncpg://hub:s3cret@127.0.0.1:{port}/hub"
    for arguments, variables in (
        (("serve", "--data-dir", str(tmp_path / "file" / "below"), "--port", port), {}),
        (("fsck", "--data-dir", data_dir), {"VF_HUB_DATABASE_URL": database}),
    ):
        failed = vf_hub(*arguments, **variables)
        assert (failed.returncode, failed.stdout) == (1, "")
        assert failed.stderr.startswith("vf-hub: ")
        assert len(failed.stderr.splitlines()) == 1
        assert "s3cret" not in failed.stderr


def test_an_account_and_a_token_are_made_beside_a_serving_hub(live_hub, vf_hub):
    added = live_hub.run("user", "add", "carol", "--password", "correct horse")
    assert added.stdout == "Created the account carol.\n"
    variables = {"VF_HUB_DATA_DIR": str(live_hub.data_dir)}
    token = vf_hub("token", "new", "carol", "--action", "read", **variables).stdout.strip()
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.get(f"{live_hub.url}/api/v1/user/whoami", headers=headers)
    assert list(answer.json()["data"]["scope"]) == ["read"]
    wrong = vf_hub("token", "new", "carol", "--action", "reed", **variables)
    assert (wrong.returncode, wrong.stdout, "publish" in wrong.stderr) == (2, "", True)
    refused = vf_hub("user", "add", "car0l", "--password", "correct horse", **variables)
    assert (refused.returncode, "looks like" in refused.stderr) == (2, True)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_operators_commands_work_beside_a_serving_hub(serve_hub, wheel, tmp_path):
    hub = serve_hub()
    assert hub.setup_token
    assert hub.run("user", "add", "carol", "--password", "correct horse", "--admin").returncode == 0
    assert "carol\tadmin" in hub.run("user", "list").stdout
    token = hub.run("token", "new", "carol", "--days", "1").stdout.strip()
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.get(f"{hub.url}/api/v1/user/whoami", headers=headers).status_code == 200
    answer = httpx.post(
        f"{hub.url}/legacy/",
        headers=headers,
        data={":action": "file_upload", "name": "demo-env", "version": "0.1.0"},
        files={"content": (wheel().filename, wheel().bytes())},
    )
    assert answer.status_code == 200, answer.text
    assert "1 files checked, 0 problems" in hub.run("fsck").stdout
    assert "Removed 0 blobs" in hub.run("gc").stdout
    assert "1 blobs" in hub.run("backup", str(tmp_path / "b")).stdout
    assert "Exported 1" in hub.run("export", str(tmp_path / "e")).stdout
    restored = hub.run("restore", str(tmp_path / "b"), "--data-dir", str(tmp_path / "r"))
    assert "0 problems" in restored.stdout
    refused = hub.run("restore", str(tmp_path / "b"), check=False)
    assert (refused.returncode, "exists" in refused.stderr) == (2, True)
    for blob in (hub.data_dir / "blobs").rglob("*"):
        if blob.is_file():
            blob.write_bytes(b"tampered")
    damaged = hub.run("fsck", check=False)
    assert (damaged.returncode, "wrong size" in damaged.stdout) == (1, True)
    assert hub.run("token", "revoke", token).returncode == 0
    assert httpx.get(f"{hub.url}/api/v1/user/whoami", headers=headers).status_code == 401
    assert hub.run("user", "disable", "carol").returncode == 0
    assert "already" not in hub.run("migrate").stderr
    assert "CREATE TABLE" in hub.run("migrate", "--sql").stdout


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("ground", ["sqlite", "postgresql"])
def test_a_publish_and_a_revocation_reach_every_worker_at_once(ground, serve_hub, request, wheel):
    settings = {}
    if ground == "postgresql":
        postgres = request.getfixturevalue("postgres")
        settings["database_url"] = asyncio.run(postgres.new_database())
    hub = serve_hub(workers=3, **settings)
    hub.run("user", "add", "alice", "--password", "correct horse")
    token = hub.run("token", "new", "alice").stdout.strip()
    headers = {"Authorization": f"Bearer {token}"}
    address = f"{hub.url}/alice/simple/demo-env/"

    def versions():
        """As many new connections as needed to have met every worker, most likely."""
        return [
            tuple(httpx.get(address, headers=JSON).json().get("versions", ())) for _ in range(24)
        ]

    for n in range(1, 4):
        made = wheel(version=f"{n}.0")
        answer = httpx.post(
            f"{hub.url}/legacy/",
            headers=headers,
            data={":action": "file_upload", "name": made.name, "version": made.version},
            files={"content": (made.filename, made.bytes())},
        )
        assert answer.status_code == 200, answer.text
        if ground == "postgresql":
            time.sleep(0.2)  # notifications take milliseconds; SQLite is asked each time
        assert set(versions()) == {tuple(f"{m}.0" for m in range(1, n + 1))}
    hub.run("token", "revoke", token)
    whoami = [httpx.get(f"{hub.url}/api/v1/user/whoami", headers=headers) for _ in range(24)]
    assert {answer.status_code for answer in whoami} == {401}
