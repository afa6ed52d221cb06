"""Every back end that can run here keeps every promise of the contract."""

import pytest

from verifiers.sandboxes import SandboxBackend
from verifiers.sandboxes.contract import BEHAVIOURS, Behaviour, Bench
from verifiers.sandboxes.local import LocalBackend


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
@pytest.mark.asyncio(loop_scope="module")
async def test_keeps_the_promise(bench: Bench, behaviour: Behaviour):
    if not behaviour.applies_to(bench.backend):
        pytest.skip(f"{bench.backend.name} does not claim {behaviour.needs!r}")
    await behaviour.check(bench)


@pytest.mark.long
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
@pytest.mark.asyncio(loop_scope="module")
async def test_weaker_levels_keep_all_promises_but_the_listed_ones(
    weaker_bench: tuple[Bench, dict[str, str]], behaviour: Behaviour
):
    bench, not_kept = weaker_bench
    if behaviour.name in not_kept:
        pytest.skip(not_kept[behaviour.name])
    if not behaviour.applies_to(bench.backend):
        pytest.skip(f"{bench.backend.name} does not claim {behaviour.needs!r}")
    await behaviour.check(bench)


def test_there_are_at_least_sixty_promises_with_names_of_their_own():
    names = {behaviour.name for behaviour in BEHAVIOURS}
    assert len(names) == len(BEHAVIOURS) >= 60


def test_a_backend_is_a_backend():
    assert isinstance(LocalBackend(), SandboxBackend)
