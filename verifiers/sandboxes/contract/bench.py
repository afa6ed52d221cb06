"""The parts of behaviours: a bench that makes sandboxes, and checks that report their expectation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from verifiers.sandboxes.sandbox import Capability, Sandbox, SandboxBackend, Snapshot
from verifiers.sandboxes.spec import SandboxSpec

ErrorType = TypeVar("ErrorType", bound=BaseException)

TIMEOUT_S = 60.0
"""Time limit of each behaviour; it also covers sandboxes that hang."""


class SandboxContractBroken(AssertionError):
    """A back end does not keep a promise of the contract."""


class Behaviour(NamedTuple):
    """One promise of the contract."""

    name: str
    run: Callable[[Bench], Awaitable[None]]
    needs: Capability | None

    def applies_to(self, backend: SandboxBackend) -> bool:
        """Whether the back end claims the capability that the behaviour needs."""
        return self.needs is None or self.needs in backend.capabilities

    async def check(self, bench: Bench) -> None:
        """Raise SandboxContractBroken, or the sandbox's own error, if the back end does not keep the promise."""
        async with asyncio.timeout(TIMEOUT_S):
            await self.run(bench)


class Collection(list[Behaviour]):
    """The behaviours of one module, collected by its decorators."""

    def promise(
        self, run: Callable[[Bench], Awaitable[None]], *, needs: Capability | None = None
    ) -> Callable[[Bench], Awaitable[None]]:
        """Decorator: add a behaviour. The function's name states the promise."""
        self.append(Behaviour(run.__name__, run, needs))
        return run

    def promise_if(
        self, needs: Capability
    ) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[[Bench], Awaitable[None]]]:
        """Decorator: add a behaviour for back ends that claim a capability."""
        return lambda run: self.promise(run, needs=needs)


@dataclass(frozen=True)
class Bench:
    """Makes sandboxes of one back end for behaviours."""

    backend: SandboxBackend
    spec: SandboxSpec = field(default_factory=SandboxSpec)

    @asynccontextmanager
    async def sandbox(
        self, *, snapshot: Snapshot | None = None, **changes: object
    ) -> AsyncGenerator[Sandbox]:
        """Open a sandbox with the bench's specification and some changes."""
        spec = SandboxSpec.model_validate({**self.spec.model_dump(), **changes})
        async with await self.backend.create(spec, snapshot=snapshot) as sandbox:
            yield sandbox


def expect(actual: object, expected: object, what: str = "") -> None:
    """Check that `actual` equals `expected`."""
    if actual != expected:
        raise SandboxContractBroken(
            f"{what or 'the result'}: expected {expected!r}, got {actual!r}"
        )


def expect_true(condition: object, what: str) -> None:
    """Check a condition."""
    if not condition:
        raise SandboxContractBroken(what)


async def expect_error(
    error_type: type[ErrorType], action: Awaitable[object], what: str
) -> ErrorType:
    """Check that awaiting raises an error of this type, and return the error."""
    try:
        answer = await action
    except error_type as error:
        return error
    raise SandboxContractBroken(
        f"{what}: expected {error_type.__name__}, got the answer {answer!r}"
    )


async def expect_ends(sandbox: Sandbox, command_line: str) -> None:
    """Check that all processes with this command line end soon."""
    pattern = f"[{command_line[0]}]{command_line[1:]}"  # so that grep does not match itself
    left = "?"
    for _ in range(100):
        left = (await sandbox.exec(f"ps ax | grep -c '{pattern}'")).text.strip()
        if left == "0":
            return
    raise SandboxContractBroken(f"{left} processes {command_line!r} are left")
