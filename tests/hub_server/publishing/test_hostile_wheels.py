"""Attacks by names, forms and the archives themselves. Numbers are those of the threats in docs/hub.md."""

import gzip
import io
import struct
import tarfile
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hub_server.publishing.archives import ArchiveRejected, repack

API = "/api/v1/environmentshub"


async def nothing_is_published(hub):
    return (await hub.http.get("/alice/simple/demo-env/")).status_code == 401


# --- names and paths (S1, S2, S20) --------------------------------------------------------------


@pytest.mark.parametrize(
    "filename",
    [
        "../demo_env-0.1.0-py3-none-any.whl",
        "/etc/demo_env-0.1.0-py3-none-any.whl",
        "..\\demo_env-0.1.0-py3-none-any.whl",
        "demo_env-0.1.0-py3-none-any.whl\x00.exe",
        "demo_env-0.1.0-py3-none-any.whl\r\nX: 1",
        "%2e%2e%2fdemo_env-0.1.0-py3-none-any.whl",
        "\u202edemo_env-0.1.0-py3-none-any.whl",
        "demo_env-0.1.0-py3-none-any.WHL",
        "demo_env-0.1.0-py3-none-any.whl ",
        "CON",
        "a" * 5000 + "-1-py3-none-any.whl",
        "demo_env-0.1.0.exe",
        "demo_env-0.1.0-py3-none-any.zip",
        "",
    ],
)
async def test_s1_a_file_name_that_is_not_plain_is_refused(small_hub, wheel, filename):
    alice = await small_hub.person("alice")
    content = wheel().bytes()
    answer = await alice.http.post(
        "/alice/legacy/",
        data={":action": "file_upload", "name": "demo-env", "version": "0.1.0"},
        files={"content": (filename, content)},
    )
    assert answer.status_code in (400, 413), answer.text
    assert await nothing_is_published(small_hub)


@pytest.mark.parametrize(
    "path",
    [
        "/files/alice/demo-env/../../../../etc/passwd",
        "/files/alice/demo-env/%2e%2e%2f%2e%2e%2fhub.db/x",
        "/files/..%2f..%2f/x/" + "0" * 64 + "/hub.db",
        "/files/alice/demo-env/" + "0" * 64 + "/..;/hub.db",
        "/alice/simple/....//....//hub.db/",
        "/alice/simple/%00/",
        "/alice/simple/\u2025/",
        "/%ff%fe/simple/x/",
        "//alice/simple/demo-env/",
    ],
)
async def test_s2_no_address_leads_out_of_the_index(small_hub, wheel, path):
    await (await small_hub.person("alice")).upload(wheel())
    answer = await small_hub.http.get(path)
    assert answer.status_code in (301, 400, 401, 404), (path, answer.status_code)


