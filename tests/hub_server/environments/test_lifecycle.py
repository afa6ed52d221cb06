"""What happens to environments after publishing: lists, search, yank, delete, fork, status, secrets."""

import pytest

JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}
API = "/api/v1/environmentshub"


async def latest(hub, name="demo-env"):
    return (await hub.http.get(f"{API}/alice/{name}/@latest")).json()["data"]


async def test_latest_is_the_highest_release_whatever_the_order_of_publishing(hub, wheel):
    alice = await hub.person("alice")
    for version, expected in (
        ("2.0.0rc1", "2.0.0rc1"),
        ("1.0.0", "1.0.0"),
        ("0.9", "1.0.0"),
        ("1.10", "1.10"),
        ("1.9", "1.10"),
        ("3.0.dev1", "1.10"),
    ):
        assert (await alice.upload(wheel(version=version))).status_code == 200
        assert (await latest(hub))["semantic_version"] == expected
    rows = (await hub.http.get(f"{API}/alice/demo-env/versions")).json()["data"]["versions"]
    assert [row["version"] for row in rows] == [
        "3.0.dev1",
        "2.0.0rc1",
        "1.10",
        "1.9",
        "1.0.0",
        "0.9",
    ]
    assert rows[0]["size"] == 1, "old clients show it as the number of files"


async def test_equal_versions_are_one_version(hub, wheel):
    alice = await hub.person("alice")
    await alice.upload(wheel(version="1.0"))
    other = await alice.upload(wheel(version="1.0.0", files={"demo_env.py": b"X = 2\n"}))
    page = (await hub.http.get("/alice/simple/demo-env/", headers=JSON)).json()
    assert len(page["versions"]) == 1
    assert other.status_code in (200, 409)


async def test_a_yanked_version_stays_installable_but_is_not_latest(hub, wheel):
    alice = await hub.person("alice")
    await alice.upload(wheel(version="1.0"))
    await alice.upload(wheel(version="2.0"))
    reason = 'breaks <b> & "quotes"'
    answer = await alice.http.post(f"{API}/alice/demo-env/@2.0/yank", json={"reason": reason})
    assert answer.json()["data"]["yanked_reason"] == reason
    assert (await latest(hub))["semantic_version"] == "1.0"
    page = (await hub.http.get("/alice/simple/demo-env/", headers=JSON)).json()
    assert [file["yanked"] for file in page["files"]] == [False, reason]
    html = (await hub.http.get("/alice/simple/demo-env/", headers={"Accept": "text/html"})).text
    assert 'data-yanked="breaks &lt;b&gt; &amp; &quot;quotes&quot;"' in html
    exact = (await hub.http.get(f"{API}/alice/demo-env/@2.0")).json()["data"]
    assert (exact["yanked"], exact["yanked_reason"]) == (True, reason)
    await alice.http.post(f"{API}/alice/demo-env/@2.0/yank", json={"yanked": False})
    assert (await latest(hub))["semantic_version"] == "2.0"


async def test_a_deleted_version_is_gone_and_its_number_is_never_given_again(hub, wheel):
    alice = await hub.person("alice")
    _, _ = await alice.push(wheel())
    await alice.upload(wheel(version="0.2.0"))
    before = await latest(hub)
    content_hash = (await hub.http.get(f"{API}/alice/demo-env/versions")).json()
    content_hash = content_hash["data"]["versions"][1]["content_hash"]
    deleted = await alice.http.delete(f"{API}/alice/demo-env/@{content_hash[:8]}")
    assert deleted.json()["data"]["version"] == "0.1.0"
    assert (await hub.http.get(f"{API}/alice/demo-env/@0.1.0")).status_code == 404
    page = (await hub.http.get("/alice/simple/demo-env/", headers=JSON)).json()
    assert page["versions"] == ["0.2.0"]
    for attempt in (wheel(), wheel(files={"demo_env.py": b"X = 2\n"})):
        again = await alice.upload(attempt)
        assert (again.status_code, "deleted" in again.text) == (409, True)
    assert before["semantic_version"] == "0.2.0"


