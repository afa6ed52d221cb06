"""Building and publishing, looking at what is published, and taking it back."""

import json
import os
import signal
import time
from pathlib import Path

import pytest


def full(folder: Path, owner: str = "alice") -> str:
    return f"{owner}/{folder.name.replace('_', '-')}"


def test_an_environment_goes_from_a_template_to_the_hub_and_back(prime, alice):
    name = f"from-template-{os.getpid()}"
    assert prime("env", "init", name, "--json").json["env_id"] == name
    assert prime("env", "validate", f"./environments/{name.replace('-', '_')}").code == 0
    pushed = prime("env", "push", name, "--json")
    assert pushed.code == 0, pushed.err
    said = pushed.json
    assert (said["environment"], said["version"]) == (f"alice/{name}", "0.1.0")
    assert (said["is_new"], said["is_first"], said["visibility"]) == (True, True, "PUBLIC")

    assert said["environment"] in prime("env", "list", "--mine").out
    found = prime("env", "search", name, "--json").json["environments"]
    assert [one["environment"] for one in found] == [f"alice/{name}"]
    details = prime("env", "info", name, "--json").json  # known by its folder
    assert details["install"]["sha256"] == said["wheel_sha256"]
    assert (
        prime("env", "status", name, "--json").json["latest_version"]["semantic_version"] == "0.1.0"
    )
    [row] = prime("env", "versions", name, "--json").json["versions"]
    assert row["content_hash"] == said["content_hash"]
    entries = prime("env", "inspect", name, "--json").json["entries"]
    module = f"{name.replace('-', '_')}.py"
    assert {"README.md", "pyproject.toml", module} <= {entry["path"] for entry in entries}
    source = Path("environments", name.replace("-", "_"), module).read_text()
    assert prime("env", "inspect", name, module).out.rstrip("\n") == source.rstrip("\n")
    short = prime("env", "inspect", name, module, "--max-bytes", "10", "--json").json
    assert (short["truncated"], short["content"]) == (True, source[:10])

    pulled = prime("env", "pull", f"alice/{name}", "-t", "copy", "--json")
    assert (pulled.code, pulled.json["is_verified"]) == (0, True)
    assert Path("copy", module).read_text() == source
    assert prime("env", "push", "--path", "copy", "--json").json["is_new"] is False


def test_unchanged_content_is_not_sent_again_and_a_used_version_is_not_replaced(
    prime, alice, make_project
):
    folder = make_project(files={"table.json": "[]"}, included=', "table.json"')
    assert prime("env", "push", "-p", folder).code == 0
    again = prime("env", "push", "-p", folder)
    assert (again.code, "unchanged" in again.out) == (0, True)
    bump = prime("env", "push", "-p", folder, "--auto-bump")
    assert (bump.code, "unchanged" in bump.out) == (0, True)
    assert 'version = "0.1.0"' in (folder / "pyproject.toml").read_text()

    (folder / "table.json").write_text("[1]")  # data counts as content, not only code
    refused = prime("env", "push", "-p", folder)
    assert (refused.code, "--auto-bump" in refused.err) == (1, True)
    assert 'version = "0.1.0"' in (folder / "pyproject.toml").read_text()
    bumped = prime("env", "push", "-p", folder, "--auto-bump", "--json")
    assert bumped.json["version"] == "0.1.1"
    assert 'version = "0.1.1"' in (folder / "pyproject.toml").read_text()
    assert [
        v["version"] for v in prime("env", "versions", full(folder), "--json").json["versions"]
    ] == [
        "0.1.1",
        "0.1.0",
    ]


def test_a_private_environment_of_somebody_else_is_as_if_it_were_not_there(
    prime, as_person, make_project, target
):
    as_person("alice")
    folder = make_project()
    assert prime("env", "push", "-p", folder, "--visibility", "private").code == 0
    hidden, missing = full(folder), full(folder).replace("cli", "xli")
    for stranger in ("mallory", None):
        as_person(stranger)
        assert full(folder) not in prime("env", "list", "--num", "500").out
        for command in (
            ("env", "info", "{}"),
            ("env", "status", "{}"),
            ("env", "versions", "{}"),
            ("env", "inspect", "{}"),
            ("env", "pull", "{}"),
            ("env", "install", "{}", "--python", target.python),
        ):
            two = [prime(*(part.format(name) for part in command)) for name in (hidden, missing)]
            assert [one.code for one in two] == [1, 1]
            assert (
                two[0].err.replace(hidden, missing).replace(hidden[6:], missing[6:]) == two[1].err
            )
            assert two[0].out.replace(hidden, missing) == two[1].out
    as_person("mallory")
    for command in (
        ("delete", "{}", "-f"),
        ("yank", "{}@0.1.0"),
        ("fork", "{}"),
        ("secret", "list", "{}"),
    ):
        two = [prime("env", *(part.format(name) for part in command)) for name in (hidden, missing)]
        assert [one.code for one in two] == [1, 1]
        assert two[0].err.replace(hidden, missing) == two[1].err


