"""Token data beside a saved run: there whenever its rollout is, whatever kills the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import orjson
import pytest

import verifiers as vf
from verifiers.runs.run_tokens import RunTokens, outputs_with_tokens, token_key
from verifiers.runs.store import load_outputs
from verifiers.testing import Reply, ScriptedClient
from verifiers.tokens.token_file import INDEX_FILE, TOKENS_FILE, TokenFile, TokenFileError
from verifiers.training.samples import samples_of
from verifiers.training.validation import validate

ROWS = [{"question": f"question {n}", "answer": str(n)} for n in range(4)]
FILES = {"metadata.json", "results.jsonl", "results.index"}
TOKEN_FILES = {TOKENS_FILE, INDEX_FILE}


def right(completion) -> float:
    return 1.0


class Conversation(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "go on"}]


def environment(**options):
    return Conversation(dataset=ROWS, max_turns=2, rubric=vf.Rubric(funcs=[right]), **options)


def client(*, token_ids=True):
    return ScriptedClient(lambda prompt: f"said after {len(prompt)}", token_ids=token_ids)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


async def run(folder: Path, model=None, env=None, **options) -> list:
    results = await (env or environment()).evaluate(
        model or client(), "m", {"temperature": 0.5},
        num_examples=4, rollouts_per_example=2, results_path=folder, **options,
    )  # fmt: skip
    return results["outputs"]


def check_complete(folder: Path) -> None:
    """Every rollout is there once, with the tokens that its conversation has."""
    found = list(outputs_with_tokens(folder))
    assert sorted(token_key(one) for one in found) == [f"{e}-{r}" for e in range(4) for r in (0, 1)]
    for output in found:
        samples = samples_of(output)
        validate(samples, output).raise_for_problems()
        assert len(samples) == 1
        said = bytes(samples[0].token_ids.tolist()).decode()
        assert said.startswith(f"<user>question {output['example_id']}</>")
        assert len(samples[0].spans) == 2
        assert samples[0].temperature == 0.5


async def test_a_saved_run_gives_the_samples_of_its_rollouts(tmp_path):
    outputs = await run(tmp_path / "run", state_columns=["trajectory"])
    assert names(tmp_path / "run") == FILES | TOKEN_FILES
    check_complete(tmp_path / "run")
    saved = {token_key(one): one for one in outputs_with_tokens(tmp_path / "run")}
    for output in outputs:
        [ours], [theirs] = samples_of(output), samples_of(saved[token_key(output)])
        assert (ours.token_ids == theirs.token_ids).all()
        assert (ours.logprobs == theirs.logprobs).all()
        assert (
            saved[token_key(output)]["trajectory"][0]["completion"][0]["content"] == "said after 1"
        )


async def test_the_trajectory_need_not_be_a_saved_column(tmp_path):
    await run(tmp_path / "run")
    assert "trajectory" not in load_outputs(tmp_path / "run")[0]
    check_complete(tmp_path / "run")


async def test_without_token_ids_there_is_no_file_and_reading_says_so(tmp_path):
    await run(tmp_path / "run", client(token_ids=False))
    assert names(tmp_path / "run") == FILES
    with pytest.raises(TokenFileError, match="no saved tokens"):
        next(outputs_with_tokens(tmp_path / "run"))


async def test_what_training_needs_of_a_step_is_kept(tmp_path):
    class Opponent(Conversation):
        async def add_model_response(self, state, prompt_messages, response):
            await super().add_model_response(state, prompt_messages, response)
            step = state["trajectory"][-1]
            if len(state["trajectory"]) == 1:
                step["extras"]["trainable"] = False
            else:
                step["advantage"] = 0.75

    env = Opponent(dataset=ROWS, max_turns=2, rubric=vf.Rubric(funcs=[right]))
    await run(tmp_path / "run", env=env)
    for output in outputs_with_tokens(tmp_path / "run"):
        [sample] = samples_of(output)
        assert [span.step for span in sample.spans] == [1]
        assert set(sample.token_advantages()[sample.mask]) == {0.75}


KILLED = """
    import asyncio, os, signal, sys
    import verifiers as vf
    sys.path.insert(0, {tests!r})
    from test_run_tokens import Conversation, ROWS, client, run

    finished = 0

    def deadly(completion) -> float:
        global finished
        finished += 1
        if finished == {count}:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0

    env = Conversation(dataset=ROWS, max_turns=2, rubric=vf.Rubric(funcs=[deadly]))
    from pathlib import Path
    asyncio.run(run(Path({folder!r}), env=env, max_concurrent=1))
