"""Every test runs in an empty home and working directory, without keys and without a network beyond this machine."""

import errno
import gc
import ipaddress
import logging
import os
import platform
import signal
import socket
from collections.abc import Generator, Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

SHOWN_VERSIONS = ("verifiers", "aiohttp", "datasets", "openai", "pydantic", "hypothesis")

# A shell that runs something in the background has it ignore Ctrl-C, and its children inherit that; the tests of
# interrupted programs must not depend on how they were started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "repeatable",
    derandomize=True,  # a test that fails only sometimes teaches people to run it again
    deadline=None,  # the machines of contributors and of the checks differ too much
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("short", settings.get_profile("repeatable"), max_examples=40)
settings.register_profile("long", settings.get_profile("repeatable"), max_examples=200)
PROFILES = {"not long": "short", "long": "long"}
"""Examples per property in `make test` and `make test-long`; otherwise Hypothesis's 100."""


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(PROFILES.get(config.option.markexpr, "repeatable"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Properties are in the long suite too, with more examples."""
    if config.option.markexpr == "long":
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker(pytest.mark.long)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Nearly all that collecting makes stays: searching it for garbage took two fifths of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_report_header() -> str:
    return "versions: " + ", ".join([f"python {platform.python_version()}", *_versions()])


def _versions() -> list[str]:
    found = []
    for name in SHOWN_VERSIONS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} missing")
    return found


_numbers = count()


@pytest.fixture(scope="session")
def _directories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Above the directories of all tests. `mktemp` for each would list all earlier ones: minutes in 9,000 tests."""
    return tmp_path_factory.mktemp("own")


@pytest.fixture(autouse=True)
def _own_directories(_directories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~`, the working directory (and so `outputs/`) are the test's own; caches of package tools stay shared."""
    own = _directories / str(next(_numbers))
    own.mkdir()
    real_home = Path.home()
    for variable, folder in (("UV_CACHE_DIR", "uv"), ("PIP_CACHE_DIR", "pip")):
        if variable not in os.environ:
            monkeypatch.setenv(variable, str(real_home / ".cache" / folder))
    home, work = own / "home", own / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)  # the width of the terminal that runs the tests
    monkeypatch.chdir(work)


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    """What a test sets up of logging (the commands do) does not outlive it."""
    loggers = [logging.getLogger(name) for name in ("verifiers", "hub_server", "vf_cli")]
    before = [(one, one.level, one.propagate, one.disabled, list(one.handlers)) for one in loggers]
    yield
    for one, level, propagate, disabled, handlers in before:
        one.setLevel(level)
        one.propagate, one.disabled = propagate, disabled
        one.handlers[:] = handlers


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test can never spend somebody's money."""
    for variable in list(os.environ):
        if variable.endswith(("_API_KEY", "_API_TOKEN")) or variable.startswith("PRIME_"):
            monkeypatch.delenv(variable)


@pytest.fixture(autouse=True, scope="session")
def _no_outside_network() -> Any:
    """Connections and look-ups beyond this machine fail as they do on a machine without a network."""
    patch = pytest.MonkeyPatch()
    connect, connect_ex, getaddrinfo = (
        socket.socket.connect,
        socket.socket.connect_ex,
        socket.getaddrinfo,
    )

    def checked_connect(self: socket.socket, address: Any) -> None:
        if _is_outside(self, address):
            raise OSError(
                errno.ENETUNREACH, f"tests have no network; {address!r} was to be reached"
            )
        connect(self, address)

    def checked_connect_ex(self: socket.socket, address: Any) -> int:
        return errno.ENETUNREACH if _is_outside(self, address) else connect_ex(self, address)

    def checked_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name and not _is_here(name) and not _is_address(name):
            raise socket.gaierror(
                socket.EAI_NONAME, f"tests have no network; {name!r} was looked up"
            )
        return getaddrinfo(host, *args, **kwargs)

    patch.setattr(socket.socket, "connect", checked_connect)
    patch.setattr(socket.socket, "connect_ex", checked_connect_ex)
    patch.setattr(socket, "getaddrinfo", checked_getaddrinfo)
    yield
    patch.undo()


def _is_outside(sock: socket.socket, address: Any) -> bool:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    return not _is_here(address[0])


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost") or host == socket.gethostname():
        return True
    return _is_address(host) and (
        ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
