"""Arguments of `RLMEnv` in 0.1.9 and 0.1.10: which ones have a new name, and which ones have no effect."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

RENAMED = {
    "max_iterations": "max_turns",
    "sub_tool_max_turns": "sub_llm_max_turns",
    "docker_image": "sandbox_docker_image",
    "cpu_cores": "sandbox_cpu_cores",
    "memory_gb": "sandbox_memory_gb",
    "disk_size_gb": "sandbox_disk_size_gb",
    "gpu_count": "sandbox_gpu_count",
    "timeout_minutes": "sandbox_timeout_minutes",
}
"""Old name → name of today."""
WITHOUT_EFFECT = frozenset(
    [
        "context_dtype",
        "execution_backend",
        "expose_message_history",
        "filesystem_copy_max_bytes",
        "interception_host",
        "interception_port",
        "interception_url",
        "local_repl_max_workers",
        "sub_llm_stagger_jitter_ms",
        "sub_llm_stagger_ms",
    ]
)


def with_old_names(init: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that takes old names, too: with a DeprecationWarning if renamed, else ignored."""

    @functools.wraps(init)
    def construct(self: object, *args: Any, **kwargs: Any) -> None:
        for old, new in RENAMED.items():
            if old in kwargs:
                value = kwargs.pop(old)
                warnings.warn(
                    f"{type(self).__name__}: the argument {old!r} is called {new!r} now.",
                    DeprecationWarning,
                    stacklevel=2,
                )
                kwargs.setdefault(new, value)
        for name in WITHOUT_EFFECT & kwargs.keys():
            del kwargs[name]
        init(self, *args, **kwargs)

    return construct
