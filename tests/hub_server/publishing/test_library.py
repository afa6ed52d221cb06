"""The library itself on a hub: published by the operator, given to whoever installs an environment that needs it."""

import asyncio

import pytest

from hub_server.publishing import library as published
from hub_server.storage.service import open_store
from verifiers.packages import library
from verifiers.packages.library import installed_library, write_library
from verifiers.packages.wheel import WheelRejected, read_wheel

API = "/api/v1/environmentshub"


async def publish(hub):
    return await published.publish_library(hub.settings, hub.database, open_store(hub.settings))


async def details(client, full):
    answer = await client.get(f"{API}/{full}/@latest")
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def test_the_library_is_an_environment_of_the_hub_that_everybody_can_install(hub):
    done = await publish(hub)
    assert (done.is_new, done.version) == (True, installed_library().version)
    address, _, sha256 = done.path.partition("#sha256=")
    answer = await hub.http.get(f"/{address}")
    assert answer.status_code in (200, 302)  # S3 hands it out itself
    found = await details(hub.http, "verifiers/verifiers")
    assert found["install"]["sha256"] == sha256
    assert found["install"]["dependencies"] == []
    page = await hub.http.get("/verifiers/simple/verifiers/")
    assert sha256 in page.text


async def test_publishing_the_same_library_again_changes_nothing_and_another_gets_a_new_number(
    small_hub, monkeypatch
):
    first = await publish(small_hub)
    again = await publish(small_hub)
    assert (again.is_new, again.path) == (False, first.path)
    library = installed_library()
    changed = library._replace(contents={**library.contents, "verifiers/new.py": b"X = 1\n"})
    monkeypatch.setattr(published, "installed_library", lambda: changed)
    second = await publish(small_hub)
    assert (second.is_new, second.version) == (True, f"{library.version}.post1")


async def test_environments_are_installed_with_the_hubs_library(small_hub, wheel):
    alice = await small_hub.person("alice")
    for name, limit in (("new-env", ">=0.1.8"), ("extra-env", "[mcp]>=1.0"), ("old-env", "<0.4")):
        made = wheel(
            name=name,
            files={f"{name.replace('-', '_')}.py": b""},
            metadata=f"Requires-Dist: verifiers{limit}\n",
        )
        assert (await alice.upload(made)).status_code == 200
        assert (await details(small_hub.http, f"alice/{name}"))["install"]["dependencies"] == []
    done = await publish(small_hub)
    for name in ("new-env", "extra-env"):
        found = await details(small_hub.http, f"alice/{name}")
        [line] = found["install"]["dependencies"]
        assert line == f"verifiers @ http://hub/{done.path}"
        assert (await small_hub.http.get(found["wheel_url"].partition("#")[0])).status_code == 200
    # An environment for the public package alone keeps its requirement.
    assert (await details(small_hub.http, "alice/old-env"))["install"]["dependencies"] == []
    # An installer with an index of this hub beside its own gets the library as well.
    for index in ("/alice/simple", "/alice/new-env/simple"):
        assert (await small_hub.http.get(f"{index}/verifiers/")).status_code == 200


async def test_nobody_can_have_the_name_of_the_librarys_owner(small_hub):
    for name in ("verifiers", "ver1fiers", "verlfiers"):
        with pytest.raises(Exception, match="reserved"):
            await small_hub.person(name)
    alice = await small_hub.person("alice")
    answer = await alice.http.post("/api/v1/teams", json={"slug": "verifiers"})
    assert answer.status_code == 400


async def test_only_the_operator_publishes_a_package_of_the_librarys_name(small_hub, tmp_path):
    await publish(small_hub)
    alice = await small_hub.person("alice")
    file = await asyncio.to_thread(write_library, installed_library(), tmp_path, "9.0")
    with pytest.raises(WheelRejected):
        read_wheel(file)
    for place in ("/alice/legacy/", "/verifiers/legacy/"):
        answer = await alice.http.post(
            place,
            data={":action": "file_upload", "name": "verifiers", "version": "9.0"},
            files={"content": (file.name, file.read_bytes())},
        )
        assert answer.status_code in (400, 403), answer.text


def test_the_wheel_has_the_examples_and_no_runs_that_were_saved_beside_them(tmp_path, monkeypatch):
    package, linked = tmp_path / "verifiers", tmp_path / "environments" / "sums"
    (linked / "outputs" / "evals").mkdir(parents=True)
    (linked / "outputs" / "evals" / "results.jsonl").write_text("private")
    (linked / "sums.py").write_text("x = 1")
    (package / "examples").mkdir(parents=True)
    (package / "examples" / "sums").symlink_to(linked)
    (package / "__init__.py").write_text("")
    found = {path.relative_to(package).as_posix() for path in library._files(package)}
    assert found == {"__init__.py", "examples/sums/sums.py"}
    assert "verifiers/examples/reverse_text/reverse_text.py" in library.installed_library().contents
