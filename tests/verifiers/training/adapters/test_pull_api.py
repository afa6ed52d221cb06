"""As a trainer that only speaks HTTP uses it."""

import asyncio
import json
import shutil

import aiohttp
import pyarrow as pa
import pytest
from games import alternating, question_env

from verifiers.endpoint import EmbeddedEndpoint
from verifiers.endpoint.model import SHIPPED_WEIGHTS
from verifiers.errors import AuthenticationError, ConfigError
from verifiers.testing import Reply, ScriptedClient
from verifiers.training.exports import sample_from_row
from verifiers.training.policy import PolicyEndpoint
from verifiers.training.pull_api import ARROW, PullServer
from verifiers.training.source import RolloutSource
from verifiers.training.source_config import SourceConfig


def source(client=None, endpoint=None, state=None, **changed):
    config = {"groups_per_batch": 2, "rollouts_per_group": 2, "max_in_flight": 4} | changed
    env = question_env(8, eval_dataset=[{"question": "e", "answer": "0"}])
    chosen = endpoint or PolicyEndpoint(client or alternating())
    return RolloutSource(env, [chosen], SourceConfig(**config), model="m", state=state)


class Trainer:
    """Plain HTTP."""

    def __init__(self, url, **headers):
        self.url = url
        self.headers = headers

    async def __aenter__(self):
        self.session = aiohttp.ClientSession(headers=self.headers)
        return self

    async def __aexit__(self, *_):
        await self.session.close()

    async def get(self, path, **options):
        async with self.session.get(self.url + path, **options) as response:
            body = await response.read()
            return response.status, json.loads(body) if body else None

    async def post(self, path, body):
        async with self.session.post(self.url + path, json=body) as response:
            return response.status, await response.json()


async def test_batches_come_in_steps_and_a_lost_answer_is_asked_for_again():
    async with PullServer(source()) as server, Trainer(server.url) as trainer:
        status, first = await trainer.get("/batches/1")
        assert status == 200
        assert (first["step"], first["version"], len(first["samples"])) == (1, 0, 4)
        assert first["metrics"]["reward/mean"] == 0.5
        assert await trainer.get("/batches/1") == (200, first)
        _, second = await trainer.get("/batches/2")
        groups = [{s["group_id"] for s in batch["samples"]} for batch in (first, second)]
        assert not groups[0] & groups[1]
        for row in first["samples"]:
            sample = sample_from_row(row)
            assert sample.trained_count == sum(row["mask"])
            assert abs(sample.advantage) == 0.5


async def test_a_wrong_step_is_refused_and_loses_nothing():
    async with PullServer(source()) as server, Trainer(server.url) as trainer:
        status, body = await trainer.get("/batches/7")
        assert (status, body["error"]["last_step"]) == (409, None)
        assert "The last step was none; request 1." in body["error"]["message"]
        assert (await trainer.get("/batches/1"))[0] == 200
        assert (await trainer.get("/batches/3"))[0] == 409
        assert (await trainer.get("/batches/2"))[0] == 200
        assert (await trainer.get("/batches/1"))[0] == 409
        status, body = await trainer.get("/batches/7")
        assert (status, body["error"]["last_step"]) == (409, 2)
        assert "request 2 again, or 3" in body["error"]["message"]
        for wrong in ("x", "1.5", "-1", "nan", "9" * 30):
            status, body = await trainer.get(f"/batches/{wrong}")
            assert (status, body["error"]["type"]) == (400, "ConfigError")


async def test_every_error_has_the_same_form():
    async with PullServer(source()) as server, Trainer(server.url) as trainer:
        assert await trainer.get("/nothing") == (
            404, {"error": {"type": "HTTPNotFound", "message": "GET /nothing: Not Found"}},
        )  # fmt: skip
        status, body = await trainer.post("/state", {})
        assert (status, body["error"]["type"]) == (405, "HTTPMethodNotAllowed")
        status, body = await trainer.post("/version", {"version": "x", "y": 1})
        assert status == 422
        message = body["error"]["message"]
        assert message.startswith("version: Input should be a valid integer")
        assert message.endswith("y: Extra inputs are not permitted")


async def test_who_asks_for_the_last_step_does_not_wait_for_who_asks_for_the_next():
    gate = asyncio.Event()
    count = iter(range(10**9))

    def reply(_):
        number = next(count)
        return Reply("no" if number % 2 else "yes", after=gate if number >= 4 else None)

    client = ScriptedClient(reply, token_ids=True)
    async with (
        PullServer(source(client)) as server,
        Trainer(server.url) as trainer,
        Trainer(server.url) as other,
    ):
        first = await trainer.get("/batches/1")
        waiting = asyncio.create_task(trainer.get("/batches/2?timeout_s=300"))
        while not server._pulling.locked():  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0)
        assert await other.get("/batches/1") == first
        assert (await other.get("/batches/3"))[0] == 409
        assert await other.get("/batches/2?timeout_s=0.01") == (204, None)
        gate.set()
        status, second = await waiting
        assert (status, second["step"]) == (200, 2)
        assert await other.get("/batches/2") == (200, second)


