"""What the hub stores as JSON can be sent again: values that cannot are refused by every route, and old ones mended."""

import json
import math
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_server import stored
from hub_server.database import Database
from hub_server.errors import BadRequest, TooLarge
from hub_server.migrations import downgrade, upgrade

API = "/api/v1/environmentshub"
EVALUATIONS = "/api/v1/evaluations"

BAD_VALUES = {
    "deep": "[" * 300 + "]" * 300,
    "deeper than a parser goes": "[" * 100_000 + "]" * 100_000,
    "a little too deep": "[" * 64 + "]" * 64,
    "a lone surrogate": r'"\ud800"',
    "a lone low surrogate": r'"x\udc00y"',
    "a surrogate in a key": r'{"\ud800": 1}',
    "NUL": r'"a\u0000b"',
    "NUL in a key": r'{"\u0000": 1}',
    "NaN": "NaN",
    "Infinity": "-Infinity",
    "a number beyond all numbers": "1e999",
    "very many values": "[" + ",".join("0" * 200_000) + "]",
}
bad = pytest.mark.parametrize("value", BAD_VALUES.values(), ids=BAD_VALUES)


async def opened(hub, wheel, **fields):
    alice = await hub.person("alice")
    _, steps = await alice.push(wheel())
    body = {"name": "run", "environments": [{"id": steps["environment_id"]}], "is_public": True}
    answer = await alice.http.post(f"{EVALUATIONS}/", json={**body, **fields})
    assert answer.status_code == 200, answer.text
    return alice, answer.json()["evaluation_id"], steps["environment_id"]


async def send(client, method, path, text):
    headers = {"Content-Type": "application/json"}
    return await client.request(method, path, content=text, headers=headers)


@bad
async def test_no_route_stores_what_cannot_be_sent_again(hub, wheel, value):
    alice, evaluation_id, environment_id = await opened(hub, wheel)
    about = f'"environments": [{{"id": "{environment_id}"}}]'
    requests = [
        ("POST", f"{EVALUATIONS}/", '{"name": "x", ABOUT, "metadata": {"x": BAD}}'),
        ("POST", f"{EVALUATIONS}/", '{"name": "x", ABOUT, "metrics": {"x": BAD}}'),
        ("PUT", f"{EVALUATIONS}/{evaluation_id}", '{"metadata": {"x": BAD}}'),
        ("PUT", f"{EVALUATIONS}/{evaluation_id}", '{"description": BAD}'),
        ("POST", f"{EVALUATIONS}/{evaluation_id}/finalize", '{"metrics": {"x": BAD}}'),
        ("PATCH", f"{API}/alice/demo-env", '{"description": BAD}'),
        ("PATCH", f"{API}/alice/demo-env", '{"tags": [BAD]}'),
        ("POST", f"{API}/alice/demo-env/@0.1.0/yank", '{"reason": BAD}'),
        ("POST", "/api/v1/tokens", '{"name": BAD}'),
        ("POST", "/api/v1/teams", '{"slug": "acme", "name": BAD}'),
        ("POST", "/api/v1/secrets/", '{"name": "KEY", "value": BAD}'),
        ("POST", "/api/v1/tokens/leaked", '[{"token": BAD}]'),
        ("POST", f"{API}/lookup", '{"name": BAD}'),
        ("POST", "/api/v1/login", '{"username": BAD, "password": "x"}'),
    ]
    for method, path, text in requests:
        text = text.replace("ABOUT", about).replace("BAD", value)
        answer = await send(alice.http, method, path, text)
        assert answer.status_code in (400, 413), (method, path, answer.status_code, answer.text)
        assert answer.json()["detail"]
    listed = await hub.http.get(f"{EVALUATIONS}/")
    assert (listed.status_code, listed.json()["total"]) == (200, 1)
    assert (await hub.http.get(f"{EVALUATIONS}/{evaluation_id}")).json()["metadata"] == {
        "num_examples": None,
        "rollouts_per_example": None,
    }
    assert (await alice.http.get("/api/v1/audit")).status_code == 200
    assert (await alice.http.get("/api/v1/tokens")).status_code == 200


@pytest.mark.parametrize(
    "name", [n for n in BAD_VALUES if not n.startswith(("NUL", "a little", "very many"))]
)
async def test_a_sample_that_cannot_be_sent_again_is_refused(small_hub, wheel, name):
    alice, evaluation_id, _ = await opened(small_hub, wheel)
    text = '{"samples": [{"ok": 1}, {"x": BAD}]}'.replace("BAD", BAD_VALUES[name])
    answer = await send(alice.http, "POST", f"{EVALUATIONS}/{evaluation_id}/samples", text)
    assert answer.status_code in (400, 413), answer.text
    page = await small_hub.http.get(f"{EVALUATIONS}/{evaluation_id}/samples")
    assert page.json()["samples"] == []


