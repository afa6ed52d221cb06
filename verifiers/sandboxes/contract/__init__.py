"""The contract of `verifiers.sandboxes.sandbox` as behaviours that check any back end.

    from verifiers.sandboxes.contract import BEHAVIOURS, Bench

    for behaviour in BEHAVIOURS:
        await behaviour.check(Bench(backend))     # raises SandboxContractBroken with the expectation

Each behaviour makes its own sandboxes, so behaviours can run in any order and at the same time. Read `bench` first;
`commands`, `interpreters`, `copies` and `life` hold the behaviours by subject.
"""

from verifiers.sandboxes.contract import commands, copies, interpreters, life
from verifiers.sandboxes.contract.bench import Behaviour, Bench, SandboxContractBroken

BEHAVIOURS: tuple[Behaviour, ...] = tuple(
    behaviour
    for module in (commands, interpreters, copies, life)
    for behaviour in module.BEHAVIOURS
)

ContractBroken = SandboxContractBroken
"""The earlier name. `verifiers.testing` has another exception of this name, for environments and clients."""

__all__ = ["BEHAVIOURS", "Behaviour", "Bench", "ContractBroken", "SandboxContractBroken"]
