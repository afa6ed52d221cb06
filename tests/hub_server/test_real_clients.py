"""The programs that people have, unmodified, against a served hub on loopback.

The short part uses uv and the pip inside Python. The long part installs twine, poetry and three generations
of the public `prime` command from the machine's package index, each into an environment of its own.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import httpx
import pytest

PRIME_VERSIONS = {
    # Its own requirement has no upper bound, and newer SDKs have lost names it imports.
    "0.5.3": ["prime==0.5.3", "prime-sandboxes==0.2.6", "prime-evals==0.1.6"],
    "0.7.7": ["prime==0.7.7"],
    "0.18.0": ["prime==0.18.0"],
}


@pytest.fixture(scope="module")
def uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        pytest.skip("uv is not installed")
    return found


@pytest.fixture(scope="module")
def old_pip(tmp_path_factory) -> list[str]:
    """The pip that Python brings along, which needs no network to get."""
    folder = tmp_path_factory.mktemp("pip") / "venv"
    venv.create(folder, with_pip=True)
    return [str(folder / "bin" / "python"), "-m", "pip", "--isolated"]


@pytest.fixture
def call(tmp_path):
    """Runs a program without this machine's proxies, settings and caches."""

    def run(*command, check=True, cwd=None, **variables):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_", "PRIME_"))}
        environment = {
            **kept,
            "HOME": str(tmp_path),
            "NO_PROXY": "127.0.0.1,localhost",
            "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "TERM": "dumb",
            "COLUMNS": "200",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **variables,
        }
        result = subprocess.run(
            [str(part) for part in command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=cwd or tmp_path,
        )
        if check:
            assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        return result

    return run


def publish(hub, wheel, *, visibility="public"):
    body = wheel.bytes()
    answer = httpx.post(
        f"{hub.url}/legacy/?visibility={visibility}",
        headers={"Authorization": f"Bearer {hub.token}"},
        data={":action": "file_upload", "name": wheel.name, "version": wheel.version},
        files={"content": (wheel.filename, body)},
    )
    assert answer.status_code == 200, answer.text


def with_credentials(hub, path):
    return f"http://__token__:{hub.token}@127.0.0.1:{hub.port}{path}"


@pytest.fixture(scope="module")
def stocked_hub(live_hub_on_each_ground, wheel):
    """A hub with a public and a private environment."""
    hub = live_hub_on_each_ground
    publish(hub, wheel())
    publish(hub, wheel(version="0.2.0"))
    hidden = wheel(name="hidden-env", files={"hidden_env.py": b"X = 1\n"})
    publish(hub, hidden, visibility="private")
    return hub


# --- uv and pip -------------------------------------------------------------------------------


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
    stocked_hub, uv, old_pip, call, tmp_path, program, way
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


def test_uv_finds_a_version_that_was_published_a_moment_ago(stocked_hub, uv, call, tmp_path, wheel):
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


# --- twine, poetry, prime ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(uv, tmp_path_factory):
    """Makes an environment with a package from the machine's index; its `bin` folder."""
    made: dict[str, Path] = {}

    def get(*requirements: str) -> Path:
        key = " ".join(requirements)
        if key not in made:
            folder = tmp_path_factory.mktemp("client") / "venv"
            subprocess.run([uv, "venv", "-q", "-p", sys.executable, str(folder)], check=True)
            python = str(folder / "bin" / "python")
            subprocess.run([uv, "pip", "install", "-q", "-p", python, *requirements], check=True)
            made[key] = folder / "bin"
        return made[key]

    return get


@pytest.mark.long
@pytest.mark.timeout(300)
def test_twine_uploads_and_shows_why_the_hub_refuses(stocked_hub, installed, call, tmp_path, wheel):
    twine = installed("twine") / "twine"
    made = wheel(name="twine-env", files={"twine_env.py": b""})
    path = tmp_path / made.filename
    path.write_bytes(made.bytes())
    command = [
        twine,
        "upload",
        "--non-interactive",
        "--disable-progress-bar",
        "--repository-url",
        f"{stocked_hub.url}/alice/legacy/",
        "-u",
        "__token__",
        "-p",
        stocked_hub.token,
    ]
    call(*command, path)
    path.write_bytes(wheel(name="twine-env", files={"twine_env.py": b"X = 2\n"}).bytes())
    refused = call(*command, path, check=False)
    assert refused.returncode != 0
    assert "409" in refused.stdout + refused.stderr


@pytest.mark.long
@pytest.mark.timeout(300)
def test_poetry_adds_a_dependency_from_the_hub(stocked_hub, installed, call, tmp_path, wheel):
    poetry = installed("poetry") / "poetry"
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "0"\nrequires-python = ">=3.11,<4"\n'
        "[tool.poetry]\npackage-mode = false\n"
        f'[[tool.poetry.source]]\nname = "hub"\nurl = "{stocked_hub.url}/alice/other-env/simple/"\n'
        'priority = "explicit"\n'
    )
    publish(stocked_hub, wheel(name="other-env", metadata="", files={"other_env.py": b""}))
    call(poetry, "add", "--lock", "--no-interaction", "--source", "hub", "other-env", cwd=project)
    lock = (project / "poetry.lock").read_text()
    assert 'name = "other-env"' in lock
    assert "sha256:" in lock


