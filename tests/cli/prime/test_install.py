"""Installing and pulling: exact address and hash, the right interpreter, and no token where others could read it."""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from verifiers.errors import EnvironmentNotFound
from verifiers.hub.client import HubClient
from verifiers.hub.config import hub_settings
from verifiers.hub.errors import HubMisbehaved
from verifiers.hub.installation import HubSource, target_python
from verifiers.hub.source_archive import pack, unpack
from verifiers.packages.install import Installer, install, installed_from
from verifiers.packages.published import parse_hub_id

PROGRAMS = ["uv", "pip"]
relay_module = sys.modules["prime_relay"]


def full(folder: Path, owner: str = "alice") -> str:
    return f"{owner}/{folder.name.replace('_', '-')}"


@pytest.fixture
def publish(prime, make_project):
    """Publish a project; gives its folder."""

    def push(*options, **settings) -> Path:
        folder = make_project(**settings)
        done = prime("env", "push", "-p", folder, *options)
        assert done.code == 0, done.err
        return folder

    return push


@pytest.fixture
def commands(monkeypatch):
    """Every command line that the installer runs, with the netrc file it was given."""
    seen = []
    run = subprocess.run

    def recorded(command, **options):
        netrc = (options.get("env") or {}).get("NETRC")
        if netrc:
            mode = stat.S_IMODE(Path(netrc).stat().st_mode)
            seen.append(
                (list(command), dict(options["env"]), Path(netrc), mode, Path(netrc).read_text())
            )
        else:
            seen.append((list(command), dict(options.get("env") or os.environ), None, None, ""))
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", recorded)
    return seen


@pytest.mark.parametrize(
    "programs", [("uv", "pip"), pytest.param(("pip", "uv"), marks=pytest.mark.long)]
)
def test_what_is_installed_is_the_published_wheel_of_that_owner(
    prime, as_person, make_project, target, programs
):
    program, other = programs  # the second replaces what the first has installed
    for owner in ("alice", "bob"):  # the same name and version, other contents
        as_person(owner)
        folder = make_project(
            f"twice-{program}", code=f"def load_environment():\n    return '{owner}'\n"
        )
        prime("env", "push", "-p", folder)
    as_person(None)
    for owner, used in (("alice", program), ("bob", other)):
        done = prime(
            "env",
            "install",
            f"{owner}/twice-{program}",
            "--with",
            used,
            "--python",
            target.python,
            "--json",
        )
        assert done.code == 0, done.err
        [one] = done.json["environments"]
        assert (one["status"], one["version"], done.json["python"]) == (
            "installed",
            "0.1.0",
            target.python,
        )
        assert owner in (target.site / f"twice_{program}.py").read_text()
        found = installed_from(f"twice-{program}", target.python)
        assert found is not None
        assert f"/files/{owner}/" in (found[1] or "")
    kept = prime(
        "env",
        "install",
        f"alice/twice-{program}",
        "--no-upgrade",
        "--python",
        target.python,
        "--json",
    )
    assert kept.json["environments"][0]["status"] == "kept"
    gone = prime("env", "uninstall", f"twice-{program}", "--with", other, "--python", target.python)
    assert (gone.code, target.has(f"twice_{program}")) == (0, False)
    again = prime("env", "uninstall", f"twice-{program}", "--python", target.python)
    assert (again.code, "is not installed" in again.err) == (2, True)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_private_environment_installs_without_its_token_in_any_command(
    prime, alice, publish, target, program, commands, token_of
):
    (Path.home() / ".netrc").write_text("machine other.example login me password mine\n")
    (Path.home() / ".netrc").chmod(0o600)
    folder = publish("-v", "PRIVATE")
    done = prime(
        "env", "install", full(folder), "--with", program, "--python", target.python, "--verbose"
    )
    assert done.code == 0, done.err
    assert target.has(folder.name)
    [(_, _, netrc, mode, entries)] = [seen for seen in commands if seen[2] is not None]
    assert mode == 0o600
    assert "machine 127.0.0.1 login __token__ password vfh_" in entries
    assert "machine other.example login me password mine" in entries
    assert not netrc.exists()
    token = entries.partition("127.0.0.1 login __token__ password ")[2].split()[0]
    assert token != token_of("alice")
    for command, variables, *_ in commands:
        assert token not in " ".join(command)
        assert token not in " ".join(variables.values())
        assert token_of("alice") not in " ".join(command)
    shown = prime("env", "info", full(folder), "--json")
    for text in (
        done.out,
        done.err,
        shown.out,
        *(p.read_text() for p in target.site.rglob("direct_url.json")),
    ):
        assert "vfh_" not in text


