"""Private environments: found and installed by those who may, and not there for everybody else."""

import base64

import httpx
import pytest
from sqlalchemy import Engine, event

from hub_server.environments.models import Environment

JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}
API = "/api/v1/environmentshub"


async def two_tenants(hub, wheel):
    alice, bob = await hub.person("alice"), await hub.person("bob")
    answer, _ = await alice.push(
        wheel(name="secret-env", files={"secret_env.py": b""}), visibility="PRIVATE"
    )
    assert answer.status_code == 200, answer.text
    return alice, bob


async def test_a_private_environment_looks_exactly_like_a_missing_one(hub, wheel):
    alice, bob = await two_tenants(hub, wheel)
    addresses = [
        f"{API}/alice/NAME/@latest",
        f"{API}/alice/NAME/@0.1.0",
        f"{API}/alice/NAME/versions",
        f"{API}/alice/NAME/status",
        f"{API}/alice/NAME/@latest/inspect",
        f"{API}/alice/NAME/@latest/pylock.toml",
        "/alice/simple/NAME/",
        "/alice/NAME/simple/",
        "/alice/NAME/simple/NAME/",
        f"/files/alice/NAME/{'0' * 64}/x-1-py3-none-any.whl",
    ]
    for client in (hub.http, bob.http):
        for address in addresses:
            real = await client.get(address.replace("NAME", "secret-env"))
            missing = await client.get(address.replace("NAME", "absent-env"))
            assert real.status_code in (401, 403, 404), address
            assert (real.status_code, real.text.replace("secret-env", "absent-env")) == (
                missing.status_code,
                missing.text,
            ), address
            ignored = ("x-request-id", "ratelimit-remaining", "content-length")
            assert {k: v for k, v in real.headers.items() if k not in ignored} == {
                k: v for k, v in missing.headers.items() if k not in ignored
            }
    assert (await alice.http.get("/alice/simple/secret-env/")).status_code == 200


async def test_a_private_environment_takes_the_same_steps_as_a_missing_one(small_hub, wheel):
    """Time is told by what is done: the same statements, and nothing loaded that is then kept back."""
    _, bob = await two_tenants(small_hub, wheel)
    steps: list[str] = []

    def note_statement(connection, cursor, statement, *_):
        steps.append(statement)

    def note_row(target, context):
        steps.append(type(target).__name__)

    event.listen(Engine, "before_cursor_execute", note_statement)
    event.listen(Environment, "load", note_row)
    try:
        for client in (small_hub.http, bob.http):
            for address in ("@latest", "versions", "status", "@0.1.0/pylock.toml"):
                seen = []
                for name in ("secret-env", "absent-env"):
                    steps.clear()
                    await client.get(f"{API}/alice/{name}/{address}")
                    seen.append(list(steps))
                assert seen[0] == seen[1]
                assert any("environments" in step for step in seen[0]), "they were looked for"
    finally:
        event.remove(Environment, "load", note_row)
        event.remove(Engine, "before_cursor_execute", note_statement)


@pytest.mark.parametrize("method", ["PATCH", "DELETE", "PUT", "POST"])
async def test_changing_what_is_hidden_is_answered_like_changing_what_is_missing(
    small_hub, wheel, method
):
    _, bob = await two_tenants(small_hub, wheel)
    place = {"PATCH": "", "DELETE": "", "PUT": "/star", "POST": "/fork"}[method]
    texts = []
    for name in ("secret-env", "absent-env"):
        answer = await bob.http.request(method, f"{API}/alice/{name}{place}", json={})
        texts.append((answer.status_code, answer.text.replace(name, "NAME")))
    assert texts[0] == texts[1]
    assert texts[0][0] == 404


