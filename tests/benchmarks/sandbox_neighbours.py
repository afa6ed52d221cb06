"""How a sandbox is served while another one misbehaves as badly as it can."""

from __future__ import annotations

import asyncio
import contextlib
import time

from sandbox_figures import Figure, local_process, quantile, times_ms

from verifiers.sandboxes import ExecResult, Sandbox, SandboxSpec
from verifiers.sandboxes.local import LocalBackend

P99_BOUND_MS = 100.0
ATTACK_S = 2.0
ATTACKS = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
    "memory bomb": "held = []\nwhile True: held.append(bytearray(1 << 20))\n",
    "disk fill": (
        "import itertools\n"
        "for n in itertools.cycle(range(64)):\n"
        "    try: open(f'fill-{n}', 'ab').write(bytes(1 << 20))\n"
        "    except OSError: pass\n"
    ),
    "output flood": "import os\nwhile True: os.write(1, bytes(1 << 16))\n",
    "busy loop": "import os\nfor _ in range(16): os.fork()\nwhile True: pass\n",
}


async def neighbours() -> list[Figure]:
    """The p99 of `true` in one sandbox during each attack in another; the floor is that of a local process."""
    figures = []
    async with LocalBackend() as backend, await backend.create(SandboxSpec()) as quiet:
        await quiet.exec(["true"])
        calm_ms = await times_ms(lambda: quiet.exec(["true"]), 100)
        local_ms = await times_ms(local_process, 100)
        figures.append(
            Figure(
                "exec p99 at rest", quantile(calm_ms, 0.99), "ms", None, quantile(local_ms, 0.99)
            )
        )
        for name, code in ATTACKS.items():
            spec = SandboxSpec(memory_mb=256, disk_mb=64, max_processes=64)
            async with await backend.create(spec) as hostile:
                await hostile.ready()
                inside_ms, local_ms = await _served_ms(quiet, hostile, code)
            floor_ms = quantile(local_ms, 0.99)
            figures.append(
                Figure(
                    f"exec p99 beside a {name}",
                    quantile(inside_ms, 0.99),
                    "ms",
                    # Where a local process waits that long too, it is not the neighbour's doing alone.
                    max(P99_BOUND_MS, 1.5 * floor_ms),
                    floor_ms,
                )
            )
    return figures


async def _served_ms(
    quiet: Sandbox, hostile: Sandbox, code: str
) -> tuple[list[float], list[float]]:
    """Milliseconds of commands in the quiet sandbox and of local ones, while the other is under attack."""
    attack = asyncio.create_task(_attack(hostile, code))
    inside_ms: list[float] = []
    local_ms: list[float] = []
    deadline_s = time.perf_counter() + ATTACK_S
    while time.perf_counter() < deadline_s or len(inside_ms) < 100:
        inside_ms += await times_ms(lambda: quiet.exec(["true"], timeout_s=30), 10)
        local_ms += await times_ms(local_process, 10)
    attack.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await attack
    return inside_ms, local_ms


async def _attack(hostile: Sandbox, code: str) -> ExecResult:
    """Again and again: some end by themselves, because their sandbox stops them."""
    while True:
        await hostile.run_python(code, timeout_s=ATTACK_S)