async def test_a_deleted_environment_comes_back_empty_and_only_to_its_owner(hub, wheel):
    alice, bob = await hub.person("alice"), await hub.person("bob")
    await alice.upload(wheel())
    address = "/" + (await hub.http.get("/alice/simple/demo-env/", headers=JSON)).json()["files"][
        0
    ]["url"].removeprefix("../../../")
    assert (await bob.http.delete(f"{API}/alice/demo-env")).status_code == 403
    assert (await alice.http.delete(f"{API}/alice/demo-env")).json()["data"]["success"] is True
    assert (await hub.http.get(f"{API}/alice/demo-env/@latest")).status_code == 404
    assert (await hub.http.get("/alice/simple/demo-env/")).status_code == 401
    assert (await hub.http.get(address)).status_code == 401
    refused = await alice.upload(wheel())
    assert (refused.status_code, "deleted" in refused.text) == (409, True)
    assert (await alice.upload(wheel(version="0.2.0"))).status_code == 200
    page = (await hub.http.get("/alice/simple/demo-env/", headers=JSON)).json()
    assert page["versions"] == ["0.2.0"]


async def test_lists_are_filtered_sorted_paged_and_counted(hub, wheel):
    alice = await hub.person("alice")
    for n, word in enumerate(("chess", "maths", "poems")):
        await alice.upload(
            wheel(
                name=f"{word}-env",
                metadata=f"Summary: About {word}\nKeywords: {word},games\n",
                files={f"{word}_env.py": b"%d" % n},
            )
        )

    async def names(**query):
        answer = (await hub.http.get(f"{API}/", params=query)).json()
        return [row["name"] for row in answer["data"]], answer["total_count"]

    everything = ["chess-env", "maths-env", "poems-env"]
    assert await names(sort_by="name", sort_order="asc") == (everything, 3)
    assert await names() == (everything[::-1], 3)
    assert await names(sort_by="name", sort_order="asc", limit=1, offset=1) == (["maths-env"], 3)
    assert await names(tags=["games", "maths"]) == (["maths-env"], 1)
    assert await names(owner="alice", visibility="PUBLIC", limit=2) == (everything[::-1][:2], 3)
    assert await names(owner="nobody") == ([], 0)
    row = (await hub.http.get(f"{API}/?limit=1")).json()["data"][0]
    assert (row["owner"]["name"], row["latest_version"]) == ("alice", "0.1.0")


async def test_search_finds_words_of_all_fields_and_beginnings(hub, wheel):
    alice = await hub.person("alice")
    await alice.upload(
        wheel(
            name="chess-env",
            metadata="Summary: Play with knights, adding and planning\n",
            readme="# Zugzwang explained\n",
            files={"chess_env.py": b""},
        )
    )
    await alice.upload(
        wheel(
            name="poems-env",
            metadata="Summary: Sonnets\nKeywords: rhyme\n",
            files={"poems_env.py": b""},
        )
    )

    async def found(query):
        answer = await hub.http.get(f"{API}/", params={"search": query})
        assert answer.status_code == 200, answer.text
        return [row["name"] for row in answer.json()["data"]]

    for query in (
        "chess",
        "knights",
        "zugzwang",
        "zugz",
        "CHESS play",
        "alice/chess-env",
        "add",
        "chess add",
        "plan",
    ):
        assert await found(query) == ["chess-env"], query
    assert await found("rhyme") == ["poems-env"]
    for hostile in (
        '"',
        "chess OR poems",
        "a*b",
        "NEAR(",
        "' OR 1=1 --",
        "%",
        "_",
        "\\",
        "(",
        "-",
        "name:chess",
        "*",
        "^",
        "x" * 400,
    ):
        await found(hostile)
    await alice.http.patch(f"{API}/alice/chess-env", json={"description": "Gambits"})
    assert await found("gambits") == ["chess-env"]
    assert await found("knights") == []
    await alice.http.delete(f"{API}/alice/chess-env")
    assert await found("chess") == []


