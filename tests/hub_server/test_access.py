"""Every route declares what it is about, and asks for it: the table of routes against the table of callers."""

import json
import re

import pytest
from fastapi.routing import APIRoute

from hub_server.access import AccessGate, HubRoute
from hub_server.accounts.authorisation import About, Action
from hub_server.app import ROUTERS

API = "/api/v1/environmentshub"
NOT_OURS = {"/api/v1/openapi.json"}
"""Routes that FastAPI makes: the document itself, which everybody may read."""


def all_routes():
    return [route for router in ROUTERS for route in router.routes]


def application(hub):
    """The FastAPI application inside the layers around it."""
    app = hub.app
    while hasattr(app, "_application"):
        app = app._application
    return app


def operations(routes):
    return [(method, route) for route in routes for method in sorted(route.methods)]


def test_every_route_declares_its_action_and_what_it_is_about():
    undeclared = [
        route.path
        for route in all_routes()
        if not isinstance(getattr(route, "gate", None), AccessGate)
    ]
    assert undeclared == []
    assert len(all_routes()) > 80
    for route in all_routes():
        access = route.gate.access
        assert isinstance(access.about, About)
        needs_no_token = access.about in (About.PUBLIC, About.ADDRESS)
        assert not (needs_no_token and access.action), route.path
        names_an_owner = re.search(r"\{(owner|environment_id|evaluation_id)\}", route.path)
        is_redirect = not route.include_in_schema
        if names_an_owner and not is_redirect:
            assert access.about in (About.ENVIRONMENT, About.EVALUATION), route.path


async def test_the_application_has_no_route_beside_those(small_hub):
    """Also of those that the OpenAPI document leaves out."""
    routes = application(small_hub).routes
    assert {route.path for route in routes if route not in all_routes()} == NOT_OURS
    assert [route for route in routes if route in all_routes()] == all_routes()


async def test_the_document_says_what_each_operation_asks_for(small_hub):
    paths = (await small_hub.http.get("/api/v1/openapi.json")).json()["paths"]
    described = [operation for methods in paths.values() for operation in methods.values()]
    assert len(described) > 80
    for operation in described:
        access = operation["x-access"]
        assert access["about"] in set(About)
        assert access["action"] == "none" or access["action"] in set(Action)


def test_a_route_without_a_declaration_cannot_be_defined():
    async def handler() -> None: ...

    with pytest.raises(TypeError, match="declares 0 accesses"):
        HubRoute("/new", handler)
    assert issubclass(HubRoute, APIRoute)


# --- every route, asked by everybody ------------------------------------------------------------

BODIES = {
    ("POST", f"{API}/resolve"): {"name": "alice/secret-env"},
    ("POST", f"{API}/lookup"): {"id": "{environment_id}"},
    ("POST", f"{API}/install-token"): {"environments": ["alice/secret-env"]},
    ("PATCH", f"{API}/{{owner}}/{{name}}"): {"description": "changed"},
    ("POST", f"{API}/{{owner}}/{{name}}/@{{reference}}/yank"): {"reason": "x"},
    ("POST", f"{API}/{{owner}}/{{name}}/fork"): {"team_id": "{team_id}"},
    ("POST", f"{API}/{{environment_id}}/wheels"): "artifact",
    ("POST", f"{API}/{{environment_id}}/versions"): "artifact",
    ("POST", f"{API}/{{environment_id}}/secrets"): {"name": "NEW", "value": "x"},
    ("POST", f"{API}/{{environment_id}}/variables"): {"name": "NEW", "value": "x"},
    ("PATCH", f"{API}/{{environment_id}}/secrets/{{secret_id}}"): {"value": "x"},
    ("PATCH", f"{API}/{{environment_id}}/variables/{{secret_id}}"): {"value": "x"},
    ("POST", "/api/v1/hub/{owner}/{name}/reserve"): {
        "files": [{"filename": "secret_env-9-py3-none-any.whl", "sha256": "0" * 64, "size": 1}]
    },
    ("POST", "/api/v1/hub/{owner}/{name}/finalize"): {"upload_ids": ["x"]},
    ("POST", "/api/v1/evaluations/"): {
        "name": "run",
        "environments": [{"id": "{environment_id}"}],
    },
    ("PUT", "/api/v1/evaluations/{evaluation_id}"): {"name": "changed"},
    ("POST", "/api/v1/evaluations/{evaluation_id}/samples"): {"samples": []},
    ("PATCH", "/api/v1/user/slug"): {"slug": "alicia"},
    ("POST", "/api/v1/teams"): {"slug": "new-team"},
    ("POST", "/api/v1/teams/{team_id}/members"): {"user": "bob"},
    ("POST", "/api/v1/tokens"): {"name": "t", "actions": ["read"], "environments": ["*"]},
    ("POST", "/api/v1/auth_challenge/approve"): {"code": "BBBB-BBBB"},
    ("POST", "/api/v1/secrets/"): {"name": "OWN", "value": "x"},
    ("PATCH", "/api/v1/secrets/{secret_id}"): {"value": "x"},
}


