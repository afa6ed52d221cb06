"""Servers, workers and clients as a trainer uses them: real processes, real deaths."""

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import verifiers as vf
from verifiers.errors import ConfigError
from verifiers.serve import (
    HealthRequest,
    HealthResponse,
    RequestQuarantined,
    RunRolloutRequest,
    ServerError,
    ServerProcess,
    ServerState,
    ZMQEnvClient,
    ZMQEnvServer,
)
from verifiers.serve.client import ServerTimeout


async def test_rollouts_groups_and_evaluations_give_what_they_give_in_this_process(
    env_id, config, row
):
    env = vf.load_environment(env_id, group=True)
    here = await env.run_group([row(1), row(1)], config, "sums", {}, state_columns=["pid"])
    whole = await env.evaluate(config, "sums", num_examples=3, rollouts_per_example=2)

    await env.start_server(num_workers=2, log_level="ERROR")
    try:
        client = env.env_client
        there = await env.run_group(
            [row(1), row(1)], config, "sums", {}, state_columns=["pid"], env_client=client
        )
        evaluated = await env.evaluate(config, "sums", num_examples=3, rollouts_per_example=2)
        one = await client.run_rollout(row(2), config, "sums", {}, state_columns=["trajectory"])
        assert await client.health(timeout=5)
        state = client.server_state
    finally:
        await env.stop_server()

    assert [output["reward"] for output in there] == [output["reward"] for output in here] == [3, 3]
    assert {output["pid"] for output in here} == {os.getpid()}
    assert os.getpid() not in {output["pid"] for output in there}
    assert there[0]["score_details"] == {
        "mean_of_group": {"value": 2.0, "explanation": "2 rollouts"}
    }
    differs = {"timing", "pid"}
    for mine, its in zip(here, there, strict=True):
        assert mine.keys() == its.keys()
        assert json.loads(json.dumps({k: v for k, v in mine.items() if k not in differs})) == {
            k: v for k, v in its.items() if k not in differs
        }
    assert evaluated["metadata"]["avg_reward"] == whole["metadata"]["avg_reward"]
    assert [o["rollout_index"] for o in evaluated["outputs"]] == [0, 1] * 3
    assert one["trajectory"][0]["response"]["message"]["content"] == "<answer>5</answer>"
    assert (state, env.env_client) == (ServerState.HEALTHY, None)


async def test_what_a_killed_worker_had_is_played_again_and_counted_once(
    start, config, row, until, tmp_path
):
    _, client = await start(num_workers=2, log_level="ERROR")
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    rollouts = [
        asyncio.create_task(
            client.run_rollout(row(n, note=str(notes), wait=str(gate)), config, "sums", {})
        )
        for n in range(20)
    ]
    await until(lambda: notes.exists() and len(notes.read_text().split()) == 20)
    pids = notes.read_text().split()
    victim = pids[0]

    os.kill(int(victim), signal.SIGKILL)
    await until(lambda: len(notes.read_text().split()) == 22)  # a quarter may share a worker now
    gate.touch()
    outputs = await asyncio.gather(*rollouts)

    assert sorted(output["example_id"] for output in outputs) == list(range(20))
    assert {output["reward"] for output in outputs} == {1.0}
    assert pids.count(victim) == 10
    assert len(notes.read_text().split()) == 30
    assert not client.pending
    await until(lambda: client.stats.restarts == 1 and None not in client.stats.workers.values())


async def test_a_request_that_kills_its_workers_is_quarantined_and_its_siblings_finish(
    env_id, config, row, tmp_path
):
    env = vf.load_environment(env_id)
    await env.start_server(num_workers=1, log_level="ERROR", max_lone_deaths=2)
    try:
        mark = str(tmp_path / "mark")
        rows = [row(1), row(2), row(3, die="once", mark=mark)]
        results = await env.generate([*rows, row(4, die="always")], config, "sums")
    finally:
        await env.stop_server()

    assert [output["reward"] for output in results["outputs"]] == [1.0, 1.0, 1.0, 0.0]
    failed = results["outputs"][3]
    assert failed["error"]["error"] == "RequestQuarantined"
    assert "2 of them with no other request; the last one was ended by SIGKILL" in str(failed)
    assert failed["stop_condition"] == "has_error"


