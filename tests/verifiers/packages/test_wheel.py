"""The wheel check: the manifest of a good wheel, and the reason for which a hostile one is refused."""

import gzip
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from wheels import Wheel

from verifiers.packages.wheel import (
    WheelRejected,
    parse_filename,
    read_wheel,
    runtime_hint,
    unsafe_path,
)


def written(folder, wheel):
    """The path of the wheel, written to the folder."""
    path = folder / wheel.filename
    path.write_bytes(wheel.bytes())
    return path


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
    return written(tmp_path, Wheel(files={"demo_env.py": b"", **dict.fromkeys(paths, b"")}))


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


# --- hostile wheels -------------------------------------------------------------------------------
# The numbers are those of the threats in docs/hub.md.


def zip_with(change):
    """A `write` for the wheel builder that adds something after the normal members."""

    def write(archive, members):
        for path, content in members:
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), content)
        change(archive)

    return write


def link_member(archive):
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    archive.writestr(info, "/etc/passwd")


BOMB = b"\0" * (70 * 1024**2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"files": {"demo_env.py": b"", "bomb": BOMB}}, "bomb"),
        ({"files": {"../../evil.pth": b"x"}}, ".."),
        ({"files": {"/abs.py": b"x"}}, "absolute"),
        ({"files": {"a\\b.py": b"x"}}, "backslash"),
        ({"files": {"C:/x.py": b"x"}}, "colon"),
        ({"files": {"a/./b.py": b"x"}}, "part"),
        ({"files": {"a.py": b"", "A.py": b""}}, "same file"),
        ({"files": {"evil.pth": b"import os"}}, "every start"),
        ({"files": {"evil.PTH": b"import os"}}, "every start"),
        ({"files": {"sitecustomize.py": b""}}, "every start"),
        ({"files": {"usercustomize.py": b""}}, "every start"),
        ({"files": {"_virtualenv.py": b""}}, "every start"),
        ({"files": {"SiteCustomize.py": b""}}, "every start"),
        ({"files": {"sitecustomize/__init__.py": b""}}, "every start"),
        ({"files": {"sitecustomize.cpython-311-x86_64-linux-gnu.so": b""}}, "every start"),
        ({"files": {"demo_env-0.1.0.data/purelib/usercustomize.pyc": b""}}, "every start"),
        ({"files": {"pip/__init__.py": b""}}, "belongs to another package"),
        ({"files": {"Pip/__init__.py": b""}}, "belongs to another package"),
        ({"files": {"verifiers/types.py": b""}}, "belongs to another package"),
        ({"files": {"setuptools/x.py": b""}}, "belongs to another package"),
        ({"files": {"pkg_resources/x.py": b""}}, "belongs to another package"),
        ({"files": {"openai.py": b""}}, "belongs to another package"),
        ({"files": {"sklearn.py": b""}}, "belongs to another package"),
        ({"files": {"demo_env-0.1.0.data/platlib/numpy/x.py": b""}}, "belongs to another package"),
        (
            {"files": {"demo_env-0.1.0.data/purelib/pip-99.dist-info/METADATA": b""}},
            "pose as the metadata",
        ),
        ({"files": {"demo_env-0.1.0.data/scripts/ls": b"#!python"}}, "outside site-packages"),
        ({"files": {"demo_env-0.1.0.data/data/etc/x": b""}}, "outside site-packages"),
        ({"files": {"other-1.0.dist-info/METADATA": b""}}, "exactly one"),
        ({"metadata_name": "other-env"}, "METADATA names"),
        ({"metadata_version": "9.9"}, "METADATA has the version"),
        ({"wheel_tag": "cp311-cp311-linux_x86_64"}, "the file name has"),
        ({"metadata": "Requires-Python: >=3.10<b>\n"}, "not valid"),
        ({"metadata": "Requires-Dist: not a requirement!\n"}, "not valid"),
        ({"metadata": "Evil-Field: 1\n"}, "cannot be read"),
        ({"entry_points": "[console_scripts]\npip = demo_env:main\n"}, "system command"),
        ({"entry_points": "[console_scripts]\n../x = demo_env:main\n"}, "unsafe name"),
        ({"entry_points": "[console_scripts]\nx = os; evil\n"}, "not an object reference"),
        ({"entry_points": "[console_scripts]\nx = a\nx = b\n"}, "cannot be read"),
        ({"entry_points": "[a\nb = c"}, "cannot be read"),
        ({"record": lambda t: t.replace("demo_env.py", "other.py")}, "RECORD"),
        ({"record": lambda t: "\n".join(t.splitlines()[1:])}, "does not list"),
        ({"record": lambda t: t.replace("sha256=", "sha256=A")}, "RECORD"),
        ({"record": lambda t: t.replace("sha256=", "md5=")}, "RECORD"),
        ({"record": lambda t: t + "ghost.py,sha256=x,1\n"}, "not in the wheel"),
        ({"write": zip_with(link_member)}, "link or device"),
        ({"write": zip_with(lambda z: z.writestr("hidden.py", "x"))}, "does not list"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_s3_to_s14_a_hostile_wheel_is_refused_with_the_reason(tmp_path, changes, words):
    with pytest.raises(WheelRejected) as refusal:
        read_wheel(written(tmp_path, Wheel(**changes)))
    assert words in str(refusal.value)


def differential_zips(content):
    """Files that different ZIP readers understand differently, made from a good wheel."""
    end = content.rindex(b"PK\x05\x06")
    central = struct.unpack_from("<L", content, end + 16)[0]
    yield "trailing data", content + b"x"
    yield "prepended data", b"x" * 10 + content
    yield "a comment", content[:-2] + b"\x01\x00x"
    yield "a second archive", content + content
    yield "cut short", content[:-5]
    yield (
        "hidden data before the directory",
        (
            content[:central]
            + b"hidden"
            + content[central:end]
            + content[end : end + 16]
            + struct.pack("<L", central + 6)
            + content[end + 20 :]
        ),
    )
    local_name = content.index(b"demo_env.py")
    yield (
        "names that disagree",
        (content[:local_name] + b"evil_env.py" + content[local_name + 11 :]),
    )
    yield "a wrong CRC", content[:14] + b"\0\0\0\0" + content[18:]
    first = content.index(b"PK\x01\x02")
    yield "an encrypted flag", content[: first + 8] + b"\x01" + content[first + 9 :]
    yield "a data descriptor", content[:6] + b"\x08" + content[7:]
    yield "an unknown method", content[:8] + b"\x0c" + content[9:]
    yield "a wrong count", content[: end + 8] + b"\x01\x00\x01\x00" + content[end + 12 :]
    yield "nothing", b""
    yield "no archive", b"not a zip" * 100
    yield "a tar archive", gzip.compress(b"x" * 1000)


@pytest.mark.parametrize("what", [what for what, _ in differential_zips(Wheel().bytes())])
def test_s6_archives_that_readers_see_differently_are_refused(tmp_path, what):
    path = tmp_path / Wheel().filename
    path.write_bytes(dict(differential_zips(Wheel().bytes()))[what])
    with pytest.raises(WheelRejected):
        read_wheel(path)


def test_s6_duplicate_members_are_refused(tmp_path):
    def write(archive, members):
        for path, content in members:
            archive.writestr(path, content)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("demo_env.py", b"EVIL = 1")

    with pytest.raises(WheelRejected, match="same file"):
        read_wheel(written(tmp_path, Wheel(write=write)))


@given(data=st.data())
def test_s6_a_wheel_with_changed_bytes_is_refused_or_reads_the_same(tmp_path, data):
    """No flipped byte may crash the reader, or change what a wheel says unnoticed."""
    good = Wheel()
    content = bytearray(good.bytes())
    path = tmp_path / good.filename
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(good.bytes())
    expected = read_wheel(path)
    path.write_bytes(content)
    try:
        seen = read_wheel(path)
    except WheelRejected:
        return
    assert seen.metadata_text == expected.metadata_text


@pytest.mark.parametrize(
    "path",
    [
        "demo_env/pip/__init__.py",
        "demo_env/sitecustomize.py",
        "tests/x.py",
        "pipelines/x.py",
        "my_numpy.py",
    ],
)
def test_names_like_those_of_other_packages_are_allowed_where_they_do_no_harm(tmp_path, path):
    wheel = Wheel(files={"demo_env/__init__.py": b"", path: b""})
    assert read_wheel(written(tmp_path, wheel)).name == "demo-env"