async def stocked(hub, wheel):
    """A private environment of Alice with everything that a route can name, and values for all paths."""
    alice, bob = await hub.person("alice"), await hub.person("bob")
    made = wheel(name="secret-env", files={"secret_env.py": b""})
    _, steps = await alice.push(made, visibility="PRIVATE")
    await alice.upload(wheel(name="pub-env", files={"pub_env.py": b""}))
    environment_id = steps["environment_id"]
    body = {"name": "run", "environments": [{"id": environment_id}]}
    evaluation = (await alice.http.post("/api/v1/evaluations/", json=body)).json()
    own = (await alice.http.post("/api/v1/secrets/", json={"name": "KEY", "value": "v"})).json()
    team = (await alice.http.post("/api/v1/teams", json={"slug": "acme"})).json()["data"]
    details = (await alice.http.get(f"{API}/alice/secret-env/@latest")).json()["data"]
    sha256, filename = details["wheel_url"].partition("#")[0].split("/")[-2:]
    values = {
        "owner": "alice",
        "name": "secret-env",
        "project": "secret-env",
        "reference": "latest",
        "environment_id": environment_id,
        "evaluation_id": evaluation["evaluation_id"],
        "secret_id": own["data"]["id"],
        "team_id": team["teamId"],
        "user": "bob",
        "upload_id": "c" + "0" * 24,
        "token_id": "c" + "0" * 24,
        "sha256": sha256,
        "filename": filename,
        "rest": "x",
        "secret": "x",
    }
    return alice, bob, values


def request_of(method, route, values):
    """Path and JSON body that fit the route."""
    path = re.sub(r"\{(\w+)(?::path)?\}", lambda m: values[m[1]], route.path)
    body = BODIES.get((method, route.path))
    if body == "artifact":
        body = {"content_hash": "1" * 64, "filename": "secret_env-9-py3-none-any.whl"}
        body |= {"sha256": "0" * 64}
    text = json.dumps(body)
    for name, value in values.items():
        text = text.replace(f'"{{{name}}}"', json.dumps(value))
    return path, json.loads(text)


def guarded():
    return [
        (method, route)
        for method, route in operations(all_routes())
        if route.gate.access.about not in (About.PUBLIC, About.ADDRESS)
    ]


async def is_refused(client, method, path, body):
    """Whether the request is refused for who asks; 422 would mean that nobody looked."""
    files = {"content": ("secret_env-9-py3-none-any.whl", b"x")} if "legacy" in path else None
    answer = await client.request(method, path, json=body, files=files)
    return answer.status_code in (401, 403, 404), answer


async def test_no_route_serves_a_private_thing_to_strangers(small_hub, wheel):
    _, bob, values = await stocked(small_hub, wheel)
    for method, route in guarded():
        about = route.gate.access.about
        if about in (About.CALLER, About.ACCOUNT) or not re.search(
            r"\{(environment_id|evaluation_id|name|project)\}", route.path
        ):
            continue  # about the stranger's own things
        path, body = request_of(method, route, values)
        for client in (bob.http, small_hub.http):
            refused, answer = await is_refused(client, method, path, body)
            assert refused, (method, path, answer.status_code, answer.text[:300])


async def test_no_route_serves_a_caller_without_a_token_unless_it_says_so(small_hub, wheel):
    _, _, values = await stocked(small_hub, wheel)
    for method, route in guarded():
        if not route.gate.access.is_open:
            path, body = request_of(method, route, values)
            refused, answer = await is_refused(small_hub.http, method, path, body)
            assert (refused, answer.status_code) == (True, 401), (method, path, answer.text[:200])


async def test_no_route_serves_a_token_without_its_action(small_hub, wheel):
    _, _, values = await stocked(small_hub, wheel)
    for action in Action:
        without = [a.value for a in Action if a not in (action, Action.ADMIN)]
        person = await small_hub.person("alice", actions=without)
        for method, route in guarded():
            if route.gate.access.action is not action or route.gate.access.is_open:
                continue
            path, body = request_of(method, route, values)
            refused, answer = await is_refused(person.http, method, path, body)
            assert refused, (method, path, answer.status_code, answer.text[:200])


