"""`vf-eval --num-workers`: the same results from processes of their own."""

import json
from pathlib import Path

from verifiers.evaluate.run import note_on_workers


def test_rollouts_run_in_other_processes_and_are_saved_as_ever(run, endpoint, make_environment):
    environment = make_environment()
    asked = ("-b", endpoint.url, "-m", "sums", "-n", 4, "-r", 2, "--json")

    here = run("eval", environment, *asked)
    there = run("eval", environment, *asked, "-s", "--num-workers", 2)

    assert (here.code, there.code) == (0, 0), there.err
    [mine], [its] = here.json["evaluations"], there.json["evaluations"]
    assert its["summary"]["reward"] == mine["summary"]["reward"]
    lines = (Path(its["saved_to"]) / "results.jsonl").read_text().splitlines()
    assert len([json.loads(line)["reward"] for line in lines]) == 8
    assert "Process" not in there.err


def test_workers_take_as_many_rollouts_at_once_as_c_asks_for(
    run, endpoint, make_environment, monkeypatch
):
    from verifiers.serve.server_process import ServerProcess

    limits = []

    async def start(self):
        limits.append(
            (self._settings["max_in_flight_per_worker"], self._client_options["max_in_flight"])
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(ServerProcess, "start", start)
    environment = make_environment(
        "import verifiers as vf\n\n\ndef load_environment():\n"
        "    return vf.SingleTurnEnv(dataset=[{'question': str(i), 'answer': ''} for i in range(3000)])\n"
    )
    for arguments in (["-c", 2000], ["-c", 9000], ["-c", 8], ["-c", -1]):
        run("eval", environment, "-b", endpoint.url, "-n", -1, "-r", 2, "-w", 2, *arguments)

    # 6,000 rollouts in all: no run has more at once. Each worker takes all, for the case that the other one dies.
    assert limits == [(2000, 4000), (6000, 12000), (1024, 2048), (6000, 12000)]


def test_workers_that_slow_a_run_down_are_named(run, endpoint, make_environment, monkeypatch):
    monkeypatch.setattr("verifiers.evaluate.run.MIN_NOTED_S", 0.0)
    monkeypatch.setattr("verifiers.evaluate.run.BUSY_SHARE", 0.0)
    environment = make_environment()

    there = run("eval", environment, "-b", endpoint.url, "-n", 2, "-r", 1, "--num-workers", 1)
    here = run("eval", environment, "-b", endpoint.url, "-n", 2, "-r", 1)

    assert (there.code, here.code) == (0, 0), there.err
    assert "1 worker process probably made this run slower" in there.err
    assert "without --num-workers" in there.err
    assert "slower" not in here.err


def test_workers_are_judged_by_the_share_of_a_processor_that_this_process_used():
    assert note_on_workers(4, wall_s=20.0, own_cpu_s=16.0) is not None
    assert (
        note_on_workers(4, wall_s=20.0, own_cpu_s=4.0) is None
    )  # the environment or the model took the time
    assert note_on_workers(4, wall_s=0.5, own_cpu_s=0.5) is None  # too short to judge