def test_a_push_can_make_an_environment_private_before_the_new_version_is_there(
    prime, alice, make_project, as_person
):
    folder = make_project()
    prime("env", "push", "-p", folder)
    (folder / "secret_part.py").write_text("X = 1\n")
    done = prime("env", "push", "-p", folder, "--auto-bump", "--visibility", "PRIVATE", "--json")
    assert (done.code, done.json["visibility"]) == (0, "PRIVATE")
    as_person(None)
    assert prime("env", "info", full(folder)).code == 1


def test_yanked_versions_are_passed_over_and_deleted_ones_never_come_back(
    prime, alice, make_project
):
    folder = make_project()
    for version in ("0.1.0", "0.2.0"):
        text = (folder / "pyproject.toml").read_text().replace("0.1.0", version)
        (folder / "pyproject.toml").write_text(text)
        assert prime("env", "push", "-p", folder).code == 0
    name = full(folder)
    assert prime("env", "yank", name, "--reason", "x").code == 2  # which version?
    assert prime("env", "yank", f"{name}@0.2.0", "--reason", "wrong answers").code == 0
    assert prime("env", "info", name, "--json").json["semantic_version"] == "0.1.0"
    assert "wrong answers" in prime("env", "versions", name).out
    assert prime("env", "yank", f"{name}@0.2.0", "--undo").code == 0
    assert prime("env", "info", name, "--json").json["semantic_version"] == "0.2.0"

    unsure = prime("env", "delete", f"{name}@0.2.0")
    assert (unsure.code, "--force" in unsure.err) == (2, True)
    content = prime("env", "versions", name, "--json").json["versions"][0]["content_hash"]
    assert prime("env", "version", "delete", name, content[:12], "--force").code == 0
    reused = prime("env", "push", "-p", folder)
    assert (reused.code, "0.2.0" in reused.err, "was deleted" in reused.err) == (1, True, True)
    assert "--auto-bump" in reused.err
    assert prime("env", "delete", name, "--force", "--json").json == {"deleted": name}
    assert prime("env", "info", name).code == 1


def test_a_fork_is_the_callers_own(prime, as_person, make_project):
    as_person("alice")
    folder = make_project()
    prime("env", "push", "-p", folder)
    as_person("bob")
    done = prime("fork", full(folder), "--json")
    assert (done.code, done.json["slug"]) == (0, full(folder, "bob"))
    assert prime("env", "pull", full(folder, "bob"), "-t", "fork").code == 0
    known = json.loads(Path("fork/.prime/.env-metadata.json").read_text())
    assert (known["owner"], known["origin"]["owner"]) == ("bob", "alice")
    again = prime("env", "fork", full(folder))
    assert (again.code, "already exists" in again.err) == (1, True)


def test_an_upload_that_is_cut_off_is_sent_again(prime, as_person, relay, make_project):
    as_person("alice", relay.url)
    relay.cut_uploads = 2
    folder = make_project()
    done = prime("env", "push", "-p", folder)
    assert done.code == 0, done.err
    assert [p.authorization for p in relay.passed if p.method == "PUT"] == [None] * 4


def test_a_push_that_fails_leaves_nothing_behind_and_can_be_done_again(
    prime, as_person, relay, make_project
):
    as_person("alice", relay.url)
    folder = make_project()
    prime("env", "push", "-p", folder)
    (folder / f"{folder.name}.py").write_text("def load_environment():\n    return 2\n")
    before = (folder / "pyproject.toml").read_bytes()
    relay.cut_uploads = 100
    failed = prime("env", "push", "-p", folder, "--auto-bump")
    assert (failed.code, "Traceback" in failed.err) == (1, False)
    assert "upload" in failed.err
    assert (folder / "pyproject.toml").read_bytes() == before
    assert len(prime("env", "versions", full(folder), "--json").json["versions"]) == 1
    relay.cut_uploads = 0
    assert prime("env", "push", "-p", folder, "--auto-bump", "--json").json["version"] == "0.1.1"


