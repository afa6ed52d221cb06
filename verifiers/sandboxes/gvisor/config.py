"""`GVisorConfig`: how runsc is called."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class GVisorConfig(BaseModel):
    """How the gVisor back end works on this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    program: str | None = None
    """The program; None: `runsc`, looked up in PATH."""
    platform: Literal["ptrace", "systrap", "kvm"] | None = None
    """How gVisor intercepts system calls; None: what this build of runsc prefers ("systrap" since 2023, "ptrace"
    before). "ptrace" runs everywhere, "kvm" needs /dev/kvm and is fastest on bare metal."""
    python: str = "python3"
    """Interpreter in images other than "host"."""
    use_cgroups: bool = True
    """Limit memory, processes and CPU from outside too, by control groups, where they can be had."""
    run_as: int | None = Field(default=None, ge=1)
    """As root only: run gVisor as this user instead (`--rootless`). The interpreter must be readable for it."""
    start_timeout_s: float = Field(default=60.0, gt=0)
    """Until the agent answers."""
    max_starting: int | None = Field(default=None, ge=1)
    """Sandboxes that come up at once; None: twice the number of cores, since each start is mostly computing."""
