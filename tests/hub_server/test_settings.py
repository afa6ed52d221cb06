"""Settings, and what operators get wrong on the command line."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hub_server.errors import SettingsError
from hub_server.settings import Settings, environment_of, settings_from_environment


def test_settings_come_from_variables_and_go_to_workers_unchanged(monkeypatch, tmp_path):
    monkeypatch.setenv("VF_HUB_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("VF_HUB_PORT", "1234")
    settings = settings_from_environment(host="0.0.0.0")
    assert (settings.port, settings.host, settings.data_dir) == (1234, "0.0.0.0", tmp_path)
    for key, value in environment_of(settings).items():
        monkeypatch.setenv(key, value)
    assert settings_from_environment() == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORTT", "1"),
        ("PORT", "many"),
        ("PORT", "99999"),
        ("S3_ACCESS_KEY_ID", "alone"),
        ("WORKERS", "0"),
        ("DATABASE_URL", "mysql://user:s3cret@host/name"),
        ("STORAGE_URL", "ftp://user:s3cret@host"),
        ("STORAGE_URL", "s3://"),
        ("BASE_URL", "hub.example.org"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch, name, value):
    monkeypatch.setenv(f"VF_HUB_{name}", value)
    with pytest.raises(SettingsError, match=f"VF_HUB_{name}") as caught:
        settings_from_environment()
    for unwanted in ("pydantic", "\n", "s3cret"):
        assert unwanted not in str(caught.value)


def test_the_usual_spelling_of_a_postgresql_address_is_understood():
    given = Settings(database_url="postgresql://user:password@host/name")
    assert given.sqlalchemy_url == "postgresql+asyncpg://user:password@host/name"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["user", "list", "--data-dir", "nowhere"], 2, "There is no hub in"),
        (["fsck", "--data-dir", "."], 2, "There is no hub in"),
        (["backup", "into", "--data-dir", "."], 2, "--data-dir"),
        (["token", "new", "alice", "--days", "0"], 2, "already be expired"),
        (["token", "new", "alice", "--action", "fly"], 2, "Unknown actions: fly. Known: account, "),
        (["token", "new", "nobody"], 1, "no user 'nobody'"),
        (["user", "disable", "nobody"], 1, "no user 'nobody'"),
        (["serve", "--port", "99999"], 2, "VF_HUB_PORT='99999'"),
    ],
)
def test_what_an_operator_gets_wrong_is_said_and_changes_nothing(
    tmp_path, sqlite_settings, monkeypatch, vf_hub, arguments, code, said
):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    variables = environment_of(sqlite_settings)
    if arguments[0] == "token":
        made = vf_hub("user", "add", "alice", "--password", "correct horse", **variables)
        assert made.returncode == 0, made.stderr
    done = vf_hub(*arguments, **variables)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr
    assert list(empty.iterdir()) == []


def test_a_mistake_ends_the_process_with_its_code(sqlite_settings):
    environment = {**os.environ, **environment_of(sqlite_settings)}
    command = [sys.executable, "-m", "hub_server.cli", "token", "new", "nobody"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr == "vf-hub: There is no user 'nobody'.\n"


@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.long)])
def test_a_command_on_s3_ends_with_its_own_exit_code(tmp_path, sqlite_settings, times):
    storage = {
        "VF_HUB_STORAGE_URL": "s3://bucket",
        "VF_HUB_S3_ENDPOINT": "http://127.0.0.1:1",
        "VF_HUB_S3_ACCESS_KEY_ID": "x",
        "VF_HUB_S3_SECRET_ACCESS_KEY": "y",
    }
    # obstore's threads outlive the request: the interpreter going down under them would abort it.
    script = """
import asyncio, sys
from datetime import timedelta
import obstore
from obstore.store import S3Store
from hub_server.process import leave

store = S3Store(
    "b",
    config={"endpoint": "http://127.0.0.1:1", "access_key_id": "x", "secret_access_key": "y"},
    client_options={"allow_http": True},
    retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
)


async def ask():
    try:
        await obstore.head_async(store, "k")
    except Exception:
        print("asked")


asyncio.run(ask())
leave(3)
"""
    environment = {**os.environ, **environment_of(sqlite_settings), **storage}
    command = [sys.executable, "-m", "hub_server.cli", "gc"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "object storage failed" in done.stderr) == (1, True), done.stderr
    for _ in range(times):
        ended = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
        )
        assert (ended.returncode, ended.stdout) == (3, "asked\n"), ended.stderr


def test_a_misspelt_setting_is_recognised(monkeypatch):
    monkeypatch.setenv("VF_HUB_DATABSE_URL", "x")
    with pytest.raises(SettingsError, match="mean VF_HUB_DATABASE_URL"):
        settings_from_environment()


def test_the_variable_of_a_command_stops_no_other_command(monkeypatch):
    monkeypatch.setenv("VF_HUB_PASSWORD", "correct horse battery")
    settings = settings_from_environment()
    assert "correct horse" not in str(settings)


def test_the_password_of_a_new_account_may_come_from_its_variable(sqlite_settings, vf_hub):
    variables = {**environment_of(sqlite_settings), "VF_HUB_PASSWORD": "correct horse"}

    def run(*arguments):
        done = vf_hub(*arguments, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Created the account alice" in run("user", "add", "alice")
    run("token", "new", "alice")
    said = run("user", "password", "alice")
    assert "1 API tokens of alice still work" in said
    assert "--revoke-tokens" in said
    assert "still work" not in run("user", "password", "alice", "--revoke-tokens")
    assert "Changed" in run("user", "password", "alice")


@pytest.mark.parametrize("times", [2, pytest.param(8, marks=pytest.mark.long)])
def test_a_worker_that_ends_on_s3_ends_in_good_order(times):
    """uvicorn's workers return to `multiprocessing`, which lets the interpreter go down."""
    script = """
import asyncio, multiprocessing, sys
from datetime import timedelta


def work():
    import obstore
    from obstore.store import S3Store
    from hub_server.process import leave_at_exit

    leave_at_exit()
    store = S3Store(
        "b",
        config={"endpoint": "http://127.0.0.1:1", "access_key_id": "x", "secret_access_key": "y"},
        client_options={"allow_http": True},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
    )

    async def ask():
        try:
            await obstore.head_async(store, "k")
        except Exception:
            pass

    asyncio.run(ask())


if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        worker = multiprocessing.get_context("spawn").Process(target=work)
        worker.start()
        worker.join(60)
        print(worker.exitcode)
"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(script)
        done = subprocess.run(
            [sys.executable, str(path), str(times)], capture_output=True, text=True, timeout=300
        )
    assert done.stdout.split() == ["0"] * times, done.stderr


def test_a_hub_without_its_packages_says_what_to_install():
    code = (
        "import sys; sys.modules['sqlalchemy'] = None; sys.argv = ['vf-hub', 'serve']\n"
        "from hub_server.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "sqlalchemy is missing" in done.stderr
    assert "pip install '" in done.stderr
    assert "'sqlalchemy[asyncio]>=2.1'" in done.stderr
    assert "Traceback" not in done.stderr
