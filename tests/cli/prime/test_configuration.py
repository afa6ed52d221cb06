"""Which hub a command talks to, as whom, and what stands in the file that the public command shares."""

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.errors import ConfigError
from verifiers.hub.config import (
    PUBLIC_API_URL,
    HubConfigFile,
    HubNotConfigured,
    checked_url,
    hub_settings,
    masked,
)

NEEDS_A_HUB = [
    ("whoami",),
    ("login", "--headless"),
    ("teams", "list"),
    ("switch", "personal"),
    ("fork", "a/b"),
    ("secret", "list"),
    ("env", "list"),
    ("env", "search", "x"),
    ("env", "info", "a/b"),
    ("env", "status", "a/b"),
    ("env", "inspect", "a/b"),
    ("env", "versions", "a/b"),
    ("env", "pull", "a/b"),
    ("env", "install", "a/b"),
    ("env", "yank", "a/b@1"),
    ("env", "delete", "a/b", "--force"),
    ("env", "secret", "list", "a/b"),
    ("env", "var", "list", "a/b"),
    ("eval", "list"),
    ("eval", "get", "x"),
    ("eval", "samples", "x"),
]


@pytest.mark.parametrize("command", NEEDS_A_HUB, ids=" ".join)
@pytest.mark.parametrize(
    "file", [None, {"base_url": PUBLIC_API_URL, "api_key": "secret-of-the-public-one"}]
)
def test_without_a_hub_of_the_users_choice_nothing_is_asked_of_any(prime, command, file):
    if file is not None:  # as the public command writes it by itself
        HubConfigFile().update(**file)
    done = prime(*command)
    assert done.code == 2
    assert "prime config set-base-url" in done.err
    assert "PRIME_API_BASE_URL" in done.err
    assert "secret-of" not in done.err + done.out


def test_push_without_a_hub_stops_too(prime, make_project):
    assert prime("env", "push", "--path", make_project()).code == 2


def test_the_public_hub_is_used_only_when_it_is_named(monkeypatch):
    HubConfigFile().update(api_key="key")
    with pytest.raises(HubNotConfigured):
        hub_settings()
    assert hub_settings("production") == hub_settings(variables={"PRIME_CONTEXT": "production"})
    assert hub_settings("production").base_url == PUBLIC_API_URL
    assert hub_settings("production").api_key == "key"
    assert hub_settings(variables={"PRIME_API_BASE_URL": PUBLIC_API_URL}).api_key == "key"


def test_variables_come_before_the_context_and_the_context_before_the_file(prime):
    file = HubConfigFile()
    file.update(base_url="http://127.0.0.1:1", api_key="one", team_id="t1")
    file.save_context("first")
    file.update(base_url="http://127.0.0.1:2", api_key="two", team_id=None)
    assert hub_settings(variables={})[:3] == ("http://127.0.0.1:2", "two", None)
    assert hub_settings("first", variables={})[:3] == ("http://127.0.0.1:1", "one", "t1")
    by_variable = hub_settings(variables={"PRIME_CONTEXT": "first", "PRIME_API_KEY": "mine"})
    assert by_variable[:3] == ("http://127.0.0.1:1", "mine", "t1")
    over = {"PRIME_API_BASE_URL": "http://127.0.0.1:3/api/v1/", "PRIME_TEAM_ID": "  "}
    assert hub_settings("first", variables=over).base_url == "http://127.0.0.1:3"


def test_a_key_is_never_sent_to_another_hub_than_its_own(prime):
    file = HubConfigFile()
    file.update(base_url="http://127.0.0.1:1", api_key="of-hub-one-1234567890")
    assert hub_settings(variables={"PRIME_API_BASE_URL": "http://127.0.0.1:2"}).api_key is None
    assert hub_settings("production", variables={}).api_key is None
    prime("config", "save", "one")
    said = prime("config", "set-base-url", "http://127.0.0.1:2")
    assert (said.code, file.read()["api_key"]) == (0, "")
    assert "was removed" in said.err
    prime("config", "use", "one")
    assert file.read()["api_key"] == "of-hub-one-1234567890"
    prime("config", "use", "production")
    assert file.read()["api_key"] == ""
    assert file.context("one")["api_key"] == "of-hub-one-1234567890"


def test_the_file_is_closed_to_others_and_keeps_what_others_wrote(prime):
    file = HubConfigFile()
    file.update(base_url="http://127.0.0.1:1", written_by_another_program={"x": 1})
    prime("config", "set-api-key", typed="vfh_0123456789abcdef0123\n")
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    values = json.loads(file.path.read_text())
    assert values["written_by_another_program"] == {"x": 1}
    assert values["api_key"] == "vfh_0123456789abcdef0123"
    assert [path.name for path in file.folder.iterdir()] == ["config.json"]


def test_pages_and_traces_follow_the_hub_unless_they_were_set_elsewhere(prime):
    prime("config", "set-base-url", "http://127.0.0.1:1/")
    values = HubConfigFile().read()
    assert values["frontend_url"] == values["traces_url"] == "http://127.0.0.1:1"
    prime("config", "set-traces-url", "http://127.0.0.1:9")
    prime("config", "set-base-url", "http://127.0.0.1:2")
    values = HubConfigFile().read()
    assert (values["frontend_url"], values["traces_url"]) == (
        "http://127.0.0.1:2",
        "http://127.0.0.1:9",
    )


def test_pages_are_those_of_the_hub_that_a_variable_names(prime):
    prime("config", "set-base-url", "http://127.0.0.1:1")
    named = hub_settings(variables={"PRIME_API_BASE_URL": "http://127.0.0.1:2"})
    assert named.frontend_url == "http://127.0.0.1:2"
    prime("config", "set-frontend-url", "http://127.0.0.1:3")
    named = hub_settings(variables={"PRIME_API_BASE_URL": "http://127.0.0.1:2"})
    assert named.frontend_url == "http://127.0.0.1:3"


