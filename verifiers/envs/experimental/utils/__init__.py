"""v0 import paths of helpers that experimental environments shared in v0. No module of this library imports them."""

from typing import TYPE_CHECKING

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.envs.file_locks import exclusive_file_lock as exclusive_file_lock
    from verifiers.envs.file_locks import exclusive_path_lock as exclusive_path_lock
    from verifiers.envs.file_locks import shared_file_lock as shared_file_lock
    from verifiers.envs.file_locks import shared_path_lock as shared_path_lock
    from verifiers.envs.file_locks import sibling_lock_path as sibling_lock_path
    from verifiers.envs.git_checkouts import (
        DEFAULT_GIT_CHECKOUT_CACHE_ROOT as DEFAULT_GIT_CHECKOUT_CACHE_ROOT,
    )
    from verifiers.envs.git_checkouts import resolve_git_checkout as resolve_git_checkout
    from verifiers.envs.git_checkouts import validate_git_checkout as validate_git_checkout

__all__, __getattr__, __dir__ = lazy_names(__name__)
