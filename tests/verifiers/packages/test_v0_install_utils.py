"""`verifiers.utils.install_utils`: functions that callers of v0 call, and names that they replace."""

import subprocess
from unittest import mock

import pytest

from verifiers.utils import install_utils


@pytest.mark.parametrize(
    ("env_id", "version"), [("a/b", None), ("a/b@1.2", "1.2"), ("a/b@latest", "latest")]
)
def test_the_check_asks_the_function_of_its_module(env_id: str, version: str | None) -> None:
    with mock.patch.object(install_utils, "is_installed", return_value=True) as is_installed:
        assert install_utils.check_hub_env_installed(env_id)
    is_installed.assert_called_once_with("b", version)


def test_the_check_finds_what_is_installed() -> None:
    assert install_utils.check_hub_env_installed("someone/pytest")
    assert not install_utils.check_hub_env_installed("someone/pytest@0.0.1")
    assert not install_utils.check_hub_env_installed("someone/no-such-environment")


@pytest.mark.parametrize("env_id", ["b", "a/b/c", "", "/b", "a/"])
def test_an_invalid_id_is_named(env_id: str) -> None:
    with pytest.raises(ValueError, match=f"Invalid environment ID: '{env_id}'"):
        install_utils.parse_env_id(env_id)


def test_the_installer_is_run_with_the_modules_subprocess() -> None:
    failed = subprocess.CompletedProcess([], 1, "", "no such package")
    with mock.patch.object(install_utils.subprocess, "run", return_value=failed) as run:
        assert not install_utils.install_from_repo("my-env", repo="https://host/a/b")
    assert (
        "my-env @ git+https://host/a/b@main#subdirectory=environments/my_env"
        in run.call_args.args[0]
    )