async def test_a_batch_that_is_not_ready_in_time_is_204_and_comes_later():
    gate = asyncio.Event()
    count = iter(range(10**9))
    slow = ScriptedClient(
        lambda _: Reply("no" if next(count) % 2 else "yes", after=gate), token_ids=True
    )
    async with PullServer(source(slow)) as server, Trainer(server.url) as trainer:
        assert await trainer.get("/batches/1?timeout_s=0.01") == (204, None)
        gate.set()
        assert (await trainer.get("/batches/1"))[1]["step"] == 1


async def test_samples_come_as_arrow_when_asked():
    async with PullServer(source()) as server, Trainer(server.url) as trainer:
        _, rows = await trainer.get("/batches/1")
        async with trainer.session.get(
            f"{server.url}/batches/1", headers={"Accept": ARROW}
        ) as response:
            table = pa.ipc.open_stream(await response.read()).read_all()
    about = json.loads(table.schema.metadata[b"batch"])
    assert (about["step"], about["metrics"]) == (1, rows["metrics"])
    assert table.column("token_ids").to_pylist() == [row["token_ids"] for row in rows["samples"]]
    assert str(table.schema.field("logprobs").type) == "list<item: float>"


async def test_versions_and_evaluations():
    async with PullServer(source()) as server, Trainer(server.url) as trainer:
        assert await trainer.post("/version", {"version": 3}) == (200, {"version": 3})
        status, body = await trainer.post("/version", {"version": 2})
        assert status == 400
        assert "cannot go back to 2" in body["error"]["message"]
        assert (await trainer.post("/version", {"number": 2}))[0] == 422
        _, result = await trainer.post("/evaluations", {"rollouts_per_example": 2})
        assert len(result["rollouts"]) == 2
        assert result["versions"] == [3, 3]
        assert (await trainer.get("/health"))[1]["version"] == 3
        assert (await trainer.get("/info"))[1]["config"]["rollouts_per_group"] == 2


async def test_new_weights_reach_the_endpoints(tmp_path):
    folder = shutil.copytree(SHIPPED_WEIGHTS, tmp_path / "step_1")
    async with EmbeddedEndpoint() as endpoint:
        policy = PolicyEndpoint.at(endpoint.url)
        async with (
            PullServer(source(endpoint=policy, keep_without_signal=True)) as server,
            Trainer(server.url) as trainer,
        ):
            asked = {"weights": str(folder), "version": 1}
            assert await trainer.post("/weights", asked) == (200, {"version": 1})
            assert endpoint.engine.counts["weight_updates"] == 1
            wrong = {"weights": str(tmp_path / "none"), "version": 2}
            status, body = await trainer.post("/weights", wrong)
            assert (status, body["error"]["type"]) == (502, "UpdateFailed")
            assert (await trainer.get("/health"))[1]["version"] == 1


async def test_a_saved_state_goes_on_with_the_next_step():
    async with PullServer(source()) as server, Trainer(server.url) as trainer:
        await trainer.get("/batches/1")
        _, state = await trainer.get("/state")
    async with PullServer(source(state=state)) as server, Trainer(server.url) as trainer:
        assert (await trainer.get("/info"))[1]["last_step"] == 1
        status, body = await trainer.get("/batches/1")
        assert (status, body["error"]["last_step"]) == (409, 1)
        assert body["error"]["message"].endswith("request 2.")
        assert (await trainer.get("/batches/2"))[1]["step"] == 2


async def test_what_stopped_the_source_is_told_at_every_request():
    broken = ScriptedClient(then=AuthenticationError("wrong key"), token_ids=True)
    async with PullServer(source(broken)) as server, Trainer(server.url) as trainer:
        for _ in range(2):
            status, body = await trainer.get("/batches/1")
            assert (status, body["error"]["type"]) == (503, "AuthenticationError")


async def test_strangers_are_kept_out():
    with pytest.raises(ConfigError, match="any client could change the weights"):
        PullServer(source(), host="0.0.0.0")
    async with PullServer(source(), api_key="secret") as server:
        async with Trainer(server.url) as stranger:
            assert (await stranger.get("/batches/1"))[0] == 401
            assert (await stranger.post("/version", {"version": 1}))[0] == 401
            assert (await stranger.get("/health"))[0] == 200
        async with Trainer(server.url, Authorization="Bearer secret") as trainer:
            assert (await trainer.get("/batches/1"))[0] == 200


async def test_closing_does_not_wait_for_a_request_that_waits_for_a_batch():
    client = ScriptedClient(lambda _: Reply("yes", after=asyncio.Event()), token_ids=True)
    async with Trainer("") as trainer:
        async with PullServer(source(client)) as server:
            trainer.url = server.url
            waiting = asyncio.create_task(trainer.get("/batches/1?timeout_s=300"))
            await client.asked(4)
            while not server._pulling.locked():  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0)
        with pytest.raises(aiohttp.ClientError):
            await waiting


async def test_leaving_stops_what_is_played():
    client = ScriptedClient(lambda _: Reply("yes", after=asyncio.Event()), token_ids=True)
    async with PullServer(source(client)):
        await client.asked()
    assert client.in_flight == 0