# --- the archive (S3 to S7, S13, S14) -----------------------------------------------------------


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
        ({"version": "0.1.0+local"}, "local version"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_s3_to_s14_a_hostile_wheel_is_refused_with_the_reason(
    small_hub, wheel, changes, words
):
    alice = await small_hub.person("alice")
    made = wheel(**changes)
    answer = await alice.upload(made)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["detail"]
    assert await nothing_is_published(small_hub)
    blobs = small_hub.settings.data_dir / "blobs"
    assert not [p for p in blobs.rglob("*") if p.is_file()] or changes.get("version")


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


async def test_s6_archives_that_readers_see_differently_are_refused(small_hub, wheel):
    alice = await small_hub.person("alice")
    filename = wheel().filename
    for what, content in differential_zips(wheel().bytes()):
        answer = await alice.http.post(f"/api/v1/hub/validate?filename={filename}", content=content)
        assert answer.status_code == 400, what


async def test_s6_duplicate_members_are_refused(small_hub, wheel):
    alice = await small_hub.person("alice")

    def write(archive, members):
        for path, content in members:
            archive.writestr(path, content)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("demo_env.py", b"EVIL = 1")

    answer = await alice.upload(wheel(write=write))
    assert (answer.status_code, "same file" in answer.text) == (400, True)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_s6_a_wheel_with_changed_bytes_is_refused_or_reads_the_same(wheel, tmp_path, data):
    """No flipped byte may crash the reader, or change what a wheel says unnoticed."""
    from verifiers.packages.archive import WheelRejected
    from verifiers.packages.wheel import read_wheel

    good = wheel()
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
    ("form", "words"),
    [
        ({"name": "other-env"}, "form is for"),
        ({"version": "9.9"}, "form says"),
        ({"requires_python": ">=2.7"}, "requires_python"),
        ({"requires_dist": "evil"}, "requires_dist"),
        ({"sha256_digest": "0" * 64}, "digest"),
        ({"blake2_256_digest": "0" * 64}, "digest"),
        ({"md5_digest": "0" * 32}, "digest"),
        ({":action": "submit"}, "not offered"),
        ({"attestations": "[{}]"}, "verified"),
    ],
)
async def test_s7_s8_a_form_that_lies_is_refused(small_hub, wheel, form, words):
    alice = await small_hub.person("alice")
    answer = await alice.upload(wheel(), **form)
    assert (answer.status_code, words in answer.text) == (400, True), answer.text
    assert await nothing_is_published(small_hub)


async def test_s7_empty_fields_are_absent_fields(small_hub, wheel):
    alice = await small_hub.person("alice")
    answer = await alice.upload(wheel(), requires_python="", requires_dist="", md5_digest="")
    assert answer.status_code == 200


def tar_bytes(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return buffer.getvalue()


def member(name, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


PROJECT = (member("pyproject.toml"), b"[project]\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tar_bytes(PROJECT, (member("../evil"), b"x")), ".."),
        (tar_bytes(PROJECT, (member("/abs"), b"x")), "absolute"),
        (tar_bytes(PROJECT, (member("l", tarfile.SYMTYPE, "/etc/passwd"), b"")), "link"),
        (tar_bytes(PROJECT, (member("l", tarfile.LNKTYPE, "pyproject.toml"), b"")), "link"),
        (tar_bytes(PROJECT, (member("d", tarfile.CHRTYPE), b"")), "device"),
        (tar_bytes(PROJECT, (member("f", tarfile.FIFOTYPE), b"")), "device"),
        (tar_bytes(PROJECT, (member("a"), b"1"), (member("A"), b"2")), "twice"),
        (tar_bytes((member("a.py"), b"x")), "pyproject.toml"),
        (gzip.compress(b""), "empty"),
        (b"not gzip", "not a readable"),
        (gzip.compress(b"not tar" * 1000), "not a readable"),
        (tar_bytes(PROJECT)[:-20], "not a readable"),
        (tar_bytes(PROJECT, (member("bomb"), b"\0" * (80 * 1024**2))), "unpacks to more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_s13_a_hostile_source_archive_is_refused(tmp_path, content, words):
    source = tmp_path / "a.tar.gz"
    source.write_bytes(content)
    with pytest.raises(ArchiveRejected, match=words):
        repack(source, tmp_path / "b.tar.gz", 10**9)


async def test_s13_a_refused_source_is_explained_when_the_push_is_finished(small_hub, wheel):
    alice = await small_hub.person("alice")
    evil = tar_bytes(PROJECT, (member("../evil"), b"x"))
    answer, _ = await alice.push(wheel(), evil)
    assert (answer.status_code, ".." in answer.json()["detail"]) == (400, True)
    assert (await small_hub.http.get(f"{API}/alice/demo-env/versions")).json() == {
        "data": {"versions": []}
    }


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
async def test_names_like_those_of_other_packages_are_allowed_where_they_do_no_harm(
    small_hub, wheel, path
):
    alice = await small_hub.person("alice")
    answer = await alice.upload(wheel(files={"demo_env/__init__.py": b"", path: b""}))
    assert answer.status_code == 200, answer.text