def test_ctrl_c_during_an_upload_is_130_and_nothing_is_published(
    prime, as_person, relay, make_project, start_in
):
    import sys

    as_person("alice", relay.url)
    folder = make_project()
    relay.stalls_uploads = True
    before = (folder / "pyproject.toml").read_bytes()
    command = ("env", "push", "-p", folder, "--auto-bump")
    process = start_in(sys.executable, "vf_cli.prime.main:main", *command)
    assert relay.stalled.wait(60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert "Interrupted" in err
    assert "Traceback" not in err
    assert (folder / "pyproject.toml").read_bytes() == before
    relay.stalls_uploads = False
    assert prime("env", "versions", full(folder), "--json").json["versions"] == []
    assert prime("env", "push", "-p", folder).code == 0


def test_a_hub_that_is_busy_for_a_moment_is_asked_again_and_one_that_is_away_is_said(
    prime, as_person, relay, monkeypatch
):
    as_person("alice", relay.url)
    relay.statuses = [("/environmentshub/", 503), ("/environmentshub/", 429)]
    assert prime("env", "list").code == 0
    relay.statuses = [("/environmentshub/", 502)] * 4
    away = prime("env", "list")
    assert (away.code, "502" in away.err) == (1, True)
    monkeypatch.setenv("PRIME_API_BASE_URL", "http://127.0.0.1:9")
    refused = prime("env", "list", "--json")
    assert (refused.code, refused.out) == (1, "")
    assert "Is the hub running?" in refused.err


def test_an_address_that_is_no_hub_is_said(prime, monkeypatch, endpoint):
    monkeypatch.setenv("PRIME_API_BASE_URL", endpoint.url.removesuffix("/v1"))
    done = prime("env", "list")
    assert done.code == 1
    assert "Traceback" not in done.err


def test_a_key_that_is_missing_is_wrong_usage_and_one_that_is_refused_is_a_failure(
    prime, as_person, monkeypatch, make_project
):
    as_person(None)
    folder = make_project()
    for command in (("whoami",), ("env", "push", "-p", folder), ("eval", "push", folder)):
        done = prime(*command)
        assert (done.code, "prime login" in done.err) == (2, True), done.err
    monkeypatch.setenv("PRIME_API_KEY", "vfh_wrong")
    for command in (("whoami",), ("env", "push", "-p", folder)):
        done = prime(*command)
        assert (done.code, "does not accept the API key" in done.err) == (1, True)
        assert "vfh_wrong" not in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--path", "."], "no pyproject.toml"),
        (["gone"], "no pyproject.toml"),
        (["--auto-bump", "--rc"], "exclude each other"),
        (["--owner", "a", "--team", "b"], "exclude each other"),
        (["--visibility", "SECRET"], "PUBLIC or PRIVATE"),
        (["--runtime", "v9"], "v0 or v1"),
        (["--what"], "No such option"),
    ],
)
def test_wrong_usage_of_push_is_exit_2(prime, alice, arguments, said):
    done = prime("env", "push", *arguments)
    assert (done.code, done.out, said in done.err) == (2, "", True), done.err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"code": "X = 1\n"}, "defines load_environment"),
        ({"name": "requests"}, "belongs to another package"),
        ({"name": "prime-evals-env", "included": ', "pip/*"', "files": {"pip/x.py": ""}}, "'pip'"),
        ({"version": "1.0+mine"}, "local version"),
    ],
)
def test_what_cannot_be_published_is_said(prime, alice, make_project, change, said):
    done = prime("env", "push", "-p", make_project(**change))
    assert (done.code, said in done.err) == (1, True), done.err


def test_publishing_for_others_needs_their_permission(prime, as_person, make_project):
    as_person("bob")
    folder = make_project()
    done = prime("env", "push", "-p", folder, "--owner", "alice")
    assert done.code == 1
    assert prime("env", "push", "-p", folder, "--team", "no-such-team").code == 1


