"""Reading wheels: what a good one says, and that the builders people use make good ones."""

import base64
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from verifiers.packages.wheel import (
    WheelRejected,
    parse_filename,
    read_wheel,
    runtime_hint,
    unsafe_path,
)


@pytest.fixture(scope="session")
def built_wheel(tmp_path_factory):
    """A wheel made by hatchling, as the templates of environments are."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "My.Demo_env"\nversion = "1.2"\ndescription = "A demo"\n'
        'readme = "README.md"\nrequires-python = ">=3.11"\nlicense = "MIT"\n'
        'license-files = ["LICENSE"]\nkeywords = ["chess"]\n'
        'dependencies = ["verifiers>=0.1.8", "x @ https://example.org/x-1-py3-none-any.whl"]\n'
        '[project.entry-points."verifiers.environments"]\ndemo = "demo_env:load_environment"\n'
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        "[tool.hatch.metadata]\nallow-direct-references = true\n"
        '[tool.hatch.build.targets.wheel]\ninclude = ["demo_env.py", "data/*"]\n'
    )
    (folder / "README.md").write_text("# Demo — ünïcode\n")
    (folder / "LICENSE").write_text("MIT\n")
    (folder / "demo_env.py").write_text("def load_environment():\n    return 1\n")
    (folder / "data").mkdir()
    (folder / "data" / "rows.json").write_text("[]")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return next((folder / "dist").glob("*.whl"))


def test_a_built_wheel_says_everything_about_itself(built_wheel):
    manifest = read_wheel(built_wheel)
    assert (manifest.name, manifest.normalized_name) == ("My.Demo_env", "my-demo-env")
    assert (manifest.version, manifest.canonical_version) == ("1.2", "1.2")
    assert (manifest.summary, manifest.license) == ("A demo", "MIT")
    assert manifest.description == "# Demo — ünïcode\n"
    assert (manifest.keywords, manifest.requires_python) == (["chess"], ">=3.11")
    assert manifest.url_dependencies == ["x @ https://example.org/x-1-py3-none-any.whl"]
    assert manifest.top_level == ["data", "demo_env"]
    assert manifest.runtime_hint == "VERIFIERS_V0"
    [entry] = manifest.entry_points
    assert (entry.group, entry.value) == ("verifiers.environments", "demo_env:load_environment")
    with zipfile.ZipFile(built_wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith("METADATA"))
        assert manifest.metadata_text.encode() == archive.read(name)
    assert manifest.size_bytes == built_wheel.stat().st_size


def test_a_wheel_under_another_name_is_refused(built_wheel, tmp_path):
    other = tmp_path / "other-1.2-py3-none-any.whl"
    shutil.copy(built_wheel, other)
    with pytest.raises(WheelRejected, match="does not belong"):
        read_wheel(other)


def test_a_rewritten_wheel_is_refused(built_wheel, tmp_path):
    changed = tmp_path / built_wheel.name
    with zipfile.ZipFile(built_wheel) as source, zipfile.ZipFile(changed, "w") as target:
        for info in source.infolist():
            content = source.read(info)
            target.writestr(info, b"evil = 1\n" if info.filename == "demo_env.py" else content)
    with pytest.raises(WheelRejected, match=r"demo_env\.py"):
        read_wheel(changed)


@pytest.mark.parametrize(
    ("requirements", "hint"),
    [
        (["verifiers>=0.1.8"], "VERIFIERS_V0"),
        (["verifiers>=0.1.8,<0.2"], "VERIFIERS_V0"),
        (["verifiers<1"], "VERIFIERS_V0"),
        (["verifiers>=0.2.0"], "VERIFIERS_V1"),
        (["Verifiers==0.3.*"], "VERIFIERS_V1"),
        (["verifiers~=0.4.1"], "VERIFIERS_V1"),
        (["verifiers"], None),
        (["verifiers @ https://example.org/v.whl"], None),
        (['verifiers>=0.3; extra == "new"'], None),
        (["numpy>=1"], None),
        ([], None),
    ],
)
def test_the_api_is_known_by_the_lower_bound(requirements, hint):
    assert runtime_hint([Requirement(text) for text in requirements]) == hint


@pytest.mark.parametrize("name", ["a.py", "a/b.py", "a b/c", "é/x", "a" * 1000, ".hidden", "..a"])
def test_ordinary_paths_are_safe(name):
    assert unsafe_path(name) is None


@pytest.mark.parametrize(
    "name", ["", "/a", "a//b", "../a", "a/..", "a/./b", "a\\b", "C:a", "a\nb", "a\x7f", "a" * 1001]
)
def test_paths_that_leave_or_mislead_are_not(name):
    assert unsafe_path(name) is not None


@given(st.text(max_size=40))
def test_a_safe_path_stays_below_any_folder(name):
    if unsafe_path(name) is None:
        assert (Path("/base") / name).resolve().is_relative_to("/base")


@given(st.text(max_size=60))
def test_any_text_is_a_wheel_name_or_refused(name):
    try:
        project, version, tags = parse_filename(name)
    except WheelRejected:
        return
    assert project
    assert tags
    assert str(version)


# --- names in site-packages that belong to others -------------------------------------------------

PLACES = ["{}", "demo_env-0.1.0.data/purelib/{}", "demo_env-0.1.0.data/platlib/{}"]


def wheel_with(tmp_path, *paths):
    """A wheel of demo-env with these members beside its module."""
    wheel = tmp_path / "demo_env-0.1.0-py3-none-any.whl"
    info = "demo_env-0.1.0.dist-info"
    members = {
        "demo_env.py": "",
        **dict.fromkeys(paths, ""),
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: demo-env\nVersion: 0.1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={digest.decode()},{len(text)}\n")
    members[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in members.items():
            archive.writestr(path, text)
    return wheel


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("sitecustomize.py", "every start"),
        ("SiteCustomize.py", "every start"),
        ("usercustomize.py", "every start"),
        ("usercustomize/__init__.py", "every start"),
        ("sitecustomize.pyc", "every start"),
        ("sitecustomize.cpython-311-x86_64-linux-gnu.so", "every start"),
        ("_virtualenv.py", "every start"),
        ("evil.pth", "every start"),
        ("evil.start", "every start"),
        ("pip/__init__.py", "another package"),
        ("pip/_internal/cli/main.py", "another package"),
        ("setuptools/_distutils/x.py", "another package"),
        ("wheel.abi3.so", "another package"),
        ("verifiers/rubrics/rubric.py", "another package"),
        ("hub_server.py", "another package"),
        ("vf_cli/main.py", "another package"),
        ("numpy/core.so", "another package"),
        ("typing_extensions.py", "another package"),
        ("json/__init__.py", "Python itself"),
        ("random.py", "Python itself"),
        ("distutils/core.py", "Python itself"),
        ("__pycache__/typing_extensions.cpython-311.pyc", "compiled code"),
        ("requests-2.0.egg-info/PKG-INFO", "metadata of another package"),
        ("requests.egg-link", "metadata of another package"),
    ],
)
def test_names_that_belong_to_others_are_refused_wherever_they_land(tmp_path, place, path, words):
    with pytest.raises(WheelRejected, match=words):
        read_wheel(wheel_with(tmp_path, place.format(path)))


def test_metadata_of_another_package_in_the_data_folder_is_refused(tmp_path):
    path = "demo_env-0.1.0.data/purelib/requests-2.0.dist-info/METADATA"
    with pytest.raises(WheelRejected, match="metadata of another package"):
        read_wheel(wheel_with(tmp_path, path))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "path",
    [
        "demo_env/sitecustomize.py",
        "demo_env/json/__init__.py",
        "demo_env/__pycache__/x.cpython-311.pyc",
        "tests/test_demo.py",
        "utils.py",
        "random.json",
        "sitecustomize.txt",
        "poetry.py",
        "chess.py",
        "data/pip/rows.json",
        "pip_env.py",
    ],
)
def test_names_of_ones_own_are_accepted(tmp_path, place, path):
    assert read_wheel(wheel_with(tmp_path, place.format(path))).name == "demo-env"


def test_the_library_itself_may_have_its_own_names(tmp_path):
    wheel = wheel_with(tmp_path, "verifiers/__init__.py")
    assert read_wheel(wheel, is_library=True).top_level == ["demo_env", "verifiers"]
