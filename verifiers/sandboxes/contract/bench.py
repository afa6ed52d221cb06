"""What behaviours are made of: a bench that makes sandboxes, and checks that say what they expected."""

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
"""No behaviour may take longer, hanging sandboxes included."""


class SandboxContractBroken(AssertionError):
    """A back end does not do what the contract says."""


class Behaviour(NamedTuple):
    """One promise of the contract."""

    name: str
    run: Callable[[Bench], Awaitable[None]]
    needs: Capability | None

    def applies_to(self, backend: SandboxBackend) -> bool:
        """Whether the back end claims the capability this is about."""
        return self.needs is None or self.needs in backend.capabilities

    async def check(self, bench: Bench) -> None:
        """Raise SandboxContractBroken (or what the sandbox raised) if the promise is not kept."""
        async with asyncio.timeout(TIMEOUT_S):
            await self.run(bench)


class Collection(list[Behaviour]):
    """The behaviours of one module, filled by its decorator."""

    def promise(
        self, run: Callable[[Bench], Awaitable[None]], *, needs: Capability | None = None
    ) -> Callable[[Bench], Awaitable[None]]:
        """Decorator: the function's name is the promise in words."""
        self.append(Behaviour(run.__name__, run, needs))
        return run

    def promise_if(
        self, needs: Capability
    ) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[[Bench], Awaitable[None]]]:
        """The same, for back ends that claim a capability."""
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
        """A sandbox with the bench's specification and some changes."""
        spec = SandboxSpec.model_validate({**self.spec.model_dump(), **changes})
        async with await self.backend.create(spec, snapshot=snapshot) as sandbox:
            yield sandbox


def expect(actual: object, wanted: object, what: str = "") -> None:
    """`actual` equals `wanted`."""
    if actual != wanted:
        raise SandboxContractBroken(f"{what or 'the result'}: expected {wanted!r}, got {actual!r}")


def expect_true(condition: object, what: str) -> None:
    """The condition holds."""
    if not condition:
        raise SandboxContractBroken(what)


async def expect_error(
    error_type: type[ErrorType], action: Awaitable[object], what: str
) -> ErrorType:
    """Awaiting raises an error of this type, which is returned."""
    try:
        answer = await action
    except error_type as error:
        return error
    raise SandboxContractBroken(
        f"{what}: expected {error_type.__name__}, got the answer {answer!r}"
    )


async def expect_ends(sandbox: Sandbox, command_line: str) -> None:
    """No process with this command line is left soon."""
    pattern = f"[{command_line[0]}]{command_line[1:]}"  # so that grep does not find itself
    left = "?"
    for _ in range(100):
        left = (await sandbox.exec(f"ps ax | grep -c '{pattern}'")).text.strip()
        if left == "0":
            return
    raise SandboxContractBroken(f"{left} processes {command_line!r} are left")