@pytest.mark.long
@pytest.mark.timeout(300)
def test_poetry_publishes_and_installs_a_private_environment(
    stocked_hub, installed, call, tmp_path
):
    poetry = installed("poetry") / "poetry"
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "poetry-env"\nversion = "0.1.0"\nrequires-python = ">=3.11"\n'
        '[tool.poetry]\npackages = [{ include = "poetry_env.py" }]\n'
        '[build-system]\nrequires = ["poetry-core"]\nbuild-backend = "poetry.core.masonry.api"\n'
    )
    (project / "poetry_env.py").write_text("X = 1\n")
    (project / "poetry.toml").write_text(
        f'[repositories.hub]\nurl = "{stocked_hub.url}/alice/legacy/?visibility=private"\n'
    )
    login = {"POETRY_HTTP_BASIC_HUB_USERNAME": "__token__"}
    login["POETRY_HTTP_BASIC_HUB_PASSWORD"] = stocked_hub.token
    call(poetry, "build", cwd=project, **login)
    call(poetry, "publish", "--no-interaction", "-r", "hub", cwd=project, **login)
    call(poetry, "publish", "--no-interaction", "-r", "hub", cwd=project, **login)  # the same again
    user = tmp_path / "user"
    user.mkdir()
    (user / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "0"\nrequires-python = ">=3.11,<4"\n'
        "[tool.poetry]\npackage-mode = false\n"
        f'[[tool.poetry.source]]\nname = "hub"\nurl = "{stocked_hub.url}/alice/poetry-env/simple/"\n'
        'priority = "explicit"\n'
    )
    login["POETRY_VIRTUALENVS_IN_PROJECT"] = "true"
    call(poetry, "add", "--no-interaction", "--source", "hub", "poetry-env", cwd=user, **login)
    assert list((user / ".venv").rglob("poetry_env.py"))
    assert stocked_hub.token not in (user / "poetry.lock").read_text()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["20.3.4", "22.3.1", "25.3", "26.3"])