"""


@pytest.mark.parametrize("count", [1, 4, 8])
async def test_a_killed_run_is_continued_with_all_its_tokens(tmp_path, count):
    folder = tmp_path / "run"
    code = KILLED.format(tests=str(Path(__file__).parent), count=count, folder=str(folder))
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
    assert done.returncode == -9, done.stderr.decode()
    saved = {token_key(one) for one in load_outputs(folder)}
    if (folder / TOKENS_FILE).exists():
        with TokenFile(folder, read_only=True) as file:
            assert saved <= set(file)
    await run(folder)
    check_complete(folder)


@pytest.mark.parametrize("lost", [1, 100])
async def test_a_tail_that_a_crash_cut_off_is_repaired_when_the_run_is_continued(tmp_path, lost):
    folder = tmp_path / "run"
    await run(folder, max_concurrent=1)
    # As after a crash of the machine in the middle of a write: its rollouts are in neither file.
    with (folder / TOKENS_FILE).open("r+b") as file:
        file.truncate((folder / TOKENS_FILE).stat().st_size - lost)
    with TokenFile(folder, read_only=True) as file:
        whole = set(file)
    assert len(whole) < 8
    lines = (folder / "results.jsonl").read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if token_key(orjson.loads(line)) in whole]
    (folder / "results.jsonl").write_bytes(b"".join(kept))
    await run(folder)
    check_complete(folder)


async def test_tokens_that_contradict_each_other_do_not_cost_the_rollout(tmp_path, caplog):
    class Odd(Conversation):
        async def add_model_response(self, state, prompt_messages, response):
            await super().add_model_response(state, prompt_messages, response)
            if state["example_id"] == 0:
                state["trajectory"][-1]["tokens"] = {"prompt_ids": [1], "completion_ids": ["x"]}

    env = Odd(dataset=ROWS, max_turns=2, rubric=vf.Rubric(funcs=[right]))
    assert len(await run(tmp_path / "run", env=env)) == 8
    assert "tokens of rollout 0-0 are not saved" in caplog.text
    has = {token_key(one): "trajectory" in one for one in outputs_with_tokens(tmp_path / "run")}
    assert has == {f"{e}-{r}": e > 0 for e in range(4) for r in (0, 1)}


async def test_a_rollout_that_is_played_again_without_tokens_does_not_show_the_old_ones(tmp_path):
    async def play(model):
        return await model.get_response([{"role": "user", "content": "x"}], "m", {})

    output = {"example_id": 7, "rollout_index": 0}
    (tmp_path / "metadata.json").write_text("{}")
    (tmp_path / "results.jsonl").write_text('{"example_id": 7, "rollout_index": 0}\n')
    tokens = (await play(ScriptedClient([Reply("hi")], token_ids=True))).message.tokens
    for trajectory in ([{"tokens": tokens}], [{"tokens": None}]):
        writer = RunTokens(tmp_path)
        await writer.add([output], [trajectory])
        writer.close()
    [found] = outputs_with_tokens(tmp_path)
    assert "trajectory" not in found


async def test_a_disk_that_refuses_stops_the_run_before_the_rollout_counts(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / TOKENS_FILE).mkdir()
    with pytest.raises(TokenFileError, match=TOKENS_FILE):
        await run(folder)
    assert load_outputs(folder) == []
