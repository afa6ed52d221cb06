"""`CodeEnv`: whatever a program does is its score; whatever the machinery does is not."""

from typing import Any

import pytest
from code_programs import RIGHT, block, made, played, rows

import verifiers as vf
from verifiers.envs.code_env import CodeEnv
from verifiers.errors import ConfigError
from verifiers.testing import ScriptedClient, run
from verifiers.testing.environment_contract import environment_problems


async def test_a_right_program_passes_every_test(env: CodeEnv):
    output, verdicts = await played(env, RIGHT)
    assert verdicts == ["passed"] * 5
    assert (output["reward"], output["error"], output["errors"]) == (1.0, None, [])
    assert output["metrics"]["tests_run"] == 5.0


async def test_the_reward_is_the_share_of_tests_passed(env: CodeEnv):
    output, verdicts = await played(env, "n = int(input())\nprint(n + n)\n")
    assert verdicts == ["passed", "wrong", "passed", "wrong", "wrong"]
    assert output["reward"] == pytest.approx(0.4)


async def test_all_or_nothing_stops_after_the_wave_of_the_first_failure():
    async with made(reward="all") as env:
        output, verdicts = await played(env, "n = int(input())\nprint(n + n)\n")
        right, _ = await played(env, RIGHT)
    assert verdicts == ["passed", "wrong", "passed", "not_run", "not_run"]
    assert (output["reward"], right["reward"]) == (0.0, 1.0)


async def test_all_or_nothing_can_run_every_test_all_the_same():
    async with made(reward="all", stop_at_first_failure=False) as env:
        output, verdicts = await played(env, "print(0)")
    assert verdicts == ["passed", *["wrong"] * 4]
    assert output["metrics"]["pass_fraction"] == pytest.approx(0.2)


async def test_text_of_any_alphabet_goes_in_and_out():
    async with made([{"input": "zażółć 漢字\n", "output": "字漢 ćłóżaz\n"}]) as env:
        _, verdicts = await played(env, "print(input()[::-1])")
    assert verdicts == ["passed"]


async def test_functions_are_called_and_their_values_compared():
    tests = [
        {"function": "pair", "arguments": [n], "expected": [n, {"twice": 2 * n}]} for n in (1, 2)
    ]
    async with made(tests) as env:
        programs = {
            "def pair(n):\n    print('noise')\n    return n, {'twice': 2 * n}": ["passed"] * 2,
            "class Solution:\n    def pair(self, n):\n        return [n, {'twice': 2.0 * n}]": [
                "passed"
            ]
            * 2,
            "def pair(n): return n": ["wrong"] * 2,
            "def other(n): return n": ["error"] * 2,
            "def pair(n): return object()": ["error"] * 2,
            "def pair(n): return pair(n)": ["error"] * 2,
            "if __name__ == '__main__':\n    input()\ndef pair(n): return [n, {'twice': 2 * n}]": [
                "passed"
            ]
            * 2,
        }
        for program, expected in programs.items():
            _, verdicts = await played(env, program)
            assert verdicts == expected, program


async def test_only_so_many_tests_of_a_row_are_used():
    many = [{"input": f"{n}\n", "output": f"{n * n}\n"} for n in range(40)]
    async with made(many) as env:
        output, _ = await played(env, RIGHT)
        assert output["metrics"]["tests_run"] == 15.0
    async with made(many, test_limits={"max_tests": 3}) as env:
        output, _ = await played(env, RIGHT)
        assert output["metrics"]["tests_run"] == 3.0


async def test_a_completion_without_a_program_scores_zero_and_starts_nothing(env: CodeEnv):
    [output] = await run(env, ScriptedClient(["I cannot."]))
    assert (output["reward"], output["error"]) == (0.0, None)
    assert (output["metrics"]["has_code"], output["metrics"]["tests_run"]) == (0.0, 0.0)


async def test_a_rubric_of_ones_own_reads_the_report():
    def half(state: vf.State) -> float:
        return state["test_report"]["passed"] / 2 if state["test_report"] else 0.0

    async with made(rubric=vf.Rubric(funcs=[half])) as env:
        output, _ = await played(env, RIGHT)
    assert output["reward"] == 2.5
    assert output["metrics"]["passes_tests"] == 1.0


async def test_no_more_programs_are_tested_at_once_than_allowed(monkeypatch: pytest.MonkeyPatch):
    from verifiers.envs import code_env

    running = most = 0
    play = code_env.run_program

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await play(*args, **kwargs)
        finally:
            running -= 1

    monkeypatch.setattr(code_env, "run_program", counted)
    async with CodeEnv(dataset=rows(count=12), max_concurrent_programs=8) as env:
        for concurrency, allowed in ((2, 2), (100, 8)):
            most = 0
            env.set_concurrency(concurrency)
            outputs = await run(env, ScriptedClient(then=block(RIGHT)), n=12, max_concurrent=12)
            assert all(output["reward"] == 1.0 for output in outputs)
            assert 0 < most <= allowed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "some"}, "reward must be"),
        ({"stop_at_first_failure": True}, "unknown"),
        ({"sandbox_attempts": 0}, "sandbox_attempts"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        CodeEnv(dataset=rows(), **options)


async def test_a_row_without_tests_is_found_before_the_model_is_asked():
    client = ScriptedClient()
    async with CodeEnv(dataset=[{"question": "q", "answer": ""}]) as env:
        with pytest.raises(ConfigError, match="has no info"):
            await run(env, client)
    assert client.requests == []


async def test_it_keeps_every_promise_of_an_environment(env: CodeEnv):
    assert await environment_problems(env) == []
