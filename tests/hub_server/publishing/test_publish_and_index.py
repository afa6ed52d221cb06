"""Publishing by all three ways, and what pip and uv read afterwards."""

import asyncio
import gzip
import hashlib

import orjson
import pytest
import zstandard

JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}


async def test_a_push_becomes_visible_only_with_its_last_step(hub, wheel):
    alice = await hub.person("alice")
    answer, steps = await alice.push(wheel())
    assert (answer.status_code, answer.json()["data"]["success"]) == (200, True)
    details = (await hub.http.get("/api/v1/environmentshub/alice/demo-env/@latest")).json()["data"]
    assert (details["semantic_version"], details["owner"]["name"]) == ("0.1.0", "alice")
    assert details["metadata"]["description"] == "A demo", "the wheel's word, not the client's"
    assert "content_hash" not in details
    assert details["runtime_hint"] == "VERIFIERS_V0"
    assert details["install"]["requirement"].startswith("demo-env @ http://hub/files/alice/")
    page = (await hub.http.get("/alice/simple/demo-env/", headers=JSON)).json()
    assert [f["filename"] for f in page["files"]] == [wheel().filename]
    assert steps["wheel"]["upload_url"] != steps["version"]["upload_url"]


async def test_the_same_push_again_is_refused_in_the_words_that_clients_know(hub, wheel):
    alice = await hub.person("alice")
    await alice.push(wheel())
    answer, _ = await alice.push(wheel())
    assert answer.status_code == 409
    assert answer.json() == {"detail": "Version with this content hash already exists"}


async def test_other_content_under_a_used_number_is_refused(hub, wheel, make_source):
    alice = await hub.person("alice")
    await alice.push(wheel())
    other = wheel(files={"demo_env.py": b"X = 2\n"})
    answer, _ = await alice.push(other, make_source({"demo_env.py": b"X = 2\n"}))
    assert (answer.status_code, "already exists" in answer.text) == (409, True)
    assert "bump the version" in answer.json()["detail"]


async def test_an_interrupted_push_does_not_stand_in_the_way_of_the_next(hub, wheel):
    alice = await hub.person("alice")
    body, content_hash = wheel().bytes(), "ab" * 32
    resolved = await alice.http.post("/api/v1/environmentshub/resolve", json={"name": "demo-env"})
    base = f"/api/v1/environmentshub/{resolved.json()['data']['id']}"
    declared = {"filename": wheel().filename, "sha256": hashlib.sha256(body).hexdigest()}
    await alice.http.post(f"{base}/wheels", json={**declared, "content_hash": content_hash})
    page = await hub.http.get("/alice/simple/demo-env/", headers=JSON)
    assert page.json()["files"] == []
    answer, _ = await alice.push(wheel())
    assert answer.status_code == 200


async def test_finalizing_twice_is_harmless(hub, wheel):
    alice = await hub.person("alice")
    _, steps = await alice.push(wheel())
    base = f"/api/v1/environmentshub/{steps['environment_id']}"
    again = await alice.http.post(f"{base}/versions/{steps['version']['version_id']}/finalize")
    assert (again.status_code, again.json()["data"]["created"]) == (200, False)
    again = await alice.http.post(f"{base}/wheels/{steps['wheel']['wheel_id']}/finalize")
    assert again.status_code == 200


async def test_the_upload_form_publishes_and_repeating_it_changes_nothing(hub, wheel):
    alice = await hub.person("alice")
    first, second = await alice.upload(wheel()), await alice.upload(wheel())
    assert (first.status_code, first.headers["x-hub-created"]) == (200, "true")
    assert (second.status_code, second.headers["x-hub-created"]) == (200, "false")
    other = await alice.upload(wheel(files={"demo_env.py": b"X = 2\n"}))
    assert (other.status_code, "already exist" in other.text) == (409, True)
    assert other.headers["content-type"] == "application/problem+json"


