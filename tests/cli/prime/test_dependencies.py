"""Environments that need other environments of the hub, and the library, in a virtual environment without either.

The package index of these tests belongs to an attacker, who has every name at version 99.0.
"""

import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from verifiers.packages.install import installed_from
from verifiers.packages.library import installed_library, write_library
from vf_cli.demo import venv_without_the_library

# What a stranger's package of the same version needs is what pip and uv do most differently; with both programs in the
# default run it stands for the other tests with pip, which takes several times as long.
PROGRAMS = ["uv", "pip"]
UV_AND_LONG_PIP = ["uv", pytest.param("pip", marks=pytest.mark.long)]
_file = Path(__file__).parents[2] / "verifiers" / "packages" / "wheels.py"
_spec = util.spec_from_file_location("prime_wheels", _file)
assert _spec is not None
assert _spec.loader is not None
wheels = sys.modules[_spec.name] = util.module_from_spec(_spec)
_spec.loader.exec_module(wheels)


@pytest.fixture
def evil_index(tmp_path, monkeypatch):
    """Puts packages on the index that the person's pip and uv ask."""
    root = tmp_path / "evil"
    root.mkdir()
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.setenv(name, root.as_uri())
    for name in ("PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")

    def put(name, version="99.0"):
        module = name.replace("-", "_")
        wheel = wheels.Wheel(name=name, version=version, metadata="")
        wheel.files = {f"{module}.py": b"def load_environment():\n    return 'evil'\n"}
        folder = root / name
        folder.mkdir(exist_ok=True)
        (folder / wheel.filename).write_bytes(wheel.bytes())
        links = "".join(f'<a href="{f.name}">{f.name}</a>\n' for f in folder.glob("*.whl"))
        (folder / "index.html").write_text(f"<!DOCTYPE html>{links}")

    return put


@pytest.fixture
def publish(prime, make_project):
    """Publish an environment that requires others; its `owner/name`."""

    def push(name, *requirements, version="0.1.0", visibility="PUBLIC", owner="alice"):
        listed = ", ".join(f"'{requirement}'" for requirement in requirements)
        folder = make_project(name, version=version, project=f"dependencies = [{listed}]")
        done = prime("env", "push", "-p", folder, "-v", visibility)
        assert done.code == 0, done.err
        return f"{owner}/{name}"

    return push


def text_of(target, name):
    return (target.site / f"{name.replace('-', '_')}.py").read_text()


@pytest.mark.parametrize("program", UV_AND_LONG_PIP)
def test_required_environments_are_the_hubs_and_never_a_strangers(
    prime, alice, publish, target, evil_index, program
):
    deep, priv, top = (f"{name}-{program}" for name in ("deep", "realpriv", "top"))
    publish(deep)
    publish(priv, f"{deep}>=0.1", visibility="PRIVATE")
    full = publish(top, priv)
    for name in (deep, priv, top):
        evil_index(name)
    done = prime("env", "install", full, "--with", program, "--python", target.python)
    assert done.code == 0, done.err
    for name in (deep, priv, top):
        assert "evil" not in text_of(target, name)
        found = installed_from(name, target.python)
        assert found is not None
        assert (found[0], f"/files/alice/{name}/" in (found[1] or "")) == ("0.1.0", True)
        assert "vfh_" not in (found[1] or "")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_strangers_package_of_the_same_version_is_replaced(
    prime, alice, publish, target, evil_index, program
):
    base, top = f"same-base-{program}", f"same-top-{program}"
    publish(base)
    full = publish(top, base)
    evil_index(base, "0.1.0")
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "pip", "install", "-q", "-p", target.python, base], check=True)
    assert "evil" in text_of(target, base)
    done = prime("env", "install", full, "--with", program, "--python", target.python)
    assert done.code == 0, done.err
    assert "evil" not in text_of(target, base)


@pytest.mark.parametrize("command", ["prime", "vf-install"])
def test_without_rights_to_a_required_environment_nothing_is_installed(
    prime, as_person, publish, target, evil_index, start_in, command
):
    as_person("alice")
    base, top = f"closed-{command}", f"open-{command}"
    publish(base, visibility="PRIVATE")
    full = publish(top, base)
    evil_index(base)
    as_person("bob")
    if command == "prime":
        done = prime("env", "install", full, "--python", target.python)
        code, err = done.code, done.err
    else:
        process = start_in(target.python, "vf_cli.main:install_main", full)
        _, err = process.communicate(timeout=120)
        code = process.returncode
    assert code == 1
    assert base in err.replace("\n", " ")
    assert not target.has(top.replace("-", "_"))
    assert not target.has(base.replace("-", "_"))


def test_a_lock_has_the_required_environments_of_the_hub(prime, alice, publish, target, evil_index):
    publish("locked-base")
    full = publish("locked-top", "locked-base")
    evil_index("locked-base")
    done = prime("env", "install", full, "--python", target.python, "--lock")
    assert done.code == 0, done.err
    lock = Path("pylock.toml").read_text()
    assert "/files/alice/locked-base/" in lock
    assert "99.0" not in lock


def test_info_has_the_whole_line_for_pip_and_uv(prime, alice, publish):
    publish("info-base")
    full = publish("info-top", "info-base")
    shown = prime("env", "info", full).out
    assert "info-top @ http" in shown
    assert "info-base @ http" in shown


# --- the library ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def colleague(tmp_path_factory):
    """A virtual environment with everything the library needs, but not the library."""
    return str(venv_without_the_library(tmp_path_factory.mktemp("colleague") / "venv"))


@pytest.fixture
def without_library(colleague):
    """The colleague's interpreter, which has no library before and after the test."""
    yield colleague
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "pip", "uninstall", "-q", "-p", colleague, "verifiers"], check=False)


def imports(python, code):
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("program", UV_AND_LONG_PIP)
def test_a_colleague_gets_this_library_and_not_the_public_one_of_the_same_name(
    prime, alice, publish, without_library, evil_index, program
):
    full = publish(f"needs-library-{program}", "verifiers>=1.0")
    evil_index("verifiers")
    evil_index("verifiers", "0.4.0")
    done = prime("env", "install", full, "--with", program, "--python", without_library)
    assert done.code == 0, done.err
    found = installed_from("verifiers", without_library)
    assert found is not None
    assert found[0] == installed_library().version
    assert imports(without_library, "import verifiers as vf; print(vf.SingleTurnEnv.__name__)")


def test_a_library_that_is_there_is_kept(prime, alice, publish, without_library, evil_index):
    scratch = Path("library")
    scratch.mkdir()
    wheel = write_library(installed_library(), scratch)
    uv = Path(sys.executable).with_name("uv")
    subprocess.run(
        [uv, "pip", "install", "-q", "--no-deps", "-p", without_library, str(wheel)], check=True
    )
    before = installed_from("verifiers", without_library)
    full = publish("keeps-library", "verifiers>=0.1.8")
    evil_index("verifiers")
    done = prime("env", "install", full, "--python", without_library)
    assert done.code == 0, done.err
    assert installed_from("verifiers", without_library) == before
    # What needs another library is refused, and the library stays.
    other = publish("other-library", "verifiers<0.5")
    evil_index("verifiers", "0.4.0")
    refused = prime("env", "install", other, "--python", without_library)
    assert (refused.code, "verifiers<0.5" in refused.err) == (1, True)
    assert installed_from("verifiers", without_library) == before
