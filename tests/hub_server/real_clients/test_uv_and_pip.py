"""uv and three generations of pip against a served hub on loopback; the long part installs the other pips."""

import sys

import httpx
import pytest


@pytest.mark.parametrize("index", ["/alice/simple/", "/alice/demo-env/simple/"])
def test_uv_installs_from_an_owners_and_an_environments_index(
    stocked_hub, uv, call, tmp_path, index
):
    result = call(
        uv,
        "pip",
        "install",
        "--no-deps",
        "--target",
        "site",
        "--index-url",
        stocked_hub.url + index,
        "demo_env==0.1.0",
    )
    assert "demo-env==0.1.0" in result.stderr
    assert (tmp_path / "site" / "demo_env.py").read_text() == "X = 1\n"


def test_pip_installs_the_newest_version(stocked_hub, old_pip, call, tmp_path):
    call(
        *old_pip,
        "install",
        "--no-deps",
        "--target",
        "site",
        "--index-url",
        f"{stocked_hub.url}/alice/demo-env/simple/",
        "demo-env",
    )
    assert (tmp_path / "site" / "demo_env-0.2.0.dist-info").exists()


@pytest.mark.parametrize("way", ["address", "netrc"])
@pytest.mark.parametrize("program", ["uv", "pip"])
def test_a_private_environment_installs_with_a_token(
    stocked_hub, uv, old_pip, call, tmp_path, program, way, with_credentials
):
    path = "/alice/hidden-env/simple/"
    if way == "netrc":
        netrc = tmp_path / ".netrc"
        netrc.write_text(f"machine 127.0.0.1 login __token__ password {stocked_hub.token}\n")
        netrc.chmod(0o600)
    index = with_credentials(stocked_hub, path) if way == "address" else stocked_hub.url + path
    # --isolated would make pip ignore .netrc's place, HOME is the test's own anyway.
    command = [uv, "pip"] if program == "uv" else old_pip
    call(*command, "install", "--no-deps", "--target", "site", "--index-url", index, "hidden-env")
    assert (tmp_path / "site" / "hidden_env.py").exists()


@pytest.mark.parametrize("program", ["uv", "pip"])
def test_strangers_do_not_install_a_private_environment(stocked_hub, uv, old_pip, call, program):
    command = [uv, "pip"] if program == "uv" else [*old_pip[:3], "--isolated", "--no-input"]
    result = call(
        *command,
        "install",
        "--no-deps",
        "--target",
        "site",
        "--index-url",
        f"{stocked_hub.url}/alice/hidden-env/simple/",
        "hidden-env",
        check=False,
    )
    assert result.returncode != 0


@pytest.mark.parametrize("program", ["uv", "pip"])
def test_the_direct_requirement_installs_and_a_wrong_hash_is_noticed(
    stocked_hub, uv, old_pip, call, tmp_path, program
):
    details = httpx.get(f"{stocked_hub.url}/api/v1/environmentshub/alice/demo-env/@0.1.0").json()
    requirement = details["data"]["install"]["requirement"]
    command = [uv, "pip"] if program == "uv" else old_pip
    call(*command, "install", "--no-deps", "--target", "site", requirement)
    assert (tmp_path / "site" / "demo_env-0.1.0.dist-info").exists()
    wrong = requirement[:-4] + "0000"
    result = call(*command, "install", "--no-deps", "--target", "b", wrong, check=False)
    assert result.returncode != 0


@pytest.mark.parametrize("program", ["uv", "pip"])
def test_another_index_with_a_higher_version_never_wins(
    stocked_hub, uv, old_pip, call, tmp_path, program, wheel
):
    """Dependency confusion: an attacker owns the same name, at 99.0, on the user's normal index."""
    folder = tmp_path / "attacker" / "demo-env"
    folder.mkdir(parents=True)
    evil = wheel(version="99.0", files={"demo_env.py": b"EVIL = 1\n"})
    (folder / evil.filename).write_bytes(evil.bytes())
    links = f'<!DOCTYPE html><a href="{evil.filename}">{evil.filename}</a>'
    (folder / "index.html").write_text(links)
    details = httpx.get(f"{stocked_hub.url}/api/v1/environmentshub/alice/demo-env/@latest").json()
    requirement = details["data"]["install"]["requirement"]
    command = [uv, "pip"] if program == "uv" else old_pip
    attacker = (tmp_path / "attacker").as_uri()
    call(*command, "install", "--no-deps", "--target", "site", "--index-url", attacker, requirement)
    assert (tmp_path / "site" / "demo_env-0.2.0.dist-info").exists()


