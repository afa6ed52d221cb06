"""Making, listing and ending sandboxes over HTTP: whose they are, how many there may be, when they end."""

import asyncio
import importlib
import io
import pickle
import platform
import time

import pytest

from verifiers.errors import ConfigError
from verifiers.sandbox_server import Quota, SandboxServer, TokenConfig, read_tokens_file
from verifiers.sandbox_server.config import token_owner

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN, OTHER_TOKEN = "a-token-for-the-tests", "another-token-for-them"


async def test_a_created_sandbox_is_up_when_the_answer_comes(wire):
    sandbox = await wire.create(labels=["a"], environment_vars={"X": "1"})
    assert (sandbox["status"], sandbox["labels"], sandbox["vm"]) == ("RUNNING", ["a"], False)
    assert {type(sandbox[name]) for name in ("cpuCores", "gpuCount", "timeoutMinutes")} == {int}
    auth = sandbox["gatewayAuth"]
    assert auth == (await wire.ask("POST", f"/sandbox/{sandbox['id']}/auth"))[1]
    assert set(auth) >= {"gateway_url", "user_ns", "job_id", "token", "expires_at"}
    assert await wire.ask("DELETE", f"/sandbox/{sandbox['id']}") == (
        200,
        {"id": sandbox["id"], "status": "TERMINATED"},
    )


async def test_requests_without_a_known_token_are_refused(wire):
    for token in ("", "wrong", "a-token-for-the-test", "a-token-for-the-tests-"):
        status, answer = await wire.ask("GET", "/sandbox", token=token)
        assert (status, "Bearer" in answer["detail"]) == (401, True)
    async with wire.session.get(wire.server.base_url + "/metrics") as answer:
        assert answer.status == 401
    async with wire.session.get(wire.server.base_url + "/healthz") as answer:
        assert answer.status == 200


async def test_somebody_elses_sandbox_does_not_exist(wire):
    sandbox = await wire.create()
    path = f"/sandbox/{sandbox['id']}"
    for method, each in [("GET", path), ("DELETE", path), ("POST", path + "/auth")]:
        assert (await wire.ask(method, each, token=OTHER_TOKEN))[0] == 404
    _, listed = await wire.ask("GET", "/sandbox", token=OTHER_TOKEN)
    assert listed["sandboxes"] == []
    _, answer = await wire.ask(
        "DELETE", "/sandbox", {"sandbox_ids": [sandbox["id"]]}, token=OTHER_TOKEN
    )
    assert (answer["succeeded"], len(answer["failed"])) == ([], 1)
    assert (await wire.ask("GET", path))[1]["status"] == "RUNNING"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"docker_image": "ubuntu:24.04"}, "'ubuntu:24.04' is not available"),
        ({"memory_gb": 64}, "memory_gb 64 is above 16"),
        ({"timeout_minutes": 100_000}, "timeout_minutes 100000 is above 1440"),
        ({"cpu_cores": -1}, "cpu_cores"),
        ({"gpu_count": 1}, "gpu_count"),
        ({"volumes": [{"name": "v"}]}, "volumes"),
        ({"checkpoint_id": "c"}, "checkpoint_id"),
        ({"network_allowlist": ["example.org"]}, "no network"),
        ({"environment_vars": {"A=B": "x"}}, "A=B"),
        ({"arch": "arm64" if platform.machine() == "x86_64" else "amd64"}, "arch"),
        ({"labels": "a"}, "labels"),
    ],
)
async def test_what_cannot_be_had_is_refused_in_words(wire, fields, complaint):
    body = {"name": "x", "docker_image": "host", **fields}
    status, answer = await wire.ask("POST", "/sandbox", body)
    assert status == 422
    assert complaint in answer["detail"]


@pytest.mark.parametrize(
    "fields",
    [
        '"memory_gb": Infinity',
        '"memory_gb": NaN',
        '"memory_gb": 1e999',
        '"memory_gb": 1e308',
        '"memory_gb": -Infinity',
        '"disk_size_gb": 1e308',
        '"disk_size_gb": Infinity',
        '"timeout_minutes": 1e308',
        '"timeout_minutes": Infinity',
        '"idle_timeout_minutes": 1e308',
        '"cpu_cores": 1e308',
        '"cpu_cores": Infinity',
        '"gpu_count": 1e308',
        '"memory_gb": ' + "9" * 400,
        '"cpu_cores": ' + "9" * 400,
        '"timeout_minutes": ' + "9" * 5000,
        '"environment_vars": {"A": NaN}',
    ],
)
async def test_numbers_without_measure_are_refused(wire, fields):
    url = wire.server.base_url + "/api/v1/sandbox"
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    body = '{"name": "x", "docker_image": "host", ' + fields + "}"
    async with wire.session.post(url, data=body, headers=headers) as answer:
        assert answer.status in (400, 422), await answer.text()