async def test_a_crawl_by_strangers_meets_no_trace_of_private_things(hub, wheel):
    """Every address that the API describes, with every id that exists, as nobody and as Bob."""
    alice = await hub.person("alice")
    bob = await hub.person("bob")
    marker = "xyzzy"
    made = wheel(
        name=f"{marker}-env",
        metadata=f"Summary: {marker} summary\nKeywords: {marker}-tag\n",
        readme=f"# {marker}\n",
        files={f"{marker}_env.py": b""},
    )
    _, steps = await alice.push(made, visibility="PRIVATE")
    environment_id = steps["environment_id"]
    evaluation = (
        await alice.http.post(
            "/api/v1/evaluations/",
            json={
                "name": f"{marker} run",
                "environments": [{"id": environment_id}],
                "metadata": {"m": marker},
                "model_name": marker,
            },
        )
    ).json()["evaluation_id"]
    await alice.http.post(
        f"/api/v1/evaluations/{evaluation}/samples", json={"samples": [{"text": marker}]}
    )
    await alice.http.post(
        f"{API}/{environment_id}/secrets", json={"name": "XYZZY_KEY", "value": marker}
    )
    paths = (await hub.http.get("/api/v1/openapi.json")).json()["paths"]
    values = {
        "owner": "alice",
        "name": "hidden",
        "environment_id": environment_id,
        "evaluation_id": evaluation,
        "reference": "latest",
        "project": f"{marker}-env",
        "team_id": alice.id,
        "sha256": "0" * 64,
        "filename": made.filename,
    }
    seen = 0
    for path, methods in paths.items():
        if "get" not in methods:
            continue
        for name in (f"{marker}-env",):
            address = path
            for key, value in {**values, "name": name}.items():
                address = address.replace("{" + key + "}", value)
            address = address.replace("{secret_id}", environment_id).replace("{user}", "alice")
            for query in (
                "",
                f"?search={marker}",
                f"?tags={marker}-tag",
                "?owner=alice",
                "?since=0",
            ):
                for client in (hub.http, bob.http):
                    answer = await client.get(address + query)
                    seen += 1
                    assert answer.status_code < 500, address
                    text = answer.text.lower().replace(f"alice/{marker}-env", "")
                    text = text.replace(f"{marker}-env", "") if answer.status_code >= 400 else text
                    assert marker not in text, f"{address}{query}: {answer.text}"
    assert seen > 150


async def test_conditional_requests_are_no_oracle(small_hub, wheel):
    alice, bob = await two_tenants(small_hub, wheel)
    page = await alice.http.get("/alice/simple/secret-env/", headers=JSON)
    assert page.headers["cache-control"] == "private, no-cache"
    assert "authorization" in page.headers["vary"]
    file = page.json()["files"][0]
    address = "/" + file["url"].removeprefix("../../../")
    known = {"If-None-Match": page.headers["etag"], **JSON}
    assert (await bob.http.get("/alice/simple/secret-env/", headers=known)).status_code == 403
    tag = {"If-None-Match": f'"{file["hashes"]["sha256"]}"'}
    assert (await small_hub.http.get(address, headers=tag)).status_code == 401
    assert (await bob.http.get(address, headers=tag)).status_code == 404
    got = await alice.http.get(address)
    assert got.headers["cache-control"].startswith("private")


async def test_making_public_and_private_again_takes_effect_at_once(hub, wheel):
    alice, bob = await two_tenants(hub, wheel)
    address = "/alice/simple/secret-env/"
    for visibility, status in (("PUBLIC", 200), ("PRIVATE", 403), ("PUBLIC", 200)):
        answer = await alice.http.patch(f"{API}/alice/secret-env", json={"visibility": visibility})
        assert answer.status_code == 200
        for _ in range(2):  # the second time from memory
            assert (await bob.http.get(address)).status_code == status
            anonymous = 401 if status == 403 else status
            assert (await hub.http.get(address)).status_code == anonymous


async def test_install_addresses_of_a_private_environment_carry_a_token_for_it_alone(hub, wheel):
    alice, _ = await two_tenants(hub, wheel)
    details = (await alice.http.get(f"{API}/alice/secret-env/@latest")).json()["data"]
    address = httpx.URL(details["wheel_url"])
    assert address.username == "__token__"
    inside = await hub.client(address.password)
    assert (await inside.get(f"{API}/alice/secret-env/@latest")).status_code == 200
    assert (await inside.get(f"{API}/alice/other-env/@latest")).status_code == 404
    refused = await inside.post(f"{API}/resolve", json={"name": "secret-env"})
    assert refused.status_code in (200, 403)
    wheel_id = await inside.post(
        f"{API}/{details['id']}/wheels",
        json={"content_hash": "0" * 64, "filename": "x.whl", "sha256": "0" * 64},
    )
    assert wheel_id.status_code == 403
    assert (await inside.get("/api/v1/tokens")).status_code == 403
    got = await hub.http.get(
        address.path, headers={"Authorization": _basic(address.password)}, follow_redirects=False
    )
    assert got.status_code in (200, 302)


