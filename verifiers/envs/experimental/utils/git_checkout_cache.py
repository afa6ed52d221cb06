"""v0 import path of git checkouts."""

import subprocess as subprocess

from verifiers.envs.git_checkouts import (
    DEFAULT_GIT_CHECKOUT_CACHE_ROOT,
    _release_all_in_use_locks,
    resolve_git_checkout,
    validate_git_checkout,
)

__all__ = [
    "DEFAULT_GIT_CHECKOUT_CACHE_ROOT",
    "_release_all_in_use_locks",
    "resolve_git_checkout",
    "validate_git_checkout",
]