def test_other_generations_of_pip_install(stocked_hub, installed, call, tmp_path, version):
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


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", PRIME_VERSIONS)
def test_the_public_prime_command_works_unmodified(
    stocked_hub, installed, uv, call, tmp_path, version
):
    prime = installed(*PRIME_VERSIONS[version]) / "prime"
    name = f"env-{version.replace('.', '-')}"
    module = name.replace("-", "_")
    project = tmp_path / "environments" / module
    project.mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "0.1.0"\ndescription = "made by {version}"\n'
        'readme = "README.md"\n[build-system]\nrequires = ["hatchling"]\n'
        'build-backend = "hatchling.build"\n'
        f'[tool.hatch.build]\ninclude = ["{module}.py"]\n'
    )
    (project / "README.md").write_text("# Hello\n")
    (project / f"{module}.py").write_text("def load_environment():\n    return 1\n")
    target = tmp_path / "venv"
    call(uv, "venv", "-q", "-p", sys.executable, target)
    settings = {
        "PRIME_API_BASE_URL": stocked_hub.url,
        "PRIME_API_KEY": stocked_hub.token,
        "PRIME_FRONTEND_URL": stocked_hub.url,
        "PRIME_TRACES_URL": stocked_hub.url,
        "PRIME_DISABLE_VERSION_CHECK": "1",
        "VIRTUAL_ENV": str(target),
        # The build of the wheel needs hatchling from the machine's own index.
        **{k: v for k, v in os.environ.items() if k.startswith(("UV_", "PIP_"))},
    }

    def run(*arguments, check=True):
        return call(prime, *arguments, check=check, **settings)

    assert "alice" in run("whoami").stdout
    pushed = run("env", "push", "--path", project)
    assert "alice" in pushed.stdout
    again = run("env", "push", "--path", project, check=False)
    assert again.returncode == 1
    assert "already exists" in again.stdout.lower() or "auto-bump" in again.stdout
    run("env", "push", "--path", project, "--auto-bump")
    assert f"alice/{name}" in run("env", "list").stdout
    assert f"made by {version}" in run("env", "info", f"alice/{name}").stdout
    versions = run("env", "version", "list", f"alice/{name}").stdout
    assert "0.1.0" in versions
    assert "0.1.1" in versions
    installed_output = run("env", "install", f"alice/{name}@0.1.0")
    # Newer ones install into the active environment, older ones into their own.
    sites = [
        folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / f"{module}.py"
        for folder in (target, prime.parent.parent)
    ]
    assert any(site.exists() for site in sites), installed_output.stdout
    run("env", "pull", f"alice/{name}", "--target", tmp_path / "pulled")
    assert (tmp_path / "pulled" / f"{module}.py").exists()
    if version != "0.5.3":
        assert f"{module}.py" in run("env", "inspect", f"alice/{name}").stdout
        run("env", "status", f"alice/{name}")
        run("env", "secret", "create", f"alice/{name}", "--name", "API_KEY", "--value", "s3cret")
        assert "API_KEY" in run("env", "secret", "list", f"alice/{name}").stdout
    results = tmp_path / "outputs" / "evals" / "run" / "1"
    results.mkdir(parents=True)
    (results / "metadata.json").write_text(
        json.dumps(
            {
                "env_id": f"alice/{name}",
                "env": f"alice/{name}",
                "model": "m",
                "num_examples": 2,
                "rollouts_per_example": 1,
                "avg_reward": 0.5,
            }
        )
    )
    rows = [{"id": i, "example_id": i, "reward": i, "prompt": [], "completion": []} for i in (0, 1)]
    (results / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("eval", "push", results, "--env", f"alice/{name}")
    headers = {"Authorization": f"Bearer {stocked_hub.token}"}
    page = httpx.get(
        f"{stocked_hub.url}/api/v1/evaluations/",
        headers=headers,
        params={"environment_name": f"alice/{name}"},
    ).json()
    assert [(e["status"], e["total_samples"]) for e in page["evaluations"]] == [("COMPLETED", 2)]
    evaluation_id = page["evaluations"][0]["id"]
    assert evaluation_id[:8] in run("eval", "list").stdout
    run("eval", "get", evaluation_id)
    run("eval", "samples", evaluation_id)
    assert run("env", "install", "alice/missing-env", check=False).returncode == 1
    run("env", "version", "delete", f"alice/{name}", _content_hash(stocked_hub, name), "--force")
    remaining = httpx.get(f"{stocked_hub.url}/api/v1/environmentshub/alice/{name}/versions").json()
    assert [row["version"] for row in remaining["data"]["versions"]] == ["0.1.0"]


def _content_hash(hub, name):
    rows = httpx.get(f"{hub.url}/api/v1/environmentshub/alice/{name}/versions").json()
    return rows["data"]["versions"][0]["content_hash"]


EVALS_SCRIPT = """
import sys
from prime_evals import APIClient, EvalsClient
from prime_evals.core import APIError

evals = EvalsClient(APIClient())
environment, count = sys.argv[1], int(sys.argv[2])
made = evals.create_evaluation(
    "by the library alone",
    environments=[{"slug": environment}],
    model_name="m",
    dataset="d",
    tags=["nightly"],
    metadata={"num_examples": count},
)
key = made["evaluation_id"]
rows = [{"example_id": i, "rollout_number": 0, "reward": 1.0, "prompt": "p" * 40_000} for i in range(count)]
evals.push_samples(key, rows)
evals.push_samples(key, rows)  # as after a connection that broke before the answer
evals.update_evaluation(key, description="changed")
evals.finalize_evaluation(key, metrics={"reward": 1.0})
evals.finalize_evaluation(key, metrics={"reward": 1.0})
read = evals.get_evaluation(key)
assert read["status"] == "COMPLETED", read
assert (read["total_samples"], read["tags"], read["description"]) == (count, ["nightly"], "changed")
assert read["metrics"] == {"reward": 1.0}, read
found, page = [], 1
while (answer := evals.get_samples(key, page=page, limit=300))["samples"]:
    found += answer["samples"]
    page += 1
assert sorted(row["example_id"] for row in found) == list(range(count))
[listed] = evals.list_evaluations(env_name=environment)["evaluations"]
assert listed["environment_names"] == [environment]
try:
    evals.get_evaluation("missing")
except APIError as error:
    assert "not found" in str(error), error
else:
    raise AssertionError("a missing evaluation was found")
"""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["0.1.6", "0.2.4"])
def test_the_evaluations_library_works_without_the_command(
    stocked_hub, installed, call, tmp_path, wheel, version
):
    """Newer ones send 41 MB as parallel batches, 0.1.6 everything in one request."""
    name = f"evals-{version.replace('.', '-')}"
    publish(stocked_hub, wheel(name=name, files={f"{name.replace('-', '_')}.py": b""}))
    python = installed(f"prime-evals=={version}") / "python"
    (tmp_path / "evals.py").write_text(EVALS_SCRIPT)
    count = 1000 if version != "0.1.6" else 400
    settings = {"PRIME_API_BASE_URL": stocked_hub.url, "PRIME_API_KEY": stocked_hub.token}
    call(python, "evals.py", f"alice/{name}", count, **settings)