async def test_no_route_serves_a_token_of_another_environment(small_hub, wheel):
    """Its owner's token, with all actions, for `alice/pub-env`: it must not act on anything else."""
    _, _, values = await stocked(small_hub, wheel)
    person = await small_hub.person("alice", environments=["alice/pub-env"])
    for method, route in guarded():
        path, body = request_of(method, route, values)
        about = route.gate.access.about
        names_nothing = not re.search(r"\{|legacy|resolve|lookup|install-token", route.path)
        if about is About.CALLER and route.path != "/api/v1/tokens" and "tokens/" not in route.path:
            continue
        if about in (About.ENVIRONMENT, About.EVALUATION) and names_nothing and method == "GET":
            continue  # a list: its contents are looked at below
        if route.path in ("/{owner}/simple/", "/legacy/", "/{owner}/legacy/"):
            continue  # the list of an owner; the form names its environment, see below
        refused, answer = await is_refused(person.http, method, path, body)
        assert refused, (method, path, answer.status_code, answer.text[:300])
    form = wheel(name="secret-env", version="2", files={"secret_env.py": b""})
    assert (await person.upload(form)).status_code in (403, 404)
    page = await person.http.get("/alice/simple/")
    assert "secret-env" not in page.text
    assert "pub-env" in page.text


async def test_lists_show_a_bound_token_only_what_it_is_for(small_hub, wheel):
    alice, _, values = await stocked(small_hub, wheel)
    found = (await alice.http.get(f"{API}/alice/pub-env/@latest")).json()["data"]
    body = {"name": "mine", "environments": [{"id": found["id"]}]}
    mine = (await alice.http.post("/api/v1/evaluations/", json=body)).json()["evaluation_id"]
    loose = {"name": "no environment", "run_id": "r"}
    loose = (await alice.http.post("/api/v1/evaluations/", json=loose)).json()["evaluation_id"]
    person = await small_hub.person("alice", environments=["alice/pub-env"])
    seen = (await person.http.get("/api/v1/evaluations/")).json()["evaluations"]
    assert [row["id"] for row in seen] == [mine]
    listed = (await person.http.get(f"{API}/")).json()["data"]
    assert [row["name"] for row in listed] == ["pub-env"]
    assert (await person.http.get("/api/v1/user/teams")).json()["data"] == []
    assert (await person.http.get("/api/v1/user/whoami")).json()["data"]["email"] is None
    assert (await person.http.get(f"/api/v1/evaluations/{loose}")).status_code == 404
    changes = (await person.http.get("/api/v1/changes")).json()["data"]
    assert {row["name"] for row in changes} == {"pub-env"}
    assert values


async def test_a_bound_token_changes_no_public_evaluation_of_another_environment(small_hub, wheel):
    alice = await small_hub.person("alice")
    ids = {}
    for name in ("one-env", "two-env"):
        await alice.upload(wheel(name=name, files={f"{name[:3]}_env.py": b""}))
        found = (await alice.http.get(f"{API}/alice/{name}/@latest")).json()["data"]
        body = {"name": "r", "environments": [{"id": found["id"]}], "is_public": True}
        made = await alice.http.post("/api/v1/evaluations/", json=body)
        ids[name] = (made.json()["evaluation_id"], found["id"])
    person = await small_hub.person("alice", environments=["alice/one-env"])
    other, other_env = ids["two-env"]
    address = f"/api/v1/evaluations/{other}"
    for method, path, body in (
        ("PUT", address, {"name": "x"}),
        ("POST", f"{address}/finalize", {}),
        ("POST", f"{address}/samples", {"samples": [{}]}),
        ("DELETE", address, None),
        ("POST", "/api/v1/evaluations/", {"name": "x", "environments": [{"id": other_env}]}),
        ("POST", "/api/v1/evaluations/", {"name": "x", "run_id": "r"}),
        ("PUT", f"{API}/alice/two-env/star", None),
    ):
        answer = await person.http.request(method, path, json=body)
        assert answer.status_code == 403, (method, path, answer.text)
    mine, my_env = ids["one-env"]
    assert (await person.http.put(f"/api/v1/evaluations/{mine}", json={"name": "x"})).is_success
    opened = {"name": "x", "environments": [{"id": my_env}]}
    assert (await person.http.post("/api/v1/evaluations/", json=opened)).is_success


async def test_a_bound_token_links_no_personal_secret(small_hub, wheel):
    alice, _, values = await stocked(small_hub, wheel)
    path = f"{API}/{values['environment_id']}/secrets/link/{values['secret_id']}"
    person = await small_hub.person("alice", environments=["alice/secret-env"])
    assert (await person.http.post(path)).status_code == 403
    assert (await alice.http.post(path)).status_code == 200
