import hashlib
import importlib.metadata
import json
import subprocess
from types import SimpleNamespace

import pytest

from verifiers.configs import ClientConfig
from verifiers.runs.description import (
    canonical_sha256,
    dataset,
    endpoint_url,
    environment,
    get_commit_for_path,
    get_env_commit,
    get_env_version,
    get_package_source_path,
    get_version_info,
    get_vf_version,
    module_name,
    provenance,
    record_sha256,
    tree_sha256,
    without_credentials,
    without_secrets,
)
from verifiers.types import Tool


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Install a package by writing what an installer writes; gives a function that does it."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))

    def install(name, record, direct_url=None):
        info = site / f"{name}-1.2.3.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")
        (info / "RECORD").write_text(record)
        if direct_url is not None:
            (info / "direct_url.json").write_text(json.dumps(direct_url))
        (site / f"{name}.py").write_text("x = 1\n")
        return importlib.metadata.distribution(name)

    return install


WHEEL = "demo_env.py,sha256=abc,6\ndemo_env-1.2.3.dist-info/METADATA,sha256=def,50\ndemo_env-1.2.3.dist-info/RECORD,,\n"


def test_everything_is_known_of_an_installed_environment(packages):
    packages("demo_env", WHEEL)
    found = provenance(
        env_id="owner/demo-env@1.2.3",
        client=ClientConfig(api_base_url="http://user:key@host:8000/v1"),
        sampling_args={"temperature": 1, "extra_headers": {"Authorization": "Bearer x"}},
        system_prompt="Be brief.",
        tools=[Tool(name="add", description="", parameters={})],
        input_keys=["a", "b"],
    )
    assert found["library"]["version"] == get_vf_version()
    assert found["environment"]["version"] == "1.2.3"
    assert len(found["environment"]["wheel_sha256"]) == 64
    assert found["dataset"] == {"rows": 2, "sha256": hashlib.sha256(b"a\nb\n").hexdigest()}
    assert found["sampling"] == {"temperature": 1, "extra_headers": {"Authorization": "[removed]"}}
    assert found["prompt"]["system_prompt_sha256"] == hashlib.sha256(b"Be brief.").hexdigest()
    assert len(found["prompt"]["tools_sha256"]) == 64
    assert found["endpoint"] == "http://host:8000/v1"
    assert found["client_type"] == "openai_chat_completions"
    assert found["python"].startswith("3.")
    json.dumps(found)
    assert "key" not in json.dumps(found["endpoint"])


def test_little_is_known_of_nothing():
    found = provenance(env_id="no-such-environment")
    assert found["environment"] == {
        "id": "no-such-environment",
        "package": None,
        "version": None,
        "commit": None,
        "wheel_sha256": None,
        "source_sha256": None,
    }
    assert (found["endpoint"], found["client_type"]) == ("", None)
    assert found["prompt"] == {"system_prompt_sha256": None, "tools_sha256": None}


# --- environment


def test_the_wheel_hash_does_not_depend_on_the_installer(packages):
    by_uv = packages("demo_env", WHEEL)
    by_pip = packages(
        "other_env",
        "../../../bin/demo,sha256=zzz,5\n__pycache__/demo_env.cpython-311.pyc,,\n"
        "demo_env-1.2.3.dist-info/INSTALLER,sha256=xyz,4\ndemo_env-1.2.3.dist-info/direct_url.json,sha256=q,1\n"
        + "".join(reversed(WHEEL.splitlines(keepends=True))),
    )
    changed = packages("third_env", WHEEL.replace("abc", "abd"))
    assert record_sha256(by_uv) == record_sha256(by_pip)
    assert record_sha256(by_uv) != record_sha256(changed)


def test_an_editable_environment_is_known_by_its_source(packages, tmp_path):
    project = tmp_path / "my project"
    project.mkdir()
    (project / "demo_env.py").write_text("x = 1")
    packages("demo_env", WHEEL, {"url": project.as_uri(), "dir_info": {"editable": True}})
    found = environment("demo-env")
    assert found["wheel_sha256"] is None
    assert found["source_sha256"] == tree_sha256(project)


def test_an_environment_loaded_from_a_folder_is_known_by_that(tmp_path):
    (tmp_path / "demo_env.py").write_text("x = 1")
    assert environment("demo-env", tmp_path)["source_sha256"] == tree_sha256(tmp_path)


