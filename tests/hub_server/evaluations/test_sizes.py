"""How large answers get, whatever was stored: lists, pages of samples, metadata; and what an owner may keep."""

import json
import sqlite3
import zlib

import pytest

from hub_server import stored
from hub_server.evaluations import samples

API = "/api/v1/environmentshub"
EVALUATIONS = "/api/v1/evaluations"
MIB = 1024**2


async def opened(hub, wheel, **fields):
    alice = await hub.person("alice")
    _, steps = await alice.push(wheel())
    body = {"name": "run", "environments": [{"id": steps["environment_id"]}], "is_public": True}
    answer = await alice.http.post(f"{EVALUATIONS}/", json={**body, **fields})
    assert answer.status_code == 200, answer.text
    return alice, answer.json()["evaluation_id"]


def refused(answer):
    assert answer.status_code == 413, (answer.status_code, answer.text[:200])
    return answer.json()["detail"]


# --- samples ------------------------------------------------------------------------------------


async def test_a_page_of_samples_is_bounded_and_says_what_it_leaves_out(open_small_hub, wheel):
    async with open_small_hub(max_samples_page_bytes=10_000) as hub:
        alice, evaluation_id = await opened(hub, wheel)
        rows = [{"sample_id": f"s{n}", "text": "x" * 4_000} for n in range(6)]
        rows.insert(1, {"example_id": 7, "rollout_number": 2, "text": "y" * 50_000})
        address = f"{EVALUATIONS}/{evaluation_id}/samples"
        assert (await alice.http.post(address, json={"samples": rows})).is_success
        answer = await hub.http.get(address)
        page = answer.json()
        assert (page["total"], page["has_more"], len(page["samples"])) == (7, False, 7)
        assert [row for row in page["samples"] if "left_out" not in row] == [rows[0], rows[2]]
        left_out = page["samples"][1]
        assert (left_out["example_id"], left_out["rollout_number"]) == ("7", "2")
        assert "?page=2&limit=1" in left_out["left_out"]
        assert len(answer.content) < 12_000
        alone = (await hub.http.get(f"{address}?page=2&limit=1")).json()
        assert alone["samples"] == [rows[1]]


async def test_one_sample_has_a_limit_after_it_is_unpacked(open_small_hub, wheel):
    async with open_small_hub(max_sample_bytes=100_000) as hub:
        alice, evaluation_id = await opened(hub, wheel)
        address = f"{EVALUATIONS}/{evaluation_id}/samples"
        text = "a" * 200_000
        detail = refused(await alice.http.post(address, json={"samples": [{}, {"t": text}]}))
        assert "Sample 1" in detail
        assert "100000" in detail
        assert (await hub.http.get(address)).json()["total"] == 0


async def test_a_bomb_of_an_earlier_release_is_not_unpacked_for_a_page(open_small_hub, wheel):
    async with open_small_hub(max_samples_page_bytes=MIB) as hub:
        alice, evaluation_id = await opened(hub, wheel)
        address = f"{EVALUATIONS}/{evaluation_id}/samples"
        await alice.http.post(address, json={"samples": [{"n": 1}]})
        bomb = zlib.compress(json.dumps({"t": "a" * (40 * MIB)}).encode())
        with sqlite3.connect(hub.settings.sqlite_path) as connection:
            insert = "INSERT INTO samples (evaluation_id, key, body) VALUES (?, ?, ?)"
            for n in range(6):
                connection.execute(insert, (evaluation_id, f"old{n}", bomb))
        connection.close()
        answer = await hub.http.get(f"{address}?limit=1000")
        assert len(answer.content) < 2 * MIB
        assert sum("left_out" in row for row in answer.json()["samples"]) == 6