async def test_stars_are_counted_once_and_can_be_listed(hub, wheel):
    alice, bob = await hub.person("alice"), await hub.person("bob")
    await alice.upload(wheel())
    for _ in range(2):
        answer = await bob.http.put(f"{API}/alice/demo-env/star")
        assert answer.json()["data"] == {"stars": 1, "starred": True}
    mine = (await bob.http.get(f"{API}/?starred_only=true")).json()
    assert [row["name"] for row in mine["data"]] == ["demo-env"]
    assert (await alice.http.get(f"{API}/?starred_only=true")).json()["total_count"] == 0
    answer = await bob.http.delete(f"{API}/alice/demo-env/star")
    assert answer.json()["data"]["stars"] == 0
    assert (await hub.http.put(f"{API}/alice/demo-env/star")).status_code == 401


async def test_a_fork_shares_files_and_remembers_where_it_came_from(hub, wheel):
    alice, bob = await hub.person("alice"), await hub.person("bob")
    await alice.push(wheel())
    answer = (await bob.http.post(f"{API}/alice/demo-env/fork", json={})).json()["data"]
    assert (answer["slug"], answer["success"]) == ("bob/demo-env", True)
    details = (await hub.http.get(f"{API}/bob/demo-env/@latest")).json()["data"]
    assert details["metadata"]["origin"]["owner"] == "alice"
    await alice.http.delete(f"{API}/alice/demo-env")
    page = (await hub.http.get("/bob/simple/demo-env/", headers=JSON)).json()
    assert len(page["files"]) == 1
    assert (await hub.http.get(details["package_url"])).status_code == 200
    again = await bob.http.post(f"{API}/bob/demo-env/fork", json={})
    assert again.status_code == 409


async def test_quarantine_hides_files_but_not_the_name(small_hub, wheel):
    alice = await small_hub.person("alice")
    root = await small_hub.person("root-admin", admin=True)
    await alice.upload(wheel())
    wanted = {"status": "quarantined", "status_reason": "steals keys"}
    assert (await alice.http.patch(f"{API}/alice/demo-env", json=wanted)).status_code == 403
    assert (await root.http.patch(f"{API}/alice/demo-env", json=wanted)).status_code == 200
    page = await small_hub.http.get("/alice/simple/demo-env/", headers=JSON)
    assert page.json()["files"] == []
    assert page.json()["project-status"] == {"status": "quarantined", "reason": "steals keys"}
    assert (await small_hub.http.get(f"{API}/alice/demo-env/@latest")).status_code == 404
    assert (await small_hub.http.get(f"{API}/")).json()["data"] == []
    lifted = await alice.http.patch(f"{API}/alice/demo-env", json={"status": "active"})
    assert lifted.status_code == 403
    await root.http.patch(f"{API}/alice/demo-env", json={"status": "deprecated"})
    page = await small_hub.http.get("/alice/simple/demo-env/", headers=JSON)
    assert (page.json()["project-status"]["status"], len(page.json()["files"])) == ("deprecated", 1)


async def test_source_can_be_browsed(hub, wheel, make_source):
    alice = await hub.person("alice")
    files = {"demo_env.py": b"X = 1\n", "data/a/rows.json": b"[1, 2]", "data/b.txt": b"b" * 300}
    await alice.push(wheel(), make_source(files))
    base = f"{API}/alice/demo-env/@latest/inspect"
    root = (await hub.http.get(base)).json()["data"]
    assert [(e["path"], e["is_directory"]) for e in root["entries"]] == [
        ("data", True),
        ("demo_env.py", False),
        ("pyproject.toml", False),
    ]
    folder = (await hub.http.get(base, params={"path": "data"})).json()["data"]
    assert [e["path"] for e in folder["entries"]] == ["data/a", "data/b.txt"]
    file = (await hub.http.get(base, params={"path": "data/b.txt", "max_bytes": 10})).json()["data"]
    assert (file["content"], file["truncated"], file["total_bytes"]) == ("b" * 10, True, 300)
    for path in ("nothing", "../etc/passwd", "/etc/passwd", "data/../../x"):
        assert (await hub.http.get(base, params={"path": path})).status_code == 404
    assert (await hub.http.get(base, params={"max_bytes": 0})).status_code == 422


