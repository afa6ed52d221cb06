"""The back end "prime", through the published package and our own server, keeps every promise it claims."""

import pytest

pytest.importorskip("prime_sandboxes", reason="needs prime-sandboxes (the extra `prime`)")

from verifiers.sandboxes import SandboxBackend
from verifiers.sandboxes.contract import BEHAVIOURS, Behaviour, Bench
from verifiers.sandboxes.prime import PrimeBackend

FAST = {
    "a_command_gives_its_output_and_exit_code",
    "a_large_stdin_arrives_whole",
    "endless_output_ends_the_command",
    "the_time_limit_ends_whatever_the_command_has_started",
    "variables_stay_from_cell_to_cell",
    "a_directory_goes_in_and_comes_out",
    "terminate_before_readiness_leaves_nothing",
    "kill_sync_ends_it_without_awaiting",
    "impossible_demands_are_refused_in_words",
}


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(each, id=each.name, marks=() if each.name in FAST else pytest.mark.long)
        for each in BEHAVIOURS
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_keeps_the_promise(prime_bench: Bench, behaviour: Behaviour):
    if not behaviour.applies_to(prime_bench.backend):
        pytest.skip(f"{prime_bench.backend.name} does not claim {behaviour.needs!r}")
    await behaviour.check(prime_bench)


def test_it_is_a_backend():
    assert isinstance(PrimeBackend(), SandboxBackend)