async def test_a_worker_whose_event_loop_stands_still_is_replaced_and_the_culprit_named(
    start, config, row, tmp_path
):
    _, client = await start(
        num_workers=1, worker_heartbeat_timeout=1.0, max_lone_deaths=1, log_dir=str(tmp_path)
    )

    with pytest.raises(RequestQuarantined, match="event loop was blocked for 1 s"):
        await client.run_rollout(row(1, stand_still=True), config, "sums", {})

    assert (await client.run_rollout(row(2), config, "sums", {}))["reward"] == 1.0
    assert "in setup_state" in ZMQEnvServer.get_all_log_files(str(tmp_path), 1)[1].read_text()


async def test_cancelling_timing_out_and_waiting_for_a_place(start, config, row, until, tmp_path):
    server, _ = await start(num_workers=1, log_level="ERROR")
    gate, left = tmp_path / "gate", tmp_path / "gate.left"
    async with ZMQEnvClient(
        server.client.address, max_in_flight=2, health_check_interval=0.1
    ) as client:
        held = [
            asyncio.create_task(
                client.run_rollout(row(n, wait=str(gate), note=str(gate) + "s"), config, "sums", {})
            )
            for n in range(3)
        ]
        notes = Path(str(gate) + "s")
        await until(lambda: notes.exists() and len(notes.read_text().split()) == 2)
        assert len(client.pending) == 2

        held[0].cancel()
        await until(left.exists)
        await until(lambda: len(notes.read_text().split()) == 3)
        request = RunRolloutRequest(
            input=row(9, wait=str(gate)),
            client_config=config,
            model="sums",
            sampling_args={},
            max_retries=0,
            state_columns=None,
        )
        gate.touch()
        outputs = await asyncio.gather(*held, return_exceptions=True)
        gate.unlink()
        left.unlink()
        with pytest.raises(ServerTimeout, match=r"within 0\.2 s"):
            await client.send_request(request, HealthResponse, timeout=0.2)
        await until(left.exists)
        assert (await client.send_request(HealthRequest(), HealthResponse, 5)).success

        failed = await client.run_rollout(row(1, **{"raise": True}), config, "sums", {})
    assert isinstance(outputs[0], asyncio.CancelledError)
    assert [output["reward"] for output in outputs[1:]] == [1.0, 1.0]
    assert (failed["error"]["error"], failed["stop_condition"]) == ("ConfigError", "has_error")


async def test_a_server_that_is_killed_comes_back_and_gets_what_it_had_lost(
    start, config, row, until, tmp_path, is_running
):
    server, client = await start(num_workers=1, log_level="CRITICAL")
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    rollout = asyncio.create_task(
        client.run_rollout(row(1, note=str(notes), wait=str(gate)), config, "sums", {})
    )
    await until(lambda: notes.exists() and notes.read_text())
    worker, killed = int(notes.read_text()), server.pid

    os.kill(killed, signal.SIGKILL)
    await until(lambda: len(notes.read_text().split()) == 2)
    gate.touch()

    assert (await rollout)["reward"] == 1.0
    assert (client.resent, server.pid != killed) == (1, True)
    await until(lambda: not is_running(worker))


async def test_an_environment_that_cannot_be_loaded_is_said_at_once(
    env_id, short_folder, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(short_folder))
    server = ServerProcess(env_id, {"broken": True}, num_workers=2, log_level="CRITICAL")

    with pytest.raises(ServerError, match="no data on this machine"):
        await server.start()

    assert (server.pid, list(short_folder.iterdir())) == (None, [])