@pytest.mark.parametrize("program", PROGRAMS)
def test_other_bytes_than_the_published_ones_are_not_installed(
    prime, as_person, publish, relay, target, program, monkeypatch
):
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    as_person("alice", relay.url)
    folder = publish()
    relay.files_change = True
    done = prime("env", "install", full(folder), "--with", program, "--python", target.python)
    assert (done.code, "failed" in done.out, target.has(folder.name)) == (1, True, False)
    assert "into" not in done.out
    assert "Traceback" not in done.err


def test_one_failure_among_several_is_exit_1_and_the_others_are_installed(
    prime, alice, publish, target
):
    folder = publish()
    done = prime(
        "env",
        "install",
        "alice/no-such-env",
        full(folder),
        "no-folder",
        "--python",
        target.python,
        "--json",
    )
    assert done.code == 1
    assert [one["status"] for one in done.json["environments"]] == ["failed", "installed", "failed"]
    assert target.has(folder.name)


def test_ctrl_c_while_the_hub_does_not_answer_is_130(prime, as_person, ctrl_c_when):
    is_asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def accept() -> None:
            with silent.accept()[0] as connection:
                connection.recv(1)
                is_asked.set()
                connection.recv(1 << 20)
                connection.recv(1)  # until the command closes the connection

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        as_person("alice", f"http://127.0.0.1:{silent.getsockname()[1]}")
        ctrl_c_when(is_asked)
        done = prime("env", "install", "somebody/something")
        thread.join()
    assert (done.code, done.out) == (130, ""), done.err
    assert "Interrupted." in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument"),
        (["a/b/c"], "owner/name"),
        (["alice/x", "--with", "conda"], "uv or pip"),
        (["alice/x", "--python", "/no/python"], "no interpreter"),
        (["local", "--lock"], "cannot be pinned"),
    ],
)
def test_wrong_usage_of_install_is_exit_2_and_installs_nothing(
    prime, alice, arguments, said, commands
):
    done = prime("env", "install", *arguments)
    assert (done.code, said in done.err) == (2, True), done.err
    assert commands == []


def test_a_lock_pins_address_and_hash(prime, alice, publish, target):
    folder, private = publish(), publish("-v", "private")
    done = prime(
        "env", "install", full(folder), full(private), "--lock", "--python", target.python, "--json"
    )
    assert done.code == 0, done.err
    assert done.json["lock"] == "pylock.toml"
    text = Path("pylock.toml").read_text()
    locked = {p["name"]: p for p in tomllib.loads(text)["packages"]}
    for one in done.json["environments"]:
        package = locked[one["environment"].partition("/")[2]]
        assert package["archive"]["hashes"]["sha256"] == one["sha256"]
    assert "vfh_" not in text
    second = publish("-v", "private")
    several = (full(private), full(folder), full(second))
    together = prime("env", "install", *several, "--lock", "--python", target.python, "--json")
    assert together.code == 0, together.err
    text = Path("pylock.toml").read_text()
    locked = {p["name"]: p["archive"]["hashes"]["sha256"] for p in tomllib.loads(text)["packages"]}
    for one in together.json["environments"]:
        assert locked[one["environment"].partition("/")[2]] == one["sha256"]
    assert "vfh_" not in text
    wrong = prime(
        "env", "install", full(folder), "--lock", "--lock-file", "x.txt", "--python", target.python
    )
    assert (wrong.code, "pylock" in wrong.err, Path("x.txt").exists()) == (1, True, False)


def test_the_interpreter_is_that_of_the_project_or_the_active_one(tmp_path, monkeypatch, target):
    folder = Path(target.python).parents[1]
    assert target_python({"VIRTUAL_ENV": str(folder)}) == Path(target.python)
    both = {"VIRTUAL_ENV": str(folder), "UV_PROJECT_ENVIRONMENT": str(tmp_path / "gone")}
    assert target_python(both) == Path(target.python)
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "pyproject.toml").write_text("")
    folder.rename(project / ".venv")
    monkeypatch.chdir(project / "src")
    assert target_python({}) == project / ".venv" / "bin" / "python"
    monkeypatch.chdir(tmp_path)
    assert target_python({}) is None