async def test_direct_url_requirements_are_listed_for_installers(small_hub, wheel):
    alice = await small_hub.person("alice")
    url = "other-env @ https://example.org/other_env-1-py3-none-any.whl"
    await alice.upload(wheel(metadata=f"Requires-Dist: {url}\nRequires-Dist: numpy>=1\n"))
    details = await latest(small_hub)
    assert details["url_dependencies"] == [url]
    assert details["requires_dist"] == [url, "numpy>=1"]


async def test_the_lock_file_pins_address_size_and_hash(small_hub, wheel):
    import tomllib

    alice = await small_hub.person("alice")
    await alice.upload(wheel())
    lock = await small_hub.http.get(f"{API}/alice/demo-env/@0.1.0/pylock.toml")
    [package] = tomllib.loads(lock.text)["packages"]
    assert (package["name"], package["version"]) == ("demo-env", "0.1.0")
    got = await small_hub.http.get(package["wheels"][0]["url"])
    assert len(got.content) == package["wheels"][0]["size"]
    await alice.upload(wheel(version="0.2.0"))
    for version in ("0.1.0", "0.2.0"):
        details = (await alice.http.get(f"{API}/alice/demo-env/@{version}")).json()["data"]
        lock = await small_hub.http.get(details["install"]["pylock_url"])
        assert tomllib.loads(lock.text)["packages"][0]["version"] == version


async def test_lookup_answers_old_and_new_forms(hub, wheel):
    alice = await hub.person("alice")
    _, steps = await alice.push(wheel())
    for body in (
        {"id": steps["environment_id"]},
        {"name": "demo-env", "team_slug": "alice"},
        {"name": "Demo_Env", "owner_slug": "alice"},
        {"name": "demo-env"},
        {"name": "alice/demo-env"},
    ):
        answer = await alice.http.post(f"{API}/lookup", json=body)
        assert answer.json()["data"]["id"] == steps["environment_id"], body
    assert (await alice.http.post(f"{API}/lookup", json={})).status_code == 400
    assert (await alice.http.post(f"{API}/lookup", json={"id": "x"})).status_code == 404


async def test_changes_come_in_order_and_only_to_those_who_may_know(hub, wheel):
    alice, bob = await hub.person("alice"), await hub.person("bob")
    await alice.upload(wheel())
    await alice.push(wheel(name="secret-env", files={"secret_env.py": b""}), visibility="PRIVATE")
    await alice.upload(wheel(version="0.2.0"))
    mine = (await alice.http.get("/api/v1/changes")).json()
    assert [(c["name"], c["version"]) for c in mine["data"]] == [
        ("demo-env", "0.1.0"),
        ("secret-env", "0.1.0"),
        ("demo-env", "0.2.0"),
    ]
    serials = [change["serial"] for change in mine["data"]]
    assert serials == sorted(set(serials))
    other = (await bob.http.get("/api/v1/changes")).json()
    assert {change["name"] for change in other["data"]} == {"demo-env"}
    later = (await bob.http.get("/api/v1/changes", params={"since": serials[1]})).json()
    assert [change["version"] for change in later["data"]] == ["0.2.0"]
    empty = await bob.http.get("/api/v1/changes", params={"since": mine["last_serial"]})
    assert empty.json() == {"data": [], "last_serial": mine["last_serial"]}


