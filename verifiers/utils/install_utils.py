"""v0 import path: installing environments. Callers replace `is_installed` and `subprocess` here."""

import subprocess as subprocess

from verifiers.packages.install import install_from_hub as install_from_hub
from verifiers.packages.install import install_from_local as install_from_local
from verifiers.packages.install import install_from_repo as install_from_repo
from verifiers.packages.install import is_installed as is_installed
from verifiers.packages.install import normalize_package_name as normalize_package_name
from verifiers.packages.install import parse_env_id as parse_env_id
from verifiers.packages.published import is_hub_env as is_hub_env


def check_hub_env_installed(env_id: str) -> bool:
    """Return whether the environment of a hub id is installed, in the version of the id if it has one."""
    _, name, version = parse_env_id(env_id)
    return is_installed(name, version)
