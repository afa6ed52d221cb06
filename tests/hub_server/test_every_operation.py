"""Every operation of the OpenAPI document under nonsense: no 5xx, no hang, and nothing without a token."""

import json
import random

import pytest

NONSENSE = [
    None,
    True,
    0,
    -1,
    10**30,
    1.5,
    "",
    "x",
    "é" * 50,
    "\u0000",
    "a/b",
    "../..",
    "%00",
    [],
    {},
    [None],
    {"a": {}},
    "x" * 5000,
]
OPEN_TO_ALL = {
    "/health",
    "/ready",
    "/metrics",
    "/api/v1/setup",
    "/api/v1/login",
    "/api/v1/tokens/leaked",
    "/api/v1/auth_challenge/generate",
    "/api/v1/auth_challenge/status",
    "/api/v1/oauth/device",
    "/api/v1/oauth/token",
    "/api/v1/traces",
    "/upload/{upload_id}/{secret}",
    "/api/v1/environmentshub/lookup",
}
"""Operations that change nothing of value, or carry their own proof."""


async def document(hub):
    return (await hub.http.get("/api/v1/openapi.json")).json()


def operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def fields_of(document, operation):
    content = operation.get("requestBody", {}).get("content", {})
    schema = next(iter(content.values()), {}).get("schema", {})
    for reference in [schema, *schema.get("anyOf", [])]:
        name = reference.get("$ref", "").rpartition("/")[2]
        if name:
            return list(document["components"]["schemas"][name].get("properties", {}))
    return []


@pytest.mark.parametrize("attempts", [4, pytest.param(12, marks=pytest.mark.long)])
async def test_no_nonsense_makes_a_fault(hub, open_hub_at, wheel, attempts):
    chance = random.Random(20260101)
    changes = {"login_limit_per_minute": 100_000, "rate_limit_per_minute": 1_000_000}
    async with open_hub_at(hub.settings.model_copy(update=changes)) as hub:
        alice = await hub.person("alice", admin=True)
        _, steps = await alice.push(wheel())
        described = await document(hub)
        real = {
            "owner": "alice",
            "name": "demo-env",
            "environment_id": steps["environment_id"],
            "reference": "latest",
            "project": "demo-env",
        }
        count = 0
        for path, method, operation in operations(described):
            if (path, method) == ("/api/v1/tokens/{token_id}", "delete"):
                continue
            for attempt in range(attempts):
                address, query = path, {}
                for parameter in operation.get("parameters", []):
                    value = chance.choice(NONSENSE)
                    if parameter["in"] == "path":
                        known = real.get(parameter["name"], "x")
                        text = known if attempt % 2 else str(value or "x")
                        text = (
                            text.replace("/", "%2F")
                            .replace("\u0000", "%00")
                            .replace("..", "%2E%2E")
                        )
                        address = address.replace("{%s}" % parameter["name"], text)  # noqa: UP031
                    elif chance.random() < 0.7:
                        query[parameter["name"]] = str(value)
                body = {
                    field: chance.choice(NONSENSE)
                    for field in fields_of(described, operation)
                    if chance.random() < 0.8
                }
                content = json.dumps(body if attempt else chance.choice(NONSENSE))
                answer = await alice.http.request(
                    method,
                    address,
                    params=query,
                    content=content,
                    headers={"Content-Type": "application/json"},
                )
                count += 1
                assert answer.status_code < 500, (method, address, query, content, answer.text)
        assert count > 50 * attempts


async def test_nothing_changes_without_a_token(small_hub, wheel):
    alice = await small_hub.person("alice")
    _, steps = await alice.push(wheel())
    described = await document(small_hub)
    before = (await alice.http.get("/api/v1/changes")).json()
    for path, method, operation in operations(described):
        if method in ("get", "head") or path in OPEN_TO_ALL:
            continue
        address = path
        for name, value in (
            ("owner", "alice"),
            ("name", "demo-env"),
            ("environment_id", steps["environment_id"]),
            ("reference", "latest"),
        ):
            address = address.replace("{%s}" % name, value)  # noqa: UP031
        answer = await small_hub.http.request(method, address, json={})
        assert answer.status_code in (401, 422), (method, address, answer.status_code)
        assert operation["operationId"]
    assert (await alice.http.get("/api/v1/changes")).json() == before


@pytest.mark.parametrize("actions", [["read"], ["publish"], ["evaluate"], ["secrets"], ["account"]])
async def test_a_token_for_one_thing_does_nothing_else(small_hub, wheel, actions):
    alice = await small_hub.person("alice")
    _, steps = await alice.push(wheel(), visibility="PRIVATE")
    narrow = await small_hub.person("alice", actions=actions)
    api, environment_id = "/api/v1/environmentshub", steps["environment_id"]
    wheel_2 = wheel(version="2.0")
    attempts = {
        "read": narrow.http.get(f"{api}/alice/demo-env/@latest"),
        "publish": narrow.upload(wheel_2),
        "manage": narrow.http.patch(f"{api}/alice/demo-env", json={"description": "x"}),
        "secrets": narrow.http.get("/api/v1/secrets/"),
        "account": narrow.http.get("/api/v1/tokens"),
        "evaluate": narrow.http.post("/api/v1/evaluations/", json={"name": "x", "run_id": "r"}),
    }
    for needed, attempt in attempts.items():
        answer = await attempt
        if needed in actions and needed not in ("publish", "evaluate"):
            assert answer.status_code == 200, (needed, answer.text)
        if needed not in actions:
            assert answer.status_code in (403, 404), (needed, answer.text)
    assert environment_id
