"""What is seen while files move: bars on a terminal, lines elsewhere, nothing beside JSON."""

import io
import sys

import pytest
from rich.console import Console

from verifiers.hub.config import HubSettings
from verifiers.packages.install import install_from_hub
from vf_cli import output
from vf_cli.prime import command
from vf_cli.prime.command import Transfers


@pytest.fixture
def terminal(monkeypatch):
    """stderr as a terminal that remembers what was drawn."""
    drawn = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(output, "stderr", lambda: drawn)
    command.forget_choices()
    return drawn


def test_a_terminal_sees_a_bar_with_name_and_amount(terminal):
    with Transfers() as transfers:
        transfers.step("uploading it")
        transfers.progress("a-wheel.whl", 512 * 1024, 1024 * 1024)
        transfers.progress("a-wheel.whl", 1024 * 1024, 1024 * 1024)
    drawn = terminal.file.getvalue()
    assert "uploading it" in drawn
    assert "a-wheel.whl" in drawn
    assert "MB" in drawn


def test_a_file_sees_lines_and_json_sees_nothing(prime, as_person, make_project):
    as_person("alice")
    folder = make_project()
    quiet = prime("env", "push", "-p", folder, "--json")
    assert (quiet.code, quiet.err) == (0, "")
    said = prime("env", "pull", quiet.json["environment"], "-t", "copy")
    assert "downloading" in said.err
    assert "\x1b" not in said.err
    assert sys.stderr is not None


def test_settings_do_not_show_their_key():
    settings = HubSettings("http://h", "vfh_0123456789abcdef0123", None, "http://h", "lab")
    assert "0123456789" not in repr(settings) + str(settings) + f"{settings!r}"


def test_the_name_of_v0_answers_no_without_a_hub(caplog):
    assert install_from_hub("alice/not-there") is False
    assert "No hub is configured" in caplog.text