async def test_a_page_is_read_piece_by_piece(small_hub, wheel):
    alice, evaluation_id = await opened(small_hub, wheel)
    rows = [{"sample_id": str(n), "t": "é" * 400_000} for n in range(8)]
    address = f"{EVALUATIONS}/{evaluation_id}/samples"
    assert (await alice.http.post(address, json={"samples": rows})).is_success
    async with small_hub.database.read() as session:
        planned = await samples.plan(session, evaluation_id, 1, 100)
    pieces = [p async for p in samples.page_pieces(small_hub.database, planned, b"]}", 64 * MIB)]
    assert max(map(len, pieces)) <= samples.PIECE_BYTES
    assert json.loads(b"".join(pieces))["samples"] == rows


async def test_a_batch_of_very_many_values_is_refused_before_it_takes_memory(small_hub, wheel):
    alice, evaluation_id = await opened(small_hub, wheel)
    body = b'{"samples":[{"x":[' + b"[]," * 2_000_000 + b"[]]}]}"
    answer = await alice.http.post(f"{EVALUATIONS}/{evaluation_id}/samples", content=body)
    assert "smaller parts" in refused(answer)


async def test_a_large_batch_is_stored_in_several_transactions(small_hub, wheel, monkeypatch):
    monkeypatch.setattr(samples, "ROWS_AT_ONCE", 3)
    alice, evaluation_id = await opened(small_hub, wheel)
    rows = [{"n": n} for n in range(10)]
    address = f"{EVALUATIONS}/{evaluation_id}/samples"
    for new in (10, 0):
        answer = await alice.http.post(address, json={"samples": rows})
        assert answer.json() == {"samples_pushed": 10, "samples_new": new}
    assert (await alice.http.get(address)).json()["samples"] == rows


# --- metadata -----------------------------------------------------------------------------------


async def test_a_list_has_no_metadata_and_less_than_a_mebibyte(small_hub, wheel):
    huge = {"x": "a" * 90_000, "num_examples": 5, "rollouts_per_example": 2}
    texts = dict.fromkeys(("model_name", "run_id", "suite_id", "dataset"), "\x01" * 300)
    metrics = {f"metric {n} " + "é" * 100: n for n in range(100)}
    alice, first = await opened(small_hub, wheel, metadata=huge, metrics=metrics, **texts)
    with sqlite3.connect(small_hub.settings.sqlite_path) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(evaluations)")]
        others = ", ".join(c for c in columns if c != "id")
        copy = f"INSERT INTO evaluations (id, {others}) SELECT ?, {others} FROM evaluations LIMIT 1"
        for n in range(499):
            connection.execute(copy, (f"c{n:024}",))
        link = "INSERT INTO evaluated_environments (evaluation_id, environment_id)"
        connection.execute(
            f"{link} SELECT id, (SELECT id FROM environments) FROM evaluations WHERE id != ?",
            (first,),
        )
    connection.close()
    answer = await small_hub.http.get(f"{EVALUATIONS}/?limit=500")
    listed = answer.json()["evaluations"]
    assert (answer.status_code, len(listed)) == (200, 500)
    assert len(answer.content) < MIB
    assert listed[0]["metadata"] == {"num_examples": 5, "rollouts_per_example": 2}
    assert listed[0]["environment_names"] == ["alice/demo-env"]
    whole = await alice.http.get(f"{EVALUATIONS}/{first}/metadata")
    assert whole.json() == huge
    assert (await alice.http.get(f"{EVALUATIONS}/{first}")).json()["metadata"] == huge


async def test_metadata_has_a_limit_also_when_it_grows_little_by_little(open_small_hub, wheel):
    async with open_small_hub(max_metadata_bytes=50_000) as hub:
        alice, evaluation_id = await opened(hub, wheel)
        address = f"{EVALUATIONS}/{evaluation_id}"
        part = "x" * 20_000
        answers = [
            await alice.http.put(address, json={"metadata": {f"k{n}": part}}) for n in range(4)
        ]
        assert [a.status_code for a in answers] == [200, 200, 413, 413]
        assert "metrics" in refused(await alice.http.put(address, json={"metrics": {"k": part}}))
        finalized = await alice.http.post(f"{address}/finalize", json={"metrics": {"k": part}})
        assert "metrics" in refused(finalized)
        assert (await alice.http.get(address)).json()["status"] == "RUNNING"