async def test_the_two_phase_interface_publishes_all_files_or_none(hub, wheel, make_source):
    alice = await hub.person("alice")
    files = {wheel().filename: ("wheel", wheel().bytes()), "demo.tar.gz": ("source", make_source())}
    wanted = [
        {"filename": n, "kind": k, "sha256": hashlib.sha256(b).hexdigest(), "size": len(b)}
        for n, (k, b) in files.items()
    ]
    reserved = await alice.http.post("/api/v1/hub/alice/demo-env/reserve", json={"files": wanted})
    uploads = reserved.json()["data"]["uploads"]
    ids = [upload["upload_id"] for upload in uploads]
    early = await alice.http.post("/api/v1/hub/alice/demo-env/finalize", json={"upload_ids": ids})
    assert (early.status_code, "have not arrived" in early.text) == (400, True)
    import httpx

    for upload in uploads:
        url, (_, content) = upload["upload_url"], files[upload["filename"]]
        if url.startswith("http://hub/"):
            assert (await hub.http.put(url, content=content)).status_code == 200
        else:
            async with httpx.AsyncClient() as direct:
                (await direct.put(url, content=content)).raise_for_status()
    for created in (True, False):
        done = await alice.http.post(
            "/api/v1/hub/alice/demo-env/finalize", json={"upload_ids": ids}
        )
        assert done.json()["data"]["created"] is created
    details = (await hub.http.get("/api/v1/environmentshub/alice/demo-env/@0.1.0")).json()["data"]
    assert details["package_url"].endswith("/demo.tar.gz")


async def test_a_source_archive_comes_back_repacked_with_equal_contents(hub, wheel, make_source):
    import io
    import tarfile

    alice = await hub.person("alice")
    files = {"demo_env.py": b"X = 1\n", "data/rows.json": b"[1]"}
    await alice.push(wheel(), make_source(files))
    details = (await hub.http.get("/api/v1/environmentshub/alice/demo-env/@latest")).json()["data"]
    archive = await hub.http.get(details["package_url"])
    assert archive.status_code == 200, "source archives are never redirected: old clients cannot"
    with tarfile.open(fileobj=io.BytesIO(archive.content), mode="r:gz") as tar:
        contents = {m.name: tar.extractfile(m).read() for m in tar}
        assert all((m.uid, m.mtime) == (0, 0) for m in tar.getmembers())
    assert contents.items() >= files.items()


async def test_a_validation_without_publishing_says_what_is_wrong(small_hub, wheel):
    alice = await small_hub.person("alice")
    good = wheel()
    answer = await alice.http.post(
        f"/api/v1/hub/validate?filename={good.filename}", content=good.bytes()
    )
    assert (answer.status_code, answer.json()["data"]["name"]) == (200, "demo-env")
    bad = wheel(record=lambda text: text.replace("demo_env.py", "other.py"))
    answer = await alice.http.post(
        f"/api/v1/hub/validate?filename={bad.filename}", content=bad.bytes()
    )
    assert (answer.status_code, "other.py" in answer.text) == (400, True)
    assert (await small_hub.http.get("/alice/simple/demo-env/")).status_code == 401


async def test_an_sdist_in_the_upload_form_becomes_the_source_archive(
    small_hub, wheel, make_source
):
    import io
    import tarfile

    alice = await small_hub.person("alice")
    await alice.upload(wheel())
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in (("pyproject.toml", b"[project]\n"), ("demo_env.py", b"X = 1\n")):
            info = tarfile.TarInfo(f"demo_env-0.1.0/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    answer = await alice.http.post(
        "/alice/legacy/",
        data={":action": "file_upload", "name": "demo-env", "version": "0.1.0"},
        files={"content": ("demo_env-0.1.0.tar.gz", buffer.getvalue())},
    )
    assert answer.status_code == 200
    tree = await small_hub.http.get("/api/v1/environmentshub/alice/demo-env/@0.1.0/inspect")
    assert [e["path"] for e in tree.json()["data"]["entries"]] == ["demo_env.py", "pyproject.toml"]
    page = (await small_hub.http.get("/alice/simple/demo-env/", headers=JSON)).json()
    assert len(page["files"]) == 1, (
        "the index lists wheels only: an sdist would run code on install"
    )


# --- the index --------------------------------------------------------------------------------


async def test_the_json_page_has_everything_that_resolvers_ask_for(hub, wheel):
    alice = await hub.person("alice")
    await alice.upload(wheel())
    answer = await hub.http.get("/alice/simple/demo-env/", headers=JSON)
    page, content = answer.json(), wheel().bytes()
    assert answer.headers["content-type"] == JSON["Accept"]
    assert page["meta"]["api-version"] == "1.4"
    assert page["name"] == "demo-env"
    assert page["versions"] == ["0.1.0"]
    assert page["project-status"] == {"status": "active"}
    [file] = page["files"]
    assert file["hashes"] == {"sha256": hashlib.sha256(content).hexdigest()}
    assert (file["size"], file["requires-python"]) == (len(content), ">=3.10")
    assert file["upload-time"].endswith("Z")
    assert file["yanked"] is False
    wheel_url = f"http://hub/alice/simple/demo-env/{file['url']}"
    got = await hub.http.get(wheel_url, follow_redirects=False)
    if got.status_code == 302:  # S3, which is on the network
        import httpx

        async with httpx.AsyncClient() as direct:
            got = await direct.get(got.headers["location"])
    assert got.content == content
    metadata = await hub.http.get(f"{wheel_url}.metadata")
    assert hashlib.sha256(metadata.content).hexdigest() == file["core-metadata"]["sha256"]
    assert metadata.content.startswith(b"Metadata-Version: 2.1\nName: demo-env\n")


