"""The contract of `verifiers.sandboxes.sandbox` as behaviours that any back end can be checked against.

    from verifiers.sandboxes.contract import BEHAVIOURS, Bench

    for behaviour in BEHAVIOURS:
        await behaviour.check(Bench(backend))     # raises SandboxContractBroken with what was expected

Each behaviour makes its own sandboxes, so they can run in any order and at once.
"""

from verifiers.sandboxes.contract import commands, copies, interpreters, life
from verifiers.sandboxes.contract.bench import Behaviour, Bench, SandboxContractBroken

BEHAVIOURS: tuple[Behaviour, ...] = tuple(
    behaviour
    for module in (commands, interpreters, copies, life)
    for behaviour in module.BEHAVIOURS
)

ContractBroken = SandboxContractBroken
"""The earlier name, now that of the exception for environments and clients in `verifiers.testing`."""

__all__ = ["BEHAVIOURS", "Behaviour", "Bench", "ContractBroken", "SandboxContractBroken"]