async def test_other_lists_are_bounded_too(small_hub, wheel):
    alice = await small_hub.person("alice")
    root = await small_hub.person("root-admin", admin=True)
    await alice.upload(wheel())
    tags = [f"{n} " + "\u0001" * 60 for n in range(50)]
    patch = {"description": "\u0001" * 4000, "tags": tags}
    assert (await alice.http.patch(f"{API}/alice/demo-env", json=patch)).is_success
    with sqlite3.connect(small_hub.settings.sqlite_path) as connection:
        copy_of = {
            "environments": ("normalized_name", "name", "full_name"),
            "versions": ("version", "canonical_version"),
            "audit_log": (),
        }
        for table, unique in copy_of.items():
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            kept = [c for c in columns if c not in ("id", *unique)]
            for n in range(600):
                names = ", ".join([*unique, *(["id"] if table != "audit_log" else []), *kept])
                own = [f"'{n}.0'" for _ in unique]
                own += [f"'{table[:3]}{n:022}'"] if table != "audit_log" else []
                row = "(SELECT max(id) FROM audit_log)" if table == "audit_log" else ""
                where = f"WHERE id = {row}" if row else "LIMIT 1"
                select = ", ".join([*own, *kept])
                connection.execute(
                    f"INSERT INTO {table} ({names}) SELECT {select} FROM {table} {where}"
                )
        connection.execute(
            "UPDATE versions SET yanked_at = created_at, yanked_reason = ?", ("é" * 1000,)
        )
        connection.execute(
            "UPDATE versions SET environment_id ="
            " (SELECT id FROM environments WHERE name = 'demo-env')"
        )
    connection.close()
    for address in (
        f"{API}/?limit=500",
        f"{API}/alice/demo-env/versions",
        "/api/v1/audit?limit=1000",
    ):
        answer = await root.http.get(address)
        assert answer.status_code == 200, (address, answer.text[:300])
        assert len(answer.content) < MIB, address
    versions = (await root.http.get(f"{API}/alice/demo-env/versions")).json()["data"]
    assert len(versions["versions"]) > 500


@pytest.mark.parametrize("count", [1, 50, 500])
def test_rows_are_cut_only_when_they_do_not_fit(count):
    rows = [{"id": f"c{n:024}", "text": "é" * 3000, "tags": ["t" * 300] * 50} for n in range(count)]
    fitted = stored.fitted(rows, {"text", "tags"})
    assert [row["id"] for row in fitted] == [row["id"] for row in rows]
    assert len(json.dumps(fitted, ensure_ascii=False).encode()) < MIB
    assert (fitted == rows) is (count == 1)


# --- quotas -------------------------------------------------------------------------------------


async def test_samples_and_metadata_count_in_the_quota_of_their_owner(open_small_hub, wheel):
    import os

    async with open_small_hub(owner_quota_bytes=200_000) as hub:
        alice, evaluation_id = await opened(hub, wheel)
        address = f"{EVALUATIONS}/{evaluation_id}"
        noise = os.urandom(60_000).hex()
        rows = {"samples": [{"x": noise}]}
        assert (await alice.http.post(f"{address}/samples", json=rows)).is_success
        assert (await alice.http.put(address, json={"metadata": {"x": noise[:90_000]}})).is_success
        detail = refused(await alice.http.put(address, json={"metadata": {"y": noise}}))
        assert "alice has used" in detail
        more = {"samples": [{"y": os.urandom(60_000).hex()}]}
        assert "alice has used" in refused(await alice.http.post(f"{address}/samples", json=more))
        big = wheel(name="big-env", files={"big_env.py": os.urandom(60_000)})
        assert "alice has used" in refused(await alice.upload(big))
        assert (await alice.http.delete(address)).is_success
        assert (await alice.upload(big)).is_success, "what is deleted does not count"