PARENT = """
import asyncio, json, sys
import verifiers as vf
from verifiers.serve import ServerProcess

async def main():
    server = ServerProcess(sys.argv[1], num_workers=2, log_level="CRITICAL")
    client = await server.start()
    config = vf.ClientConfig(api_base_url=sys.argv[2])
    row = {"prompt": [{"role": "user", "content": "What is 1 + 2?"}], "answer": "3", "example_id": 0}
    row["info"] = {"child": sys.argv[3]}
    output = await client.run_rollout(row, config, "m", {}, state_columns=["pid"])
    print(json.dumps([server.pid, output["pid"]]), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_nothing_is_left_when_the_parent_is_killed(
    env_id, endpoint, tmp_path, short_folder, until, is_running
):
    child = tmp_path / "child"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(short_folder)}
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, env_id, endpoint.url, str(child)),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert parent.stdout is not None
    pids = json.loads(await asyncio.wait_for(parent.stdout.readline(), 30))
    pids.append(int(child.read_text()))
    assert all(map(is_running, pids))
    assert list(short_folder.glob("vf-*"))

    parent.kill()
    await parent.wait()

    await until(lambda: not any(map(is_running, pids)))
    await until(lambda: not list(short_folder.glob("vf-*")))


async def test_v0s_way_a_server_in_a_process_and_a_client_by_address(
    env_id, config, row, tmp_path, is_running, until
):
    address = f"ipc://{tmp_path}/server"
    process = multiprocessing.get_context("spawn").Process(
        target=ZMQEnvServer.run_server,
        args=(env_id, {}, {"max_seq_len": 64}, "warning", str(tmp_path / "logs")),
        kwargs={"address": address, "json_logging": False, "console_logging": False}
        | {"num_workers": 1},
    )
    process.start()
    client = ZMQEnvClient(address=address, name="train")
    env = vf.load_environment(env_id)
    try:
        await client.wait_for_server_startup(timeout=30)
        output = await env.run_rollout(
            vf.RolloutInput(**row(3)),
            client=config,
            model="sums",
            sampling_args={},
            max_retries=0,
            state_columns=["trajectory", "sampling_args", "pid"],
            env_client=client,
        )
    finally:
        await client.close()
        process.terminate()
        await asyncio.to_thread(process.join, 15)

    assert (output["reward"], process.exitcode) == (1.0, 0)
    await until(lambda: not is_running(output["pid"]))
    assert [
        path.exists() for path in ZMQEnvServer.get_all_log_files(str(tmp_path / "logs"), 1)
    ] == [
        True,
        True,
    ]


async def test_workers_may_have_an_interpreter_of_their_own(
    start, config, row, tmp_path, monkeypatch
):
    venv.create(tmp_path / "own", with_pip=False, symlinks=True)
    site = next((tmp_path / "own").glob("lib/python*/site-packages"))
    shared = sysconfig.get_path("purelib")
    (site / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    _, client = await start(python=str(tmp_path / "own" / "bin" / "python"), log_level="ERROR")
    output = await client.run_rollout(row(1), config, "sums", {}, state_columns=["python"])

    assert output["reward"] == 1.0
    assert output["python"] == str(tmp_path / "own" / "bin" / "python")


async def test_a_limit_above_that_of_the_client_is_said(start, env_id, config, caplog):
    _, client = await start(num_workers=1, max_in_flight_per_worker=3)
    env = vf.load_environment(env_id)
    env.env_client = client

    await env.evaluate(config, "sums", num_examples=2, max_concurrent=3)
    assert "at most" not in caplog.text
    await env.evaluate(config, "sums", num_examples=2, max_concurrent=8)

    assert client.max_in_flight == 3
    assert "max_concurrent is 8" in caplog.text
    assert "at most 3 requests at once" in caplog.text
    assert "max_in_flight_per_worker=8" in caplog.text


async def test_wrong_use_is_said(env_id, row):
    with pytest.raises(ConfigError, match="num_workers must be"):
        ZMQEnvServer(env_id, num_workers=0)
    with pytest.raises(ConfigError, match="not a program"):
        ZMQEnvServer(env_id, python="/nowhere/python")
    with pytest.raises(ConfigError, match="has no env_id"):
        await vf.SingleTurnEnv(dataset=[row(1)]).start_server()
    async with ZMQEnvClient("ipc:///nowhere/at/all", startup_timeout=0.3) as client:
        with pytest.raises(ServerTimeout, match=r"was not ready after 0\.3 s"):
            await client.wait_for_server_startup()
        with pytest.raises(ConfigError, match="cannot be sent to the process"):
            await client.run_rollout(row(1), vf.testing.ScriptedClient(["x"]), "m", {})


@pytest.mark.long
async def test_a_loop_of_kills_loses_no_rollout_and_counts_none_twice(
    start, config, row, tmp_path, until
):
    _, client = await start(num_workers=2, log_level="CRITICAL", max_lone_deaths=50)
    notes = tmp_path / "notes"
    rollouts = [
        asyncio.create_task(client.run_rollout(row(n, note=str(notes)), config, "sums", {}))
        for n in range(400)
    ]
    for _ in range(8):
        seen = len(notes.read_text().split()) if notes.exists() else 0
        await until(
            lambda seen=seen: (
                all(r.done() for r in rollouts)
                or (notes.exists() and len(notes.read_text().split()) > seen + 5)
            ),
            within_s=50,
        )
        if all(rollout.done() for rollout in rollouts):
            break
        try:
            os.kill(int(notes.read_text().split()[-1]), signal.SIGKILL)
        except ProcessLookupError:
            pass
    outputs = await asyncio.gather(*rollouts)

    assert sorted(output["example_id"] for output in outputs) == list(range(400))
    assert {output["reward"] for output in outputs} == {1.0}
