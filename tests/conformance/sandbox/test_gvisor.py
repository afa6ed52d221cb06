"""The back end "gvisor" keeps every promise it claims, as root and as an ordinary user, on this machine's runsc."""

import pytest

from verifiers.sandboxes import SandboxBackend
from verifiers.sandboxes.contract import BEHAVIOURS, Behaviour, Bench
from verifiers.sandboxes.gvisor import GVisorBackend

FAST = {
    "a_command_gives_its_output_and_exit_code",
    "the_time_limit_ends_whatever_the_command_has_started",
    "variables_stay_from_cell_to_cell",
    "a_directory_goes_in_and_comes_out",
    "a_command_that_wants_too_much_memory_dies_alone",
    "terminate_before_readiness_leaves_nothing",
    "impossible_demands_are_refused_in_words",
}
each_promise = pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(each, id=each.name, marks=() if each.name in FAST else pytest.mark.long)
        for each in BEHAVIOURS
    ],
)


async def keep(bench: Bench, behaviour: Behaviour) -> None:
    if not behaviour.applies_to(bench.backend):
        pytest.skip(f"{bench.backend.name} does not claim {behaviour.needs!r}")
    await behaviour.check(bench)


@each_promise
@pytest.mark.asyncio(loop_scope="module")
async def test_keeps_the_promise(gvisor_bench: Bench, behaviour: Behaviour):
    await keep(gvisor_bench, behaviour)


@pytest.mark.long
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
@pytest.mark.asyncio(loop_scope="module")
async def test_keeps_the_promise_as_an_ordinary_user(
    gvisor_bench_as_user: Bench, behaviour: Behaviour
):
    await keep(gvisor_bench_as_user, behaviour)


def test_it_is_a_backend():
    assert isinstance(GVisorBackend(), SandboxBackend)