async def test_evaluations_samples_and_teams_have_a_largest_number(open_small_hub, wheel):
    async with open_small_hub(max_evaluations=2, max_samples=5, max_teams=2) as hub:
        alice, evaluation_id = await opened(hub, wheel)
        body = {"name": "x", "run_id": "r"}
        answers = [await alice.http.post(f"{EVALUATIONS}/", json=body) for _ in range(2)]
        assert [a.status_code for a in answers] == [200, 413]
        await alice.http.delete(f"{EVALUATIONS}/{evaluation_id}")
        again = await alice.http.post(f"{EVALUATIONS}/", json=body)
        assert again.status_code == 200
        address = f"{EVALUATIONS}/{again.json()['id']}/samples"
        assert (await alice.http.post(address, json={"samples": [{}] * 4})).is_success
        refused(await alice.http.post(address, json={"samples": [{"n": 1}] * 2}))
        teams = [await alice.http.post("/api/v1/teams", json={"slug": f"team-{n}x"}) for n in "abc"]
        assert [t.status_code for t in teams] == [200, 200, 413]


async def test_secrets_and_variables_of_one_place_are_bounded(small_hub, wheel):
    alice = await small_hub.person("alice")
    _, steps = await alice.push(wheel())
    address = f"{API}/{steps['environment_id']}/variables"
    statuses = []
    for n in range(10):
        body = {"name": f"V{n}", "value": "x" * 65_000}
        statuses.append((await alice.http.post(address, json=body)).status_code)
    assert statuses.count(413) == 2
    listed = await alice.http.get(address)
    assert len(listed.content) < MIB


# --- deleting -----------------------------------------------------------------------------------


async def test_a_deleted_evaluation_is_gone_for_everybody_and_its_rows_go_too(hub, wheel):
    alice, evaluation_id = await opened(hub, wheel)
    address = f"{EVALUATIONS}/{evaluation_id}"
    await alice.http.post(f"{address}/samples", json={"samples": [{"n": n} for n in range(250)]})
    bob = await hub.person("bob")
    assert (await bob.http.delete(address)).status_code == 403
    assert (await hub.http.delete(address)).status_code == 401
    done = await alice.http.delete(address)
    assert done.json() == {"success": True, "evaluation_id": evaluation_id}
    for client in (alice.http, bob.http, hub.http):
        assert (await client.get(address)).status_code == 404
        assert (await client.get(f"{address}/samples")).status_code == 404
        assert (await client.get(f"{EVALUATIONS}/")).json() == {"evaluations": [], "total": 0}
    assert (await alice.http.put(address, json={"name": "x"})).status_code == 404
    assert (await alice.http.delete(address)).status_code == 404
    assert await samples.purge(hub.database) == 1
    assert await samples.purge(hub.database) == 0
    entries = (await alice.http.get("/api/v1/audit")).json()["data"]
    assert entries[-1]["action"] == "evaluation.delete"


async def test_a_member_deletes_what_he_opened_and_an_admin_all(small_hub, wheel):
    alice, bob = await small_hub.person("alice"), await small_hub.person("bob")
    team = (await alice.http.post("/api/v1/teams", json={"slug": "acme"})).json()["data"]["teamId"]
    await alice.http.post(f"/api/v1/teams/{team}/members", json={"user": "bob", "role": "member"})
    ids = {}
    for person in (alice, bob):
        body = {"name": "x", "run_id": "r", "team_id": team}
        made = await person.http.post(f"{EVALUATIONS}/", json=body)
        ids[person.slug] = made.json()["id"]
    assert (await bob.http.delete(f"{EVALUATIONS}/{ids['alice']}")).status_code == 403
    assert (await bob.http.delete(f"{EVALUATIONS}/{ids['bob']}")).status_code == 200
    assert (await alice.http.delete(f"{EVALUATIONS}/{ids['alice']}")).status_code == 200
