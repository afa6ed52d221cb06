"""No program can turn its own failure into one of the machinery: each hostile ending has an outcome with a score."""

import asyncio
import json
import textwrap
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from hostile_endings import END_THE_WORKER, ENDINGS, VALUES

from verifiers.envs.code_env import CodeEnv
from verifiers.sandboxes import Sandbox, SandboxDead
from verifiers.sandboxes.contract import Bench
from verifiers.testing import ScriptedClient, run

AT_ONCE = 4
SMALL: dict[str, Any] = {"memory_mb": 192, "disk_mb": 24, "max_files": 4000, "max_processes": 48}
SQUARES = [{"input": f"{n}\n", "output": f"{n * n}\n"} for n in range(3)]
SHORT = {"local": list(ENDINGS)[::8], "local-as-user": list(ENDINGS)[4::8]}
"""For the normal suite, by back end; the long one takes all on each."""

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]


async def test_there_are_more_than_a_hundred_of_them():
    assert len(set(ENDINGS.values())) >= 150


async def problems_of(
    names: Iterable[str], check: Callable[[str], Awaitable[str | None]]
) -> dict[str, str]:
    """Name → what was wrong, of all that went wrong."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> tuple[str, str | None]:
        async with slots:
            try:
                return name, await check(name)
            except Exception as error:
                return name, f"{type(error).__name__}: {error}"

    found = await asyncio.gather(*map(one, names))
    return {name: problem for name, problem in found if problem}


async def is_usable(sandbox: Sandbox) -> str | None:
    """What is wrong with a sandbox after a hostile program; the programs themselves may have ended it."""
    try:
        result = await sandbox.exec(["sh", "-c", "cd / && echo alive"], timeout_s=20)
    except SandboxDead as error:
        return None if error.by_program else f"the sandbox is dead: {error}"
    if result.stdout != b"alive\n" and not result.oom:
        return f"the next command gave {result}"
    return None


async def ended_as_a_command(bench: Bench, name: str) -> str | None:
    async with bench.sandbox(**SMALL) as sandbox:
        result = await sandbox.exec(["python3", "-c", ENDINGS[name]], timeout_s=1.5)
        is_outcome = result.timed_out or result.output_limit_hit or result.exit_code is not None
        return await is_usable(sandbox) if is_outcome else f"no outcome: {result}"


async def ended_as_a_program(bench: Bench, name: str) -> str | None:
    async with bench.sandbox(**SMALL) as sandbox:
        result = await sandbox.run_python(ENDINGS[name], timeout_s=1.5)
        is_outcome = result.timed_out or result.output_limit_hit or result.exit_code is not None
        return await is_usable(sandbox) if is_outcome else f"no outcome: {result}"


async def ended_as_a_cell(bench: Bench, name: str) -> str | None:
    async with bench.sandbox(**SMALL) as sandbox, await sandbox.python() as session:
        cell = await session.run(ENDINGS[name], timeout_s=1.5)
        json.dumps([cell.value, str(cell.error)]).encode()
        try:
            following = await session.run("40 + 2", timeout_s=20)
            if not cell.restarted and not following.restarted and following.value != "42":
                return f"after {cell} the next cell gave {following}"
            again = await session.run("40 + 2", timeout_s=20)
        except SandboxDead as error:
            return None if error.by_program else f"the sandbox is dead: {error}"
        if again.value != "42" and name != "no builtins":
            return f"the cell after it gave {again}"
        await session.close()  # its threads and processes count until then
        return await is_usable(sandbox)


def environment(bench: Bench, tests: list[dict[str, Any]]) -> CodeEnv:
    rows = [{"question": "?", "answer": "", "info": {"tests": json.dumps(tests)}}]
    return CodeEnv(
        dataset=rows,
        backend=bench.backend,
        sandbox_spec={**bench.spec.model_dump(exclude_defaults=True), **SMALL},
        test_limits={"time_s": 0.5, "wall_time_s": 3, "memory_mb": 64, "max_file_mb": 8},
    )


async def score_of(env: CodeEnv, program: str) -> tuple[dict[str, object], list[str]]:
    block = f"```python\n{program}\n```"
    [output] = await run(env, ScriptedClient([block]), state_columns=["test_report"])
    report = output.get("test_report")
    json.dumps(report, ensure_ascii=False).encode()
    return output, [one["verdict"] for one in report["outcomes"]] if report else []


async def ended_in_a_test(bench: Bench, name: str) -> str | None:
    hostile = textwrap.indent(ENDINGS[name], "    ")
    program = f"n = int(input())\nif n == 0:\n{hostile}\nelse:\n    print(n * n)\n"
    if name in ("a syntax error",):
        return None
    output, verdicts = await score_of(environment(bench, SQUARES), program)
    if output["error"] is not None or not isinstance(output["reward"], float):
        return f"no score: {output['error']}"
    if verdicts[0] == "passed":
        return "it passed"
    if name not in END_THE_WORKER and verdicts[1:] != ["passed", "passed"]:
        return f"it changed the tests after it: {verdicts}"
    return None


WAYS = [ended_as_a_command, ended_as_a_program, ended_as_a_cell, ended_in_a_test]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_hostile_ending_has_an_outcome_and_changes_nothing_after_it(
    bench: Bench,
    way: Callable[[Bench, str], Awaitable[str | None]],
    request: pytest.FixtureRequest,
):
    name_of_bench = request.node.callspec.params["bench"]
    assert await problems_of(SHORT[name_of_bench], lambda name: way(bench, name)) == {}


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_every_hostile_ending_has_an_outcome(
    bench: Bench, way: Callable[[Bench, str], Awaitable[str | None]]
):
    assert await problems_of(ENDINGS, lambda name: way(bench, name)) == {}


async def test_a_value_of_any_kind_has_a_score(bench: Bench):
    async def check(name: str) -> str | None:
        tests = [
            {"function": "f", "arguments": [0], "expected": 1},
            {"function": "f", "arguments": [0], "expected": 10**400},
            {"function": "f", "arguments": [1], "expected": 1},
        ]
        program = f"def f(n):\n    return n or {VALUES[name]}\n"
        output, verdicts = await score_of(environment(bench, tests), program)
        if output["error"] is not None:
            return str(output["error"])
        wanted = ["wrong", "passed" if name == "10**400" else "wrong", "passed"]
        verdicts = [
            "wrong" if one in ("error", "output_limit", "timeout") else one for one in verdicts
        ]
        return None if verdicts == wanted else f"{verdicts}"

    assert await problems_of(VALUES, check) == {}


async def test_a_value_of_any_kind_is_the_value_of_a_cell(bench: Bench):
    async def check(name: str) -> str | None:
        async with bench.sandbox(**SMALL) as sandbox, await sandbox.python() as session:
            cell = await session.run(VALUES[name], timeout_s=3)
            json.dumps([cell.value, str(cell.error)], ensure_ascii=False).encode()
            following = await session.run("40 + 2", timeout_s=20)
            return None if "42" in (following.value or "") else f"{cell}, then {following}"

    assert await problems_of(VALUES, check) == {}