async def test_an_ended_sandbox_leaves_a_small_record(wire):
    large = "x" * 200_000
    body = {
        "environment_vars": {"A": "a" * 20_000, "B": "b" * 20_000},
        "start_command": f": {large[:100_000]}; yes | head -c 300000",
        "labels": ["kept"],
        "idempotency_key": "large",
        "n" * 300_000: None,
    }
    sandbox = await wire.create(**body)
    await wire.ask("DELETE", f"/sandbox/{sandbox['id']}")
    _, told = await wire.ask("GET", f"/sandbox/{sandbox['id']}")
    assert (told["status"], told["labels"], told["memoryGB"]) == (
        "TERMINATED",
        ["kept"],
        sandbox["memoryGB"],
    )
    hosted = wire.server._inventory.find(sandbox["id"])
    assert len(pickle.dumps((hosted.request, hosted.spec, bytes(hosted.logs)))) < 10_000
    assert hosted.sandbox is None
    assert (await wire.create(**body))["id"] == sandbox["id"]
    changed = {**body, "name": "x", "docker_image": "host", "start_command": ":"}
    assert (await wire.ask("POST", "/sandbox", changed))[0] == 409


async def test_bodies_that_are_no_requests_are_refused(wire):
    url = wire.server.base_url + "/api/v1/sandbox"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for body, status in [
        (b"{", 400),
        (b"[" * 100_000, 400),
        (b"[]", 422),
        (b'{"name": 7}', 422),
        (io.BytesIO(b" " * (1 << 20) + b"{}"), 413),
    ]:
        async with wire.session.post(url, data=body, headers=headers) as answer:
            assert (answer.status, "detail" in await answer.json()) == (status, True)
    assert (await wire.ask("GET", "/nowhere"))[0] == 404
    assert (await wire.ask("GET", "/sandbox?page=x"))[0] == 422


async def test_the_same_idempotency_key_makes_one_sandbox(wire):
    made = await asyncio.gather(*(wire.create(idempotency_key="key-1") for _ in range(5)))
    assert len({sandbox["id"] for sandbox in made}) == 1
    body = {"name": "other", "docker_image": "host", "idempotency_key": "key-1"}
    assert (await wire.ask("POST", "/sandbox", body))[0] == 409
    other = await wire.create(idempotency_key="key-1", token=OTHER_TOKEN)
    assert other["id"] != made[0]["id"]


async def test_pages_and_filters_of_the_list(wire):
    for number in range(3):
        await wire.create(labels=["page", str(number)])
    _, first = await wire.ask("GET", "/sandbox?labels=page&per_page=2")
    assert (first["total"], first["hasNext"], first["page"], first["perPage"]) == (3, True, 1, 2)
    _, second = await wire.ask("GET", "/sandbox?labels=page&per_page=2&page=2")
    labels = [s["labels"][1] for s in first["sandboxes"] + second["sandboxes"]]
    assert (labels, second["hasNext"]) == (["2", "1", "0"], False)
    _, answer = await wire.ask("DELETE", "/sandbox", {"labels": ["page", "1"]})
    assert len(answer["succeeded"]) == 1
    _, active = await wire.ask("GET", "/sandbox?labels=page&is_active=true")
    assert active["total"] == 2


async def test_statuses_of_many_at_once(wire):
    sandbox = await wire.create()
    body = {"sandbox_ids": [sandbox["id"], "no-such"]}
    _, answer = await wire.ask("POST", "/sandbox/status:batchGet", body)
    assert [s["status"] for s in answer["statuses"]] == ["RUNNING"]
    assert [(e["sandbox_id"], e["code"]) for e in answer["errors"]] == [("no-such", "NOT_FOUND")]


async def test_the_start_command_runs_and_its_output_is_the_log(wire):
    command = {"executable": "sh", "args": ["-c", "echo hello; echo $X; exit 3"]}
    sandbox = await wire.create(start_command=command, secrets={"X": "secret"})
    logs = ""
    while "ended" not in logs:
        _, answer = await wire.ask("GET", f"/sandbox/{sandbox['id']}/logs")
        logs = answer["logs"]
    assert logs == "hello\nsecret\n[start_command ended with code 3]\n"
    assert "secret" not in str((await wire.ask("GET", f"/sandbox/{sandbox['id']}"))[1])


async def test_quotas_of_a_token_and_of_the_server(serving):
    quota = Quota(max_sandboxes=2, max_memory_mb=256, max_sandbox_memory_mb=1024)
    async with serving(quota=quota, max_sandboxes=3) as wire:
        body = {"name": "x", "docker_image": "host", "memory_gb": 0.5}
        status, answer = await wire.ask("POST", "/sandbox", body)
        assert (status, "256 MiB of this token" in answer["detail"]) == (429, True)
        first = await wire.create(memory_gb=0.0625)
        await wire.create(memory_gb=0.0625)
        status, answer = await wire.ask("POST", "/sandbox", {**body, "memory_gb": 0.0625})
        assert (status, "2 sandboxes, the maximum" in answer["detail"]) == (429, True)
        await wire.create(memory_gb=0.0625, token=OTHER_TOKEN)
        status, answer = await wire.ask(
            "POST", "/sandbox", {**body, "memory_gb": 0.0625}, token=OTHER_TOKEN
        )
        assert (status, "The server has 3" in answer["detail"]) == (429, True)
        await wire.ask("DELETE", f"/sandbox/{first['id']}")
        await wire.create(memory_gb=0.0625)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with wire.session.get(wire.server.base_url + "/metrics", headers=headers) as page:
            text = await page.text()
        assert 'vf_sandboxes_sandboxes{token="first"} 2' in text
        assert 'vf_sandboxes_sandboxes_created_total{token="first"} 3' in text
        assert 'vf_sandboxes_requests_refused_total{status="429",token="first"} 2' in text
        assert 'vf_sandboxes_create_seconds_bucket{le="+Inf"} 4' in text