def test_the_source_hash_sees_content_and_names_but_no_build_products(tmp_path):
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.txt").write_text("2")
    first = tree_sha256(tmp_path)
    for name in ("__pycache__", "outputs", ".git", "dist", "x.egg-info"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("noise")
    (tmp_path / "a.pyc").write_text("noise")
    (tmp_path / ".hidden").write_text("noise")
    assert tree_sha256(tmp_path) == first
    (tmp_path / "data" / "rows.txt").write_text("3")
    second = tree_sha256(tmp_path)
    (tmp_path / "data" / "rows.txt").rename(tmp_path / "data" / "lines.txt")
    assert len({first, second, tree_sha256(tmp_path)}) == 3


def test_a_folder_with_too_many_files_is_not_hashed(tmp_path, monkeypatch):
    monkeypatch.setattr("verifiers.runs.description.MAX_TREE_FILES", 2)
    for name in "abc":
        (tmp_path / name).write_text("")
    assert tree_sha256(tmp_path) is None


# --- secrets


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host:8000/v1", "http://host:8000/v1"),
        ("https://user:pass@host/v1/", "https://host/v1/"),
        ("https://token@host:1/v1", "https://host:1/v1"),
        (
            "https://host/v1?key=secret&api-version=2024-01",
            "https://host/v1?key=[removed]&api-version=2024-01",
        ),
        ("http://a:b@[::1]:80/v1?x=1#frag", "http://[::1]:80/v1?x=[removed]"),
        ("http://[bad/v1?key=1", "[removed]"),
        ("", ""),
    ],
)
def test_urls_keep_no_credentials(url, expected):
    assert without_credentials(url) == expected


def test_endpoints_are_found_in_configs_and_clients():
    from openai import AsyncOpenAI

    several = ClientConfig(
        endpoint_configs=[{"api_base_url": "http://a/v1"}, {"api_base_url": "http://k@b/v1"}]
    )  # type: ignore[list-item]
    assert endpoint_url(several) == "http://a/v1,http://b/v1"
    assert endpoint_url(AsyncOpenAI(api_key="x", base_url="http://h:1/v1/")) == "http://h:1/v1/"
    assert (
        endpoint_url(SimpleNamespace(client=SimpleNamespace(base_url="http://inner/v1")))
        == "http://inner/v1"
    )
    assert (
        endpoint_url(SimpleNamespace(config=ClientConfig(api_base_url="http://c/v1")))
        == "http://c/v1"
    )
    assert endpoint_url(object()) == endpoint_url(None) == ""


def test_settings_keep_no_secrets_at_any_depth():
    settings = {
        "a": [{"X-API-Key": "1", "openai_api_key": "2"}],
        "max_tokens": 5,
        "token": "3",
        "top_p": 1.0,
    }
    assert without_secrets(settings) == {
        "a": [{"X-API-Key": "[removed]", "openai_api_key": "[removed]"}],
        "max_tokens": 5,
        "token": "[removed]",
        "top_p": 1.0,
    }


def test_equal_content_has_an_equal_hash():
    assert canonical_sha256({"a": 1, "b": [2]}) == canonical_sha256({"b": (2,), "a": 1})
    assert canonical_sha256({"a": 1}) != canonical_sha256({"a": 2})
    assert dataset(["a", "b"]) != dataset(["b", "a"])


# --- versions


def test_versions_of_installed_packages_and_of_nothing():
    assert get_env_version("numpy") == importlib.metadata.version("numpy")
    assert get_env_version("owner/numpy@1") == importlib.metadata.version("numpy")
    assert get_env_version("no-such-environment") is None
    assert get_package_source_path("numpy").name == "numpy"
    assert get_package_source_path("no-such-environment") is None
    assert get_package_source_path("this").name == "this.py"
    assert module_name("owner/my-env@1.0") == "my_env"
    info = get_version_info("no-such-environment")
    assert list(info) == ["vf_version", "vf_commit", "env_version", "env_commit"]
    assert info["env_version"] is None


def test_an_environment_installed_from_git_knows_its_commit(packages):
    packages(
        "demo_env",
        WHEEL,
        {"url": "https://x/y.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
    )
    assert get_env_commit("demo-env") == "c0ffee"


def test_the_commit_is_that_of_tracked_files_only(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "tracked.py").write_text("")
    git("add", "tracked.py")
    git("commit", "-q", "-m", "first")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "package.py").write_text("")
    assert get_commit_for_path(tmp_path / "tracked.py") == git("rev-parse", "HEAD")
    assert get_commit_for_path(tmp_path) == git("rev-parse", "HEAD")
    assert get_commit_for_path(tmp_path / ".venv") is None
    assert get_commit_for_path(tmp_path / ".venv" / "package.py") is None


def test_there_is_no_commit_outside_of_a_repository(tmp_path):
    assert get_commit_for_path(tmp_path) is None
    assert get_commit_for_path(tmp_path / "missing" / "file") is None
