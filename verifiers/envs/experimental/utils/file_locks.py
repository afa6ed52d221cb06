"""v0 import path of file locks."""

from verifiers.envs.file_locks import (
    exclusive_file_lock,
    exclusive_path_lock,
    shared_file_lock,
    shared_path_lock,
    sibling_lock_path,
)

__all__ = [
    "exclusive_file_lock",
    "exclusive_path_lock",
    "shared_file_lock",
    "shared_path_lock",
    "sibling_lock_path",
]