def test_folders_here_are_installed_editable(make_project, target, start_in):
    folder = make_project("local-cli-env")
    prepared = folder / "pyproject.toml"
    prepared.write_text(prepared.read_text() + '[tool.hatch.build]\ndev-mode-dirs = ["."]\n')
    command = ("env", "install", "local-cli-env", "-p", "projects", "--json")
    process = start_in(target.python, "vf_cli.prime.main:main", *command)
    out, err = process.communicate(timeout=50)
    assert process.returncode == 0, err
    [one] = json.loads(out)["environments"]
    assert (one["environment"], one["version"], one["status"]) == (
        "local-cli-env",
        "0.1.0",
        "installed",
    )
    asked = [target.python, "-c", "import local_cli_env; print(local_cli_env.__file__)"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(found) == (folder / "local_cli_env.py").resolve()


def test_the_seam_of_vf_install_takes_a_hub(alice, publish, target):
    folder = publish()
    with HubSource(hub_settings()) as source:
        name = install(full(folder), source=source, installer=Installer(python=target.python))
        with pytest.raises(EnvironmentNotFound, match=r"no alice/nope@2\.0"):
            source.wheel(parse_hub_id("alice/nope@2.0"))
    assert (name, target.has(folder.name)) == (full(folder).partition("/")[2], True)


def test_vf_install_installs_from_the_hub_into_its_own_python(alice, publish, target, start_in):
    folder = publish("-v", "PRIVATE")
    process = start_in(target.python, "vf_cli.main:install_main", f"{full(folder)}@0.1.0")
    out, err = process.communicate(timeout=50)
    assert process.returncode == 0, err
    assert "installed" in out
    assert target.has(folder.name)
    process = start_in(target.python, "vf_cli.main:install_main", "alice/not-there")
    _, err = process.communicate(timeout=50)
    assert (process.returncode, "no alice/not-there" in err) == (2, True)


def test_a_hub_without_hashes_or_with_wheels_elsewhere_is_not_trusted(alice, hub):
    source = HubSource(hub_settings())
    wanted = parse_hub_id("alice/x")
    sha256 = "0" * 64
    for details, said in [
        ({"semantic_version": "1", "wheel_url": f"{hub.url}/x.whl"}, "no wheel with a hash"),
        ({"semantic_version": "1", "wheel_url": None}, "no wheel with a hash"),
        ({"semantic_version": "1", "wheel_url": f"file:///x.whl#sha256={sha256}"}, "not http"),
        (
            {"semantic_version": "1", "wheel_url": f"http://u:t@127.0.0.1:1/x.whl#sha256={sha256}"},
            "another host",
        ),
    ]:
        with pytest.raises(HubMisbehaved, match=said):
            source._published(wanted, details)


# --- pulling ------------------------------------------------------------------------------------


def test_pulled_folders_do_not_overwrite_anything(prime, alice, publish):
    folder = publish()
    first, second = (prime("env", "pull", full(folder), "--json").json["folder"] for _ in range(2))
    assert (first, second) == (folder.name, f"{folder.name}-1")
    taken = prime("env", "pull", full(folder), "-t", first)
    assert (taken.code, "not an empty folder" in taken.err) == (2, True)
    Path("empty").mkdir()
    assert prime("env", "pull", f"{full(folder)}@0.1.0", "-t", "empty").code == 0
    assert prime("env", "pull", f"{full(folder)}@9.9").code == 1
    assert prime("env", "pull", f"{full(folder)}@0.1.0", "-v", "0.2.0").code == 2


def test_a_source_with_another_hash_is_not_unpacked(prime, as_person, publish, relay):
    as_person("alice", relay.url)
    folder = publish()
    relay.files_change = True
    done = prime("env", "pull", full(folder), "-t", "copy")
    assert (done.code, "sha256" in done.err, Path("copy").exists()) == (1, True, False)
    relay.files_change = False
    relay.statuses = [("/files/", 503)]
    assert prime("env", "pull", full(folder), "-t", "copy").code == 0


async def test_the_key_goes_to_no_other_host(hub, relay, alice, tmp_path):
    settings = hub_settings()
    assert settings.api_key == hub.token
    async with HubClient(settings) as client:
        url = f"{relay.url}/api/v1/environmentshub/?limit=1"
        await client.download(url, tmp_path / "x", sha256=None, max_bytes=10**6)
    assert [(p.method, p.authorization) for p in relay.passed] == [("GET", None)]


async def test_a_redirect_to_another_host_gets_no_key_and_no_body(hub, relay, alice, tmp_path):
    with relay_module.Relay(hub.url) as elsewhere:
        relay.redirects_to = elsewhere.url
        settings = hub_settings()._replace(base_url=relay.url)
        async with HubClient(settings) as client:
            assert "data" in await client.get("/environmentshub/")
            await client.download(
                f"{relay.url}/api/v1/environmentshub/", tmp_path / "x", sha256=None, max_bytes=10**6
            )
            with pytest.raises(HubMisbehaved, match="Nothing was sent there"):
                await client.post("/secrets/", {"name": "A", "value": "s3cr3t"})
        assert [p.authorization for p in relay.passed] == [f"Bearer {hub.token}"] * 3
        assert [(p.method, p.authorization) for p in elsewhere.passed] == [("GET", None)] * 2


# --- what goes into the archive -------------------------------------------------------------------


def test_the_archive_has_the_source_and_neither_secrets_nor_build_results(make_project, tmp_path):
    from verifiers.packages.build import build_environment

    folder = make_project(
        "packed-env",
        included=', "data.json"',
        files={
            "README.md": "# Hello",
            "data.json": "[1]",
            "notes.txt": "not for others",
            ".env": "KEY=1",
            ".gitignore": "ignored/\n*.log\n!kept.log\n/only_here.py\n",
            "helpers/tool.py": "X = 1",
            "helpers/a.log": "no",
            "helpers/kept.log": "yes",
            "helpers/.hidden/x": "no",
            "helpers/__pycache__/x.pyc": "no",
            "ignored/key.pem": "no",
            "only_here.py": "no",
            "helpers/only_here.py": "yes",
            "outputs/evals/run.jsonl": "no",
            "dist/old.whl": "no",
        },
    )
    (folder / "link.py").symlink_to("/etc/passwd")
    built = build_environment(folder, tmp_path)
    packed = pack(folder, built.wheel.path, tmp_path / "s.tar.gz")
    expected = [
        "README.md",
        "data.json",
        "helpers/kept.log",
        "helpers/only_here.py",
        "helpers/tool.py",
        "packed_env.py",
        "pyproject.toml",
    ]
    assert packed.members == expected
    again = pack(folder, built.wheel.path, tmp_path / "t.tar.gz")
    assert again._replace(path=packed.path) == packed
    (folder / "data.json").write_text("[2]")
    built = build_environment(folder, tmp_path)
    assert pack(folder, built.wheel.path, tmp_path / "t.tar.gz").content_hash != packed.content_hash
    assert unpack(tmp_path / "s.tar.gz", tmp_path / "copy") == expected
    assert json.loads((tmp_path / "copy" / "data.json").read_text()) == [1]


@pytest.mark.parametrize("command", ["prime", "vf-install"])
def test_a_yanked_version_says_why_when_it_is_installed(
    prime, alice, publish, target, start_in, command
):
    folder = publish()
    wanted = f"{full(folder)}@0.1.0"
    assert prime("env", "yank", wanted, "--reason", "one answer\x1b[2J was wrong").code == 0
    if command == "prime":
        done = prime("env", "install", wanted, "--python", target.python)
        code, err = done.code, done.err
    else:
        process = start_in(target.python, "vf_cli.main:install_main", wanted)
        _, err = process.communicate(timeout=120)
        code = process.returncode
    assert code == 0, err
    said = " ".join(err.split())
    assert "0.1.0 was yanked by its author" in said
    assert "one answer" in said
    assert "was wrong" in said
    assert "\x1b[2J" not in err
    again = prime("env", "install", wanted, "--python", target.python, "--json")
    assert "one answer" in again.json["environments"][0]["yanked"]