async def test_what_a_dead_client_left_is_gone_after_its_lifetime(serving):
    async with serving() as wire:
        sandbox = await wire.create(timeout_minutes=0.005)
        idle = await wire.create(idle_timeout_minutes=0.005)
        path, statuses, until_s = f"/sandbox/{sandbox['id']}", set(), time.monotonic() + 20
        while statuses != {"TIMEOUT"} and time.monotonic() < until_s:
            _, answer = await wire.ask("GET", f"/sandbox/{idle['id']}")
            statuses = {(await wire.ask("GET", path))[1]["status"], answer["status"]}
        assert statuses == {"TIMEOUT"}
        _, context = await wire.ask("GET", path + "/error-context")
        assert context["errorType"] == "TIMEOUT"
        assert "timeout_minutes=0.005" in context["errorMessage"]


async def test_records_of_ended_sandboxes_do_not_pile_up(serving):
    async with serving(kept_records=2) as wire:
        made = [await wire.create(idempotency_key=str(number)) for number in range(4)]
        for sandbox in made:
            await wire.ask("DELETE", f"/sandbox/{sandbox['id']}")
        known = [(await wire.ask("GET", f"/sandbox/{s['id']}"))[0] for s in made]
        assert known == [404, 404, 200, 200]
        assert (await wire.create(idempotency_key="0"))["id"] != made[0]["id"]


async def test_the_end_of_the_server_ends_its_sandboxes_and_waiting_commands(serving):
    async with serving() as wire:
        sandbox = await wire.create()
        auth = sandbox["gatewayAuth"]
        running = asyncio.create_task(
            wire.session.post(
                f"{auth['gateway_url']}/{auth['user_ns']}/{auth['job_id']}/exec",
                json={"command": "sleep 1000"},
                headers={"Authorization": f"Bearer {auth['token']}"},
            )
        )
        account = wire.server._inventory.accounts["first"]
        while not account.commands:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0)
        started_s = time.monotonic()
        await wire.server.aclose()
        assert time.monotonic() - started_s < 5
        assert (account.sandboxes, account.memory_mb) == (0, 0)
        answer = await running
        assert answer.status == 410


async def test_a_silent_connection_is_closed_and_too_many_are_refused(serving):
    async with serving(client_timeout_s=0.3, max_connections=3) as wire:
        opened = [await asyncio.open_connection("127.0.0.1", wire.server.port) for _ in range(4)]
        opened[1][1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        ends = [await asyncio.wait_for(_rest(reader), 10) for reader, _ in opened]
        assert ends == [b""] * 4
        for _, writer in opened:
            writer.close()
        assert (await wire.ask("GET", "/sandbox"))[0] == 200


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_a_body_that_does_not_come_is_cut_off(serving):
    async with serving(client_timeout_s=0.3) as wire:
        reader, writer = await asyncio.open_connection("127.0.0.1", wire.server.port)
        writer.write(
            b"POST /api/v1/sandbox HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
            b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n{"
        )
        assert await asyncio.wait_for(_rest(reader), 10) == b""
        writer.close()


async def test_tokens_are_compared_by_their_digest():
    tokens = [TokenConfig.of(name, f"{name}-secret-of-the-tests") for name in ("a", "b")]
    assert token_owner(tokens, "b-secret-of-the-tests") is tokens[1]
    assert token_owner(tokens, tokens[0].sha256) is None
    assert "secret" not in repr(tokens)


async def test_a_tokens_file_says_what_is_wrong_with_it(tmp_path):
    path = tmp_path / "tokens.toml"
    path.write_text('[trainer]\ntoken = "a-long-enough-token"\nmax_sandboxes = 7\n')
    [token] = read_tokens_file(path)
    assert (token.name, token.quota.max_sandboxes) == ("trainer", 7)
    for text, complaint in [
        ("", "is empty"),
        ("[a", "not TOML"),
        ("a = 1", "[a] must be a table"),
        ('[a]\ntoken = "short"', "at least 16"),
        ('[A]\ntoken = "a-long-enough-token"', "lower-case"),
        ('[a]\nsha256 = "00"', "sha256"),
        ('[a]\ntoken = "a-long-enough-token"\nmax_sandbox = 1', "max_sandbox"),
    ]:
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            read_tokens_file(path)
        assert str(path) in str(caught.value)
        assert complaint in str(caught.value)


async def test_the_former_import_path_gives_the_same_classes():
    former = importlib.import_module("verifiers.sandboxes.server")
    assert (former.SandboxServer, former.TokenConfig) == (SandboxServer, TokenConfig)