async def test_the_html_page_escapes_and_links_relative(small_hub, wheel):
    alice = await small_hub.person("alice")
    await alice.upload(wheel(metadata="Requires-Python: >=3.10,<4\nSummary: <script>\n"))
    answer = await small_hub.http.get("/alice/simple/demo-env/", headers={"Accept": "text/html"})
    assert (
        'data-requires-python="&gt;=3.10,&lt;4"' in answer.text.replace("&lt;4,", "")
        or 'data-requires-python="&lt;4,&gt;=3.10"' in answer.text
    )
    assert '<a href="../../../files/alice/demo-env/' in answer.text
    assert "<script>" not in answer.text


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("application/vnd.pypi.simple.v1+json", "application/vnd.pypi.simple.v1+json"),
        ("application/vnd.pypi.simple.latest+json", "application/vnd.pypi.simple.v1+json"),
        (
            "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2,"
            " text/html;q=0.01",
            "application/vnd.pypi.simple.v1+json",
        ),
        ("application/vnd.pypi.simple.v1+json, */*;q=0.1", "application/vnd.pypi.simple.v1+json"),
        ("application/vnd.pypi.simple.v1+html", "application/vnd.pypi.simple.v1+html"),
        ("text/html", "text/html; charset=utf-8"),
        ("*/*", "text/html; charset=utf-8"),
        ("", "text/html; charset=utf-8"),
    ],
)
async def test_the_form_of_a_page_is_negotiated(small_hub, wheel, accept, content_type):
    await (await small_hub.person("alice")).upload(wheel())
    answer = await small_hub.http.get("/alice/simple/demo-env/", headers={"Accept": accept})
    assert answer.headers["content-type"] == content_type
    assert "accept" in answer.headers["vary"]


async def test_no_offered_form_is_a_406_and_the_format_parameter_wins(small_hub, wheel):
    await (await small_hub.person("alice")).upload(wheel())
    address = "/alice/simple/demo-env/"
    nothing = await small_hub.http.get(address, headers={"Accept": "application/xml"})
    assert nothing.status_code == 406
    chosen = await small_hub.http.get(f"{address}?format=application/vnd.pypi.simple.v1%2Bjson")
    assert chosen.json()["name"] == "demo-env"


async def test_pages_are_packed_and_not_sent_twice(small_hub, wheel):
    alice = await small_hub.person("alice")
    for minor in range(5):
        await alice.upload(wheel(version=f"0.{minor}.0"))
    address = "/alice/simple/demo-env/"
    plain = await small_hub.http.get(address, headers={**JSON, "Accept-Encoding": "identity"})
    for coding, unpack in (
        ("gzip", gzip.decompress),
        ("zstd", lambda b: zstandard.ZstdDecompressor().decompress(b)),
    ):
        async with small_hub.http.stream(
            "GET", address, headers={**JSON, "Accept-Encoding": coding}
        ) as packed:
            assert packed.headers["content-encoding"] == coding
            raw = b"".join([piece async for piece in packed.aiter_raw()])
        assert unpack(raw) == plain.content
        assert len(raw) < len(plain.content)
    again = await small_hub.http.get(
        address,
        headers={**JSON, "Accept-Encoding": "identity", "If-None-Match": plain.headers["etag"]},
    )
    assert (again.status_code, again.content) == (304, b"")
    assert plain.headers["cache-control"] == "no-cache"


async def test_a_new_version_is_seen_at_once_by_clients_that_have_the_old_page(small_hub, wheel):
    alice = await small_hub.person("alice")
    await alice.upload(wheel())
    address = "/alice/simple/demo-env/"
    old = await small_hub.http.get(address, headers=JSON)
    await small_hub.http.get(address, headers=JSON)  # from memory now
    await alice.upload(wheel(version="0.2.0"))
    new = await small_hub.http.get(address, headers={**JSON, "If-None-Match": old.headers["etag"]})
    assert (new.status_code, new.json()["versions"]) == (200, ["0.1.0", "0.2.0"])


