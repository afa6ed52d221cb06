"""Other accounts of the machine can read nothing of a hub: database, blobs, key, files in transit, backups, exports."""

import os
import stat

import pytest

from hub_server.operations import backup as maintenance
from hub_server.private_files import tighten
from hub_server.settings import environment_of


@pytest.fixture(autouse=True)
def usual_umask():
    """What most accounts have: files that others may read, unless somebody says otherwise."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder):
    paths = [folder, *folder.rglob("*")]
    return [(p, oct(p.lstat().st_mode)) for p in paths if p.lstat().st_mode & 0o077]


async def test_a_hub_makes_files_and_folders_for_its_own_account(tmp_path, open_hub_at, wheel):
    from hub_server.database import Database
    from hub_server.migrations import upgrade
    from hub_server.settings import Settings

    settings = Settings(data_dir=tmp_path / "data" / "hub")
    (tmp_path / "data" / "hub").mkdir(parents=True, mode=0o700)
    database = Database(settings.sqlalchemy_url)
    await upgrade(database.engine)
    await database.aclose()
    async with open_hub_at(settings) as hub:
        alice = await hub.person("alice")
        assert (await alice.push(wheel(), visibility="PRIVATE"))[0].is_success
        await alice.upload(wheel(name="pub-env", files={"pub_env.py": b""}))
        reserved = {"files": [{"filename": "x", "sha256": "0" * 64, "size": 1}]}
        await alice.http.post("/api/v1/hub/alice/pub-env/reserve", json=reserved)
        await maintenance.backup(settings, tmp_path / "backup")
        await maintenance.export(settings, tmp_path / "export")
        names = {path.name for path in settings.data_dir.rglob("*")}
        assert {"hub.db", "hub.db-wal", "secret.key", "blobs", "staging"} <= names
        for folder in (settings.data_dir, tmp_path / "backup", tmp_path / "export"):
            assert open_to_others(folder) == []
    restored = settings.model_copy(update={"data_dir": tmp_path / "restored"})
    await maintenance.restore(restored, tmp_path / "backup")
    assert open_to_others(tmp_path / "restored") == []


async def test_serving_closes_a_hub_that_an_earlier_release_left_open(small_hub, serve_hub, wheel):
    alice = await small_hub.person("alice")
    assert (await alice.push(wheel()))[0].is_success
    answer = await alice.http.post("/api/v1/secrets/", json={"name": "KEY", "value": "v"})
    assert answer.is_success
    folder = small_hub.settings.data_dir
    names = {path.name for path in folder.rglob("*")}
    assert {"hub.db", "hub.db-wal", "secret.key", "blobs", "staging"} <= names
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    strange = folder / "notes-of-somebody.txt"
    strange.write_text("x")
    hub = serve_hub(data_dir=folder)
    left_open = [path for path, _ in open_to_others(folder)]
    assert set(left_open) <= {hub.log, strange}, "what is not the hub's stays as it is"
    assert stat.S_IMODE(strange.stat().st_mode) == 0o644


def test_links_and_shared_folders_are_left_alone(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (elsewhere / "file").write_text("x")
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    (data / "blobs").symlink_to(elsewhere)
    data.chmod(0o1777)
    tighten(data, data / "hub.db")
    assert stat.S_IMODE(data.stat().st_mode) == 0o1777
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755


def test_commands_make_files_for_their_own_account(sqlite_settings, tmp_path, vf_hub):
    into = tmp_path / "saved"
    done = vf_hub("backup", str(into), **environment_of(sqlite_settings))
    assert done.returncode == 0, done.stderr
    assert open_to_others(into) == []