def test_uv_finds_a_version_that_was_published_a_moment_ago(
    stocked_hub, uv, call, tmp_path, wheel, publish
):
    name = "fresh-env"
    index = f"{stocked_hub.url}/alice/{name}/simple/"
    for version in ("1.0", "2.0"):
        publish(stocked_hub, wheel(name=name, version=version, files={"fresh_env.py": b""}))
        call(
            uv,
            "pip",
            "install",
            "--no-deps",
            "--target",
            f"site{version}",
            "--index-url",
            index,
            f"{name}=={version}",
        )
        assert (tmp_path / f"site{version}" / f"fresh_env-{version}.dist-info").exists()


def test_uv_locks_with_hash_size_and_time(stocked_hub, uv, call, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    index = f"{stocked_hub.url}/alice/demo-env/simple/"
    verifiers = tmp_path / "verifiers"
    verifiers.mkdir()
    (verifiers / "pyproject.toml").write_text('[project]\nname = "verifiers"\nversion = "1.0.0"\n')
    (project / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "0"\nrequires-python = ">=3.11"\n'
        'dependencies = ["demo-env", "verifiers"]\n'
        f'[[tool.uv.index]]\nname = "h"\nurl = "{index}"\nexplicit = true\n'
        '[tool.uv.sources]\ndemo-env = { index = "h" }\nverifiers = { path = "../verifiers" }\n'
    )
    call(
        uv,
        "lock",
        "-q",
        cwd=project,
        UV_PYTHON=sys.executable,
        UV_NO_BUILD_ISOLATION="1",
    )
    lock = (project / "uv.lock").read_text()
    assert "upload-time" in lock
    assert "size = " in lock
    assert "sha256:" in lock


def test_uv_publishes_and_says_what_the_hub_refuses(stocked_hub, uv, call, tmp_path, wheel):
    made = wheel(name="uv-env", files={"uv_env.py": b""})
    (tmp_path / made.filename).write_bytes(made.bytes())
    command = [
        uv,
        "publish",
        "--publish-url",
        f"{stocked_hub.url}/legacy/",
        "--token",
        stocked_hub.token,
        "--trusted-publishing",
        "never",
    ]
    call(*command, tmp_path / made.filename)
    call(*command, tmp_path / made.filename)  # the same again
    other = wheel(name="uv-env", files={"uv_env.py": b"X = 2\n"})
    (tmp_path / other.filename).write_bytes(other.bytes())
    refused = call(*command, tmp_path / made.filename, check=False)
    assert refused.returncode != 0
    assert "bump the version" in refused.stderr.replace("\n", " ")
    call(
        *command,
        "--check-url",
        f"{stocked_hub.url}/alice/uv-env/simple/",
        tmp_path / made.filename,
        check=False,
    )


def test_pip_installs_from_the_static_export_without_a_server(stocked_hub, old_pip, call, tmp_path):
    stocked_hub.run("export", str(tmp_path / "mirror"))
    index = (tmp_path / "mirror" / "alice" / "simple").as_uri()
    call(
        *old_pip,
        "install",
        "--no-deps",
        "--target",
        "site",
        "--index-url",
        index,
        "demo-env==0.1.0",
    )
    assert (tmp_path / "site" / "demo_env.py").exists()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["20.3.4", "22.3.1", "25.3", "26.3"])
def test_other_generations_of_pip_install(
    stocked_hub, installed, call, tmp_path, version, with_credentials
):
    python = installed(f"pip=={version}", "setuptools<80") / "python"
    for path, name in (("/alice/simple/", "demo-env"), ("/alice/hidden-env/simple/", "hidden-env")):
        call(
            python,
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--target",
            name,
            "--index-url",
            with_credentials(stocked_hub, path),
            name,
            PYTHONWARNINGS="ignore",
        )
        assert (tmp_path / name / f"{name.replace('-', '_')}.py").exists()