@pytest.mark.parametrize("key", ["vfh_one\nvfh_two", "vfh_one two", "vfh_\x1b[0m", "vfh_é"])
def test_a_key_that_cannot_be_one_is_refused_without_being_shown(prime, monkeypatch, key):
    monkeypatch.setenv("PRIME_API_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("PRIME_API_KEY", key)
    refused = prime("whoami")
    assert (refused.code, "API key contains spaces" in refused.err) == (2, True)
    assert "vfh_" not in refused.err
    assert hub_settings(variables={**os.environ, "PRIME_API_KEY": " vfh_x\n"}).api_key == "vfh_x"


def test_keys_are_shown_shortened(prime, monkeypatch):
    prime("config", "set-base-url", "http://127.0.0.1:1")
    key = "vfh_0123456789abcdef0123"
    shown = [
        prime("config", "set-api-key", key),
        prime("config", "set-api-key", key, "--json"),
        prime("config", "view"),
        prime("config", "view", "--json"),
        prime("config", "view", "--plain"),
        prime("-c", "production", "config", "view", "--json"),
    ]
    assert all(one.code == 0 and key not in one.out + one.err for one in shown)
    assert shown[3].json["api_key"] == "vfh_…0123"
    assert shown[5].json["base_url"] == PUBLIC_API_URL
    assert masked("short") == "…"


def test_contexts_are_listed_used_once_and_deleted(prime):
    prime("config", "set-base-url", "http://127.0.0.1:1")
    prime("config", "save", "lab")
    prime("config", "set-base-url", "http://127.0.0.1:2")
    once = prime("-c", "lab", "config", "view", "--json")
    assert once.json["base_url"] == "http://127.0.0.1:1"
    listed = prime("config", "envs", "--json").json["environments"]
    assert [(one["name"], one["is_current"]) for one in listed] == [
        ("production", False),  # the hub in use is neither's
        ("lab", False),
    ]
    assert "http://127.0.0.1:2, in no context" in prime("config", "envs").out
    refused = prime("-c", "lab", "config", "set-base-url", "http://127.0.0.1:3")
    assert (refused.code, "read-only" in refused.err) == (2, True)
    prime("config", "use", "lab")
    listed = prime("config", "envs", "--json").json
    assert [one["is_current"] for one in listed["environments"]] == [False, True]
    assert listed["base_url"] == "http://127.0.0.1:1"
    assert prime("config", "delete", "lab").code == 2  # it is in use
    prime("config", "use", "production")
    assert prime("config", "delete", "lab").code == 0
    assert prime("-c", "lab", "config", "view").code == 2
    assert prime("-c", "lab", "env", "list").code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set-base-url", "hub.example.org"], "not the address of a hub"),
        (["set-base-url", "https://me:key@hub.example.org"], "must not contain"),
        (["set-team-id", "Team"], "not a team id"),
        (["set-traces-opt-out", "perhaps"], "neither true nor false"),
        (["set-traces-url", "ftp://x"], "not an address"),
        (["set-api-key", "two words"], "one word"),
        (["set-api-key"], "API key is missing"),
        (["save", "a/../b"], "is not a valid context name"),
        (["save", "production"], "built in"),
        (["use", "nope"], "no context 'nope'; there are production"),
        (["delete", "production"], "built in"),
        (["reset"], "--yes"),
        (["view", "--output", "xml"], "--output must be one of"),
        (["nope"], "No such command"),
    ],
)
def test_wrong_configuration_is_refused_with_what_to_do(prime, arguments, said):
    HubConfigFile().update(base_url="http://127.0.0.1:1")
    before = HubConfigFile().path.read_bytes()
    done = prime("config", *arguments)
    assert (done.code, done.out, said in done.err) == (2, "", True), done.err
    assert "Traceback" not in done.err
    assert HubConfigFile().path.read_bytes() == before


@pytest.mark.parametrize("text", ["{not json", "[1, 2]", "\ud800".encode("utf-8", "surrogatepass")])
def test_a_damaged_file_is_named_and_left_alone(prime, text):
    path = HubConfigFile().path
    path.parent.mkdir()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = path.read_bytes()
    done = prime("config", "set-base-url", "http://127.0.0.1:1")
    assert (done.code, str(path) in done.err) == (2, True)
    assert path.read_bytes() == before


def test_a_key_without_encryption_is_warned_about(prime):
    assert "not encrypted" in prime("config", "set-base-url", "http://hub.example.org").err
    assert "not encrypted" not in prime("config", "set-base-url", "https://hub.example.org").err
    assert "not encrypted" not in prime("config", "set-base-url", "http://127.0.0.1:1").err


@given(st.text(max_size=60))
def test_an_address_is_either_refused_or_stable(text):
    try:
        plain = checked_url(text)
    except ConfigError:
        return
    assert (
        checked_url(plain) == checked_url(plain + "/") == checked_url(plain + "/api/v1/") == plain
    )


_NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)


@given(
    st.lists(
        st.dictionaries(_NAMES, st.none() | st.booleans() | st.text(max_size=20), max_size=4),
        max_size=5,
    )
)
def test_changes_add_up(changes):
    folder = Path(os.environ["HOME"]) / "changes"
    (folder / "config.json").unlink(missing_ok=True)
    file = HubConfigFile(folder)
    expected = file.read()
    for change in changes:
        file.update(**change)
        expected |= change
    assert file.read() == expected