async def test_an_environments_own_index_lists_nothing_else(hub, wheel):
    alice = await hub.person("alice")
    await alice.upload(wheel())
    await alice.upload(wheel(name="other-env", files={"other_env.py": b""}))
    root = (await hub.http.get("/alice/demo-env/simple/", headers=JSON)).json()
    assert [project["name"] for project in root["projects"]] == ["demo-env"]
    assert (await hub.http.get("/alice/demo-env/simple/demo-env/")).status_code == 200
    assert (await hub.http.get("/alice/demo-env/simple/other-env/")).status_code == 404
    owner = (await hub.http.get("/alice/simple/", headers=JSON)).json()
    assert [project["name"] for project in owner["projects"]] == ["demo-env", "other-env"]


@pytest.mark.parametrize(
    ("address", "location"),
    [
        ("/alice/simple/Demo_Env/", "../demo-env/"),
        ("/alice/simple/demo-env", "demo-env/"),
        ("/alice/demo-env/simple/Demo.Env/", "../demo-env/"),
    ],
)
async def test_other_spellings_lead_to_the_one_address(small_hub, wheel, address, location):
    await (await small_hub.person("alice")).upload(wheel())
    answer = await small_hub.http.get(address)
    assert (answer.status_code, answer.headers["location"]) == (301, location)


# --- files ------------------------------------------------------------------------------------


async def wheel_address(hub, version="0.1.0"):
    page = (await hub.http.get("/alice/simple/demo-env/", headers=JSON)).json()
    file = next(f for f in page["files"] if f"-{version}-" in f["filename"])
    return "/" + file["url"].removeprefix("../../../")


@pytest.mark.parametrize("warm", [False, True], ids=["first request", "from memory"])
@pytest.mark.parametrize(
    ("header", "status", "start", "end"),
    [
        (None, 200, 0, None),
        ("bytes=0-9", 206, 0, 10),
        ("bytes=10-", 206, 10, None),
        ("bytes=-7", 206, -7, None),
        ("bytes=5-999999", 206, 5, None),
        ("bytes=0-0,5-9", 200, 0, None),
        ("bytes=9-5", 200, 0, None),
        ("lines=1-2", 200, 0, None),
        ("bytes=0x1-2", 200, 0, None),
    ],
)
async def test_a_wheel_can_be_read_in_parts(small_hub, wheel, warm, header, status, start, end):
    await (await small_hub.person("alice")).upload(wheel())
    address, content = await wheel_address(small_hub), wheel().bytes()
    if warm:
        await small_hub.http.get(address)
    answer = await small_hub.http.get(address, headers={"Range": header} if header else {})
    assert (answer.status_code, answer.content) == (status, content[start:end])
    assert answer.headers["content-length"] == str(len(content[start:end]))
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_an_impossible_range_a_changed_file_and_head(small_hub, wheel):
    await (await small_hub.person("alice")).upload(wheel())
    address, content = await wheel_address(small_hub), wheel().bytes()
    beyond = await small_hub.http.get(address, headers={"Range": f"bytes={len(content)}-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(content)}")
    changed = await small_hub.http.get(
        address, headers={"Range": "bytes=0-1", "If-Range": '"other"'}
    )
    assert (changed.status_code, changed.content) == (200, content)
    for _ in range(2):
        head = await small_hub.http.head(address)
        assert (head.content, head.headers["content-length"]) == (b"", str(len(content)))
        assert head.headers["accept-ranges"] == "bytes"


async def test_twelve_uploads_of_one_version_at_once_have_one_winner(hub, wheel):
    alice = await hub.person("alice")
    contenders = [wheel(files={"demo_env.py": b"X = %d\n" % n}) for n in range(12)]
    answers = await asyncio.gather(*(alice.upload(contender) for contender in contenders))
    winners = [w for w, a in zip(contenders, answers, strict=True) if a.status_code == 200]
    assert sorted(answer.status_code for answer in answers) == [200, *[409] * 11]
    page = (await hub.http.get("/alice/simple/demo-env/", headers=JSON)).json()
    assert page["files"][0]["hashes"]["sha256"] == hashlib.sha256(winners[0].bytes()).hexdigest()


async def test_answers_are_json_objects_even_for_errors(small_hub):
    for address in ("/nowhere", "/api/v1/nowhere", "/api/v1/environmentshub/a/b/@latest"):
        answer = await small_hub.http.get(address)
        assert (answer.status_code, list(orjson.loads(answer.content))) == (404, ["detail"])