async def test_an_install_token_ends_with_the_token_that_asked_for_it(hub, wheel):
    alice, _ = await two_tenants(hub, wheel)
    body = {"name": "short", "actions": ["read", "account"], "expires_in_s": 60}
    short = (await alice.http.post("/api/v1/tokens", json=body)).json()["data"]
    briefly = await hub.client(short["token"])
    child = {"name": "child", "actions": ["read"], "expires_in_s": 7200}
    made = (await briefly.post("/api/v1/tokens", json=child)).json()["data"]
    assert made["expires_at"] == short["expires_at"]
    child.pop("expires_in_s")
    made = (await briefly.post("/api/v1/tokens", json=child)).json()["data"]
    assert made["expires_at"] == short["expires_at"]
    # One inside an address cannot renew itself by asking for the address again.
    names = {"environments": ["alice/secret-env"]}
    first = (await briefly.post(f"{API}/install-token", json=names)).json()["data"]
    inside = await hub.client(first["token"])
    again = (await inside.post(f"{API}/install-token", json=names)).json()["data"]
    assert again["expires_at"] == first["expires_at"] == short["expires_at"]


async def test_one_install_token_reads_the_environments_it_was_asked_for_and_no_other(hub, wheel):
    alice, bob = await two_tenants(hub, wheel)
    await alice.push(wheel(name="second-env"), visibility="PRIVATE")
    names = ["alice/secret-env", "alice/Second_Env"]
    answer = await alice.http.post(f"{API}/install-token", json={"environments": names})
    data = answer.json()["data"]
    assert data["environments"] == ["alice/second-env", "alice/secret-env"]
    inside = await hub.client(data["token"])
    for name in ("secret-env", "second-env"):
        assert (await inside.get(f"{API}/alice/{name}/@latest")).status_code == 200
    for address in (f"{API}/alice/other-env/@latest", f"{API}/alice/missing/@latest"):
        assert (await inside.get(address)).status_code == 404
    for caller in (bob.http, inside):
        for name in ("alice/third-env", "alice", ""):
            refused = await caller.post(f"{API}/install-token", json={"environments": [name]})
            assert refused.status_code == 404
    assert (
        await bob.http.post(f"{API}/install-token", json={"environments": names})
    ).status_code == 404
    assert (await hub.http.post(f"{API}/install-token", json={"environments": names})).is_error
    writer = await hub.person("alice", actions=["publish"])
    refused = await writer.http.post(f"{API}/install-token", json={"environments": names})
    assert refused.status_code == 403


def _basic(token):
    return "Basic " + base64.b64encode(f"__token__:{token}".encode()).decode()


async def test_a_hub_can_be_closed_to_everyone_without_an_account(open_small_hub, wheel):
    async with open_small_hub(anonymous_read=False) as hub:
        alice, bob = await hub.person("alice"), await hub.person("bob")
        await alice.upload(wheel())
        for address, status in (
            ("/alice/simple/demo-env/", 401),
            (f"{API}/alice/demo-env/@latest", 404),
        ):
            assert (await bob.http.get(address)).status_code == 200
            assert (await hub.http.get(address)).status_code == status
        assert (await hub.http.get(f"{API}/")).json()["data"] == []
        details = (await bob.http.get(f"{API}/alice/demo-env/@latest")).json()["data"]
        wheel_url = httpx.URL(details["wheel_url"])
        assert (await hub.http.get(wheel_url.path)).status_code == 401
        login = {"Authorization": _basic(wheel_url.password)}
        assert (await hub.http.get(wheel_url.path, headers=login)).status_code == 200