def test_secrets_are_never_shown_and_variables_are(prime, alice, make_project):
    folder = make_project()
    prime("env", "push", "-p", folder)
    name = full(folder)
    made = prime("env", "secret", "create", name, "-n", "API_KEY", "--json", typed="s3cr3t-value\n")
    assert made.code == 0, made.err
    prime(
        "env", "secret", "update", name, "--name", "API_KEY", "--value", "-", typed="s3cr3t-other\n"
    )
    shown = [prime("env", "secret", "list", name, *more) for more in ([], ["--json"], ["--plain"])]
    assert all("API_KEY" in one.out for one in shown)
    assert all("s3cr3t" not in one.out + one.err for one in [made, *shown])
    prime("env", "var", "create", name, "-n", "LEVEL", "-v", "hard")
    assert "hard" in prime("env", "var", "list", name).out
    assert prime("env", "var", "update", "LEVEL", name, "-v", "easy").code == 0
    assert prime("env", "var", "delete", "LEVEL", name, "--yes").code == 0
    assert prime("env", "var", "delete", "LEVEL", name, "--yes").code == 1
    wrong = prime("env", "secret", "create", name, "-n", "lower", "-v", "x")
    assert (wrong.code, "capital letters" in wrong.err) == (2, True)
    own = prime("secret", "create", "-n", f"OWN_{os.getpid()}", "-v", "s3cr3t", "--json").json
    linked = prime("env", "secret", "link", own["id"], name)
    assert linked.code == 0, linked.err
    assert "linked" in prime("env", "secret", "list", name).out
    assert prime("env", "secret", "unlink", own["id"], name, "-y").code == 0
    assert prime("secret", "delete", own["id"], "--yes").code == 0


def test_lists_for_programs(prime, alice, make_project):
    folder = make_project(project='keywords = ["lines-for-programs"]')
    prime("env", "push", "-p", folder)
    [line] = prime("env", "list", "--tag", "lines-for-programs", "--plain").out.splitlines()
    assert line.split("\t")[:3] == [full(folder), "0.1.0", "PUBLIC"]
    page = prime("env", "list", "--tag", "lines-for-programs", "--output", "json").json
    assert (page["total"], page["page"], page["per_page"]) == (1, 1, 20)
    [row] = page["environments"]
    members = "environment description visibility version stars updated_at tags"
    assert set(row) == set(members.split())
    assert prime("env", "list", "--sort", "size").code == 2
    assert prime("env", "list", "--owner", "nobody-here", "--json").json["environments"] == []


def test_hostile_text_from_the_hub_does_not_drive_the_terminal(prime, alice, make_project):
    folder = make_project()
    path = folder / "pyproject.toml"
    path.write_text(path.read_text().replace("A sum", "red \\u001b[31m and \\u0007 bell"))
    done = prime("env", "push", "-p", folder)
    assert done.code in (0, 1)
    shown = prime("env", "info", full(folder)).out
    assert "\x1b[31m" not in shown + prime("env", "list").out


def test_help_is_fast_and_needs_no_configuration(prime):
    started = time.process_time()
    for command in ((), ("env",), ("env", "push"), ("eval",), ("config",)):
        assert prime(*command, "--help").code == 0
    assert time.process_time() - started < 5


def test_push_says_what_the_visibility_means(prime, alice, make_project):
    folder = make_project()
    done = prime("env", "push", "-p", folder)
    assert "PUBLIC: everyone on this hub can read it; --visibility PRIVATE hides it" in done.out
    done = prime("env", "push", "-p", folder, "--visibility", "PRIVATE")
    assert "PRIVATE: only alice can read it" in done.out


def test_a_private_project_stays_private_for_a_team_and_under_another_name(
    prime, alice, make_project
):
    folder = make_project()
    assert prime("env", "push", "-p", folder, "-v", "PRIVATE").code == 0
    team = f"team-{os.getpid()}"
    assert prime("teams", "create", team).code == 0
    for_team = prime("env", "push", "-p", folder, "--team", team, "--json")
    assert (for_team.json["owner"], for_team.json["visibility"]) == (team, "PRIVATE")
    renamed = folder.name.replace("_", "-") + "-renamed"
    text = (folder / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(text.replace(folder.name.replace("_", "-"), renamed))
    module = folder / f"{folder.name}.py"
    module.rename(folder / f"{renamed.replace('-', '_')}.py")
    text = (folder / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(
        text.replace(f'"{folder.name}.py"', f'"{renamed.replace("-", "_")}.py"')
    )
    done = prime("env", "push", "-p", folder, "--json")
    assert (done.code, done.json["visibility"]) == (0, "PRIVATE"), done.err
