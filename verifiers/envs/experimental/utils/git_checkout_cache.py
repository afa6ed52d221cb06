"""v0 import path; see `verifiers.envs.git_checkouts`."""

from verifiers.envs.git_checkouts import (
    DEFAULT_GIT_CHECKOUT_CACHE_ROOT as DEFAULT_GIT_CHECKOUT_CACHE_ROOT,
)
from verifiers.envs.git_checkouts import resolve_git_checkout as resolve_git_checkout
from verifiers.envs.git_checkouts import validate_git_checkout as validate_git_checkout