async def test_a_sample_may_contain_nul_characters_because_models_write_them(hub, wheel):
    alice, evaluation_id, _ = await opened(hub, wheel)
    rows = [{"sample_id": "a\x00b", "completion": "x\x00"}, {"example_id": {"\x00": 1}, "n": 2}]
    address = f"{EVALUATIONS}/{evaluation_id}/samples"
    answer = await alice.http.post(address, json={"samples": rows})
    assert answer.status_code == 200, answer.text
    assert (await alice.http.get(address)).json()["samples"] == rows


async def test_a_packed_body_is_refused_unread(small_hub, wheel):
    import gzip

    alice, evaluation_id, _ = await opened(small_hub, wheel)
    packed = gzip.compress(json.dumps({"samples": [{"x": "a" * 10**6}]}).encode())
    answer = await alice.http.post(
        f"{EVALUATIONS}/{evaluation_id}/samples",
        content=packed,
        headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
    )
    assert (answer.status_code, "Content-Encoding" in answer.text) == (415, True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(st.characters()), inside),
)


@given(JSON)
def test_whatever_is_mended_can_be_encoded_and_stays_when_it_was_good(value):
    text = stored.encoded(stored.mended(value), "it")
    good = stored.mended(value)
    assert stored.mended(good) == good
    assert stored.parse_request(text) is not ...


@given(JSON)
def test_what_is_parsed_can_be_encoded(value):
    try:
        parsed = stored.parse_request(json.dumps(value).encode())
    except (BadRequest, TooLarge):
        return
    assert stored.encoded(parsed, "it")


def test_mending_cuts_what_is_too_deep_and_what_is_no_number():
    deep = value = []
    for _ in range(500):
        value.append([])
        value = value[0]
    mended = stored.mended({"a": deep, "b": math.nan, "c": "x\ud800", "d": 10**30, "e\x00": 1})
    assert stored.encoded(mended, "it")
    assert (mended["b"], mended["c"], mended["e"]) == (None, "x\ufffd", 1)


# --- a hub that was broken before ---------------------------------------------------------------

POISON = {
    "deep": json.dumps({"x": json.loads("[" * 300 + "]" * 300)}),
    "surrogate": json.dumps({"x": "\ud800"}),
    "nan": '{"x": NaN, "num_examples": 3}',
    "damaged": '{"x": ',
    "no object": "[1]",
    "long": json.dumps({"x": "a" * 3_000_000, "num_examples": 7}),
}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
async def test_a_hub_that_an_evaluation_had_broken_answers_after_the_upgrade(
    small_hub, wheel, open_hub_at, poison
):
    alice, evaluation_id, _ = await opened(small_hub, wheel, metrics={"reward": 0.5})
    _, other, _ = await opened(small_hub, wheel)
    rows = {"samples": [{"n": n} for n in range(3)]}
    await alice.http.post(f"{EVALUATIONS}/{evaluation_id}/samples", json=rows)
    await downgrade(small_hub.database.engine, "0001")
    path = small_hub.settings.sqlite_path
    with sqlite3.connect(path) as connection:
        update = "UPDATE evaluations SET run_metadata = ?, details = ?, model_name = ? WHERE id = ?"
        connection.execute(update, (poison, poison, "m" * 10**6, evaluation_id))
    connection.close()
    database = Database(small_hub.settings.sqlalchemy_url)
    await upgrade(database.engine)
    await database.aclose()
    async with open_hub_at(small_hub.settings) as hub:
        listed = await hub.http.get(f"{EVALUATIONS}/")
        assert listed.status_code == 200, listed.text
        assert {row["id"] for row in listed.json()["evaluations"]} == {evaluation_id, other}
        assert len(listed.content) < 20_000
        for address in ("", "/metadata", "/samples"):
            answer = await hub.http.get(f"{EVALUATIONS}/{evaluation_id}{address}")
            assert answer.status_code == 200, (address, answer.text[:300])
            answer.json()
        alice = await hub.client(alice.token)
        changed = await alice.put(f"{EVALUATIONS}/{evaluation_id}", json={"name": "again"})
        assert changed.status_code == 200
        assert changed.json()["metrics"] == {"reward": 0.5}


async def test_a_row_that_nothing_has_mended_breaks_no_list(small_hub, wheel):
    """As after an upgrade by the printed statements, which cannot read JSON."""
    _, evaluation_id, _ = await opened(small_hub, wheel)
    with sqlite3.connect(small_hub.settings.sqlite_path) as connection:
        update = "UPDATE evaluations SET run_metadata = ?, metrics = ?, summary = '{}'"
        connection.execute(update, (POISON["deep"], POISON["surrogate"]))
    connection.close()
    for address in (f"{EVALUATIONS}/", f"{EVALUATIONS}/{evaluation_id}"):
        answer = await small_hub.http.get(address)
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        assert isinstance(shown.get("metadata", {}), dict)