async def test_secrets_are_encrypted_and_never_come_back(hub, wheel):
    alice, bob = await hub.person("alice"), await hub.person("bob")
    _, steps = await alice.push(wheel())
    base = f"{API}/{steps['environment_id']}"
    made = await alice.http.post(f"{base}/secrets", json={"name": "KEY", "value": "hunter22"})
    secret = made.json()["data"]
    assert "value" not in secret
    again = await alice.http.post(f"{base}/secrets", json={"name": "KEY", "value": "x"})
    assert again.status_code == 409
    variable = await alice.http.post(f"{base}/variables", json={"name": "MODE", "value": "fast"})
    assert variable.json()["data"]["value"] == "fast"
    own = await alice.http.post("/api/v1/secrets/", json={"name": "GLOBAL", "value": "g"})
    linked = await alice.http.post(f"{base}/secrets/link/{own.json()['data']['id']}", json={})
    assert linked.json()["data"]["secretName"] == "GLOBAL"
    listed = (await alice.http.get(f"{base}/secrets")).json()["data"]
    assert [(s["name"], s["source"]) for s in listed] == [
        ("KEY", "environment"),
        ("GLOBAL", "linked"),
    ]
    for path in ("secrets", "variables"):
        assert (await bob.http.get(f"{base}/{path}")).status_code == 403
        assert (await hub.http.get(f"{base}/{path}")).status_code == 401
    stolen = await bob.http.post(f"{base}/secrets/link/{own.json()['data']['id']}", json={})
    assert stolen.status_code == 403
    changed = await alice.http.patch(f"{base}/secrets/{secret['id']}", json={"value": "new"})
    assert changed.status_code == 200
    assert (await alice.http.delete(f"{base}/secrets/{secret['id']}")).status_code == 200
    assert (await alice.http.delete(f"{base}/secrets/{secret['id']}")).status_code == 404
    await alice.http.delete(f"{base}/secrets/link/{own.json()['data']['id']}")
    assert (await alice.http.get(f"{base}/secrets")).json()["data"] == []
    bad = await alice.http.post(f"{base}/secrets", json={"name": "lower", "value": "hunter23"})
    assert bad.status_code == 422
    assert "hunter23" not in bad.text


async def test_secret_values_are_not_in_the_database_file(small_hub, sqlite_settings):
    alice = await small_hub.person("alice")
    await alice.http.post("/api/v1/secrets/", json={"name": "KEY", "value": "hunter22-value"})
    everything = b"".join(
        p.read_bytes() for p in sqlite_settings.data_dir.rglob("*") if p.is_file()
    )
    assert b"hunter22-value" not in everything
    assert b"KEY" in everything
    key = sqlite_settings.data_dir / "secret.key"
    assert key.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "name", ["numpy", "requests", "json", "simple", "-x", "x-", "é", "a" * 129, "a/b/"]
)
async def test_names_that_mislead_or_do_not_work_are_refused(small_hub, name):
    alice = await small_hub.person("alice")
    answer = await alice.http.post(f"{API}/resolve", json={"name": name})
    assert answer.status_code in (400, 404, 422), answer.text


@pytest.mark.parametrize("name", ["Demo_Env", "demo.env", "DEMO--env", "demo_env"])
async def test_spellings_of_one_name_are_one_environment(hub, wheel, name):
    alice = await hub.person("alice")
    await alice.upload(wheel())
    answer = (await alice.http.post(f"{API}/resolve", json={"name": name})).json()["data"]
    assert (answer["created"], answer["name"]) == (False, "demo-env")


async def test_a_worker_sees_its_own_change_before_the_database_says_so(hub, wheel, monkeypatch):
    alice = await hub.person("alice")
    await alice.upload(wheel())
    assert (await hub.http.get("/alice/simple/demo-env/")).status_code == 200
    monkeypatch.setattr("hub_server.changes.service.CHANNEL", "nobody_listens")
    assert (await alice.http.delete(f"{API}/alice/demo-env")).status_code == 200
    assert (await hub.http.get("/alice/simple/demo-env/")).status_code == 401
