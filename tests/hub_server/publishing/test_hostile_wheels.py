"""Attacks by names, forms and the archives themselves. Numbers are those of the threats in docs/hub.md."""

import gzip
import io
import tarfile

import pytest

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
# The table of hostile wheels is in tests/verifiers/packages/test_wheel.py.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"files": {"../../evil.pth": b"x"}}, ".."),
        ({"files": {"evil.pth": b"import os"}}, "every start"),
        ({"metadata_name": "other-env"}, "METADATA names"),
        ({"record": lambda t: t.replace("demo_env.py", "other.py")}, "RECORD"),
        ({"version": "0.1.0+local"}, "local version"),  # a rule of the hub only
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


@pytest.mark.parametrize("change", [lambda c: c + b"x", lambda c: c[:-5], lambda _: b""])
async def test_s6_a_damaged_archive_is_no_valid_wheel(small_hub, wheel, change):
    alice = await small_hub.person("alice")
    content, filename = change(wheel().bytes()), wheel().filename
    answer = await alice.http.post(f"/api/v1/hub/validate?filename={filename}", content=content)
    assert answer.status_code == 400, answer.text


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


async def test_names_like_those_of_other_packages_are_allowed_where_they_do_no_harm(
    small_hub, wheel
):
    alice = await small_hub.person("alice")
    files = {"demo_env/__init__.py": b"", "demo_env/pip/__init__.py": b""}
    answer = await alice.upload(wheel(files=files))
    assert answer.status_code == 200, answer.text
