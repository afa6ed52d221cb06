"""Environments that require other environments of the hub: the hub's are installed, or nothing is."""

import io
import tomllib
import zipfile

import pytest

from hub_server.index.pinned import with_requirements
from verifiers.packages.wheel import read_wheel

API = "/api/v1/environmentshub"
JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}


@pytest.fixture
def requiring(wheel):
    """A wheel of a name that requires others."""

    def make(name, *requirements, version="0.1.0", urls=()):
        lines = [f"Requires-Dist: {requirement}\n" for requirement in requirements]
        lines += [f"Project-URL: {url}\n" for url in urls]
        return wheel(
            name=name,
            version=version,
            files={f"{name.replace('-', '_')}.py": b"X = 1\n"},
            metadata="".join(lines),
        )

    return make


async def publish(person, wheel, visibility="PUBLIC", owner=None):
    content = wheel.bytes()
    return await person.http.post(
        f"/{owner or person.slug}/legacy/?visibility={visibility}",
        data={":action": "file_upload", "name": wheel.name, "version": wheel.version},
        files={"content": (wheel.filename, content)},
    )


async def published(person, wheel, visibility="PUBLIC", owner=None):
    answer = await publish(person, wheel, visibility, owner)
    assert answer.status_code == 200, answer.text


async def details(client, full, version="latest"):
    answer = await client.get(f"{API}/{full}/@{version}")
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def names_of(answer):
    return [line.partition(" @ ")[0] for line in answer["install"]["dependencies"]]


# --- what installers are told -------------------------------------------------------------------


async def test_a_private_dependency_of_the_same_owner_is_named_by_address_and_hash(hub, requiring):
    alice = await hub.person("alice")
    await published(alice, requiring("realpriv"), "PRIVATE")
    await published(alice, requiring("my-env", "realpriv>=0.1", "numpy"))
    found = await details(alice.http, "alice/my-env")
    [line] = found["install"]["dependencies"]
    assert line.startswith("realpriv @ http://hub/files/alice/realpriv/")
    assert "#sha256=" in line
    assert "vfh_" not in line
    # The token in the address reads both, and nothing else.
    address = found["install"]["wheel_url"]
    token = address.partition("__token__:")[2].partition("@")[0]
    reader = await hub.client(token)
    wheel_path = line.partition(" @ http://hub")[2].partition("#")[0]
    assert (await reader.get(wheel_path)).status_code in (200, 302)  # S3 hands it out itself
    assert (await hub.http.get(wheel_path)).status_code == 401


async def test_the_one_address_is_a_copy_of_the_wheel_with_addresses_inside(
    hub, requiring, tmp_path
):
    alice = await hub.person("alice")
    await published(alice, requiring("base-env"))
    await published(
        alice,
        requiring("my-env", 'Base_Env[fast]>=0.1; python_version > "3"', "numpy>=1", "rich"),
    )
    found = await details(hub.http, "alice/my-env")
    url, _, sha256 = found["wheel_url"].partition("#sha256=")
    answer = await hub.http.get(url)
    assert answer.status_code == 200
    again = await hub.http.get(url)
    assert again.content == answer.content
    copy = tmp_path / url.rpartition("/")[2]
    copy.write_bytes(answer.content)
    manifest = read_wheel(copy)  # RECORD and all other rules hold
    assert manifest.sha256 == sha256
    [base] = found["install"]["dependencies"]
    address = base.partition(" @ ")[2]
    assert [requirement.replace(" ", "") for requirement in manifest.requires_dist] == [
        f'Base_Env[fast]@{address};python_version>"3"',
        "numpy>=1",
        "rich",
    ]
    part = await hub.http.get(url, headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, answer.content[:4])
    wrong = url.replace(sha256, "1" * 64)
    assert (await hub.http.get(wrong)).status_code == 401
    # The published bytes are still what the index lists.
    page = (await hub.http.get("/alice/simple/my-env/", headers=JSON)).json()
    assert page["files"][0]["hashes"]["sha256"] == found["install"]["sha256"] != sha256


async def test_dependencies_of_dependencies_are_named_too(small_hub, requiring):
    alice = await small_hub.person("alice")
    await published(alice, requiring("deep-env"), "PRIVATE")
    await published(alice, requiring("middle-env", "deep-env"))
    await published(alice, requiring("my-env", "middle-env"))
    assert names_of(await details(alice.http, "alice/my-env")) == ["deep-env", "middle-env"]


async def test_one_version_fits_all_requirements(small_hub, requiring):
    alice = await small_hub.person("alice")
    for version in ("1.0", "1.5", "2.0", "3.0rc1"):
        await published(alice, requiring("base-env", version=version))
    await published(alice, requiring("left-env", "base-env>=1.1"))
    await published(alice, requiring("right-env", "base-env<2"))
    await published(alice, requiring("my-env", "left-env", "right-env"))
    lines = (await details(alice.http, "alice/my-env"))["install"]["dependencies"]
    assert "base_env-1.5-py3" in lines[0]
    await published(alice, requiring("new-env", "base-env"))
    [line] = (await details(alice.http, "alice/new-env"))["install"]["dependencies"]
    assert "base_env-2.0-py3" in line
    await published(alice, requiring("none-env", "base-env>=9"))
    refused = await details(alice.http, "alice/none-env")
    assert refused["install"] is None
    assert ">=9" in refused["install_refused"]
    assert "2.0" in refused["install_refused"]


async def test_yanked_dependencies_are_left_out_unless_named_exactly(small_hub, requiring):
    alice = await small_hub.person("alice")
    for version in ("1.0", "2.0"):
        await published(alice, requiring("base-env", version=version))
    await published(alice, requiring("my-env", "base-env"))
    await published(alice, requiring("exact-env", "base-env==2.0"))
    yank = await alice.http.post(f"{API}/alice/base-env/@2.0/yank", json={"reason": "wrong"})
    assert yank.status_code == 200
    [line] = (await details(alice.http, "alice/my-env"))["install"]["dependencies"]
    assert "base_env-1.0-py3" in line
    [line] = (await details(alice.http, "alice/exact-env"))["install"]["dependencies"]
    assert "base_env-2.0-py3" in line


async def test_extras_bring_their_dependencies(small_hub, requiring):
    alice = await small_hub.person("alice")
    await published(alice, requiring("judge-env"))
    await published(alice, requiring("base-env", 'judge-env; extra == "judge"'))
    await published(alice, requiring("plain-env", "base-env"))
    await published(alice, requiring("judged-env", "base-env[judge]"))
    assert names_of(await details(alice.http, "alice/plain-env")) == ["base-env"]
    assert names_of(await details(alice.http, "alice/judged-env")) == ["base-env", "judge-env"]


async def test_environments_that_require_each_other_end(small_hub, requiring):
    alice = await small_hub.person("alice")
    await published(alice, requiring("one-env"))
    await published(alice, requiring("two-env", "one-env"))
    await published(alice, requiring("one-env", "two-env", "one-env[x]", version="0.2.0"))
    assert names_of(await details(alice.http, "alice/one-env")) == ["two-env"]


async def test_an_address_of_this_hub_among_the_requirements_is_followed(small_hub, requiring):
    alice, bob = await small_hub.person("alice"), await small_hub.person("bob")
    await published(alice, requiring("deep-env"))
    await published(alice, requiring("base-env", "deep-env"))
    line = (await details(alice.http, "alice/base-env"))["install"]["requirement"]
    await published(bob, requiring("my-env", line))
    found = await details(bob.http, "bob/my-env")
    assert names_of(found) == ["deep-env"]
    assert found["url_dependencies"] == [line]


async def test_locks_and_project_lines_name_the_dependencies(small_hub, requiring):
    alice = await small_hub.person("alice")
    await published(alice, requiring("base-env"))
    await published(alice, requiring("my-env", "base-env"))
    answer = await small_hub.http.get(f"{API}/alice/my-env/@latest/pylock.toml")
    packages = tomllib.loads(answer.text)["packages"]
    assert [package["name"] for package in packages] == ["my-env", "base-env"]
    install = (await details(small_hub.http, "alice/my-env"))["install"]
    lines = tomllib.loads(install["uv_sources"])["tool"]["uv"]
    assert lines["constraint-dependencies"] == install["dependencies"]


async def test_one_token_reads_an_environment_with_what_it_needs(small_hub, requiring):
    alice = await small_hub.person("alice")
    await published(alice, requiring("realpriv"), "PRIVATE")
    await published(alice, requiring("my-env", "realpriv"))
    answer = await alice.http.post(f"{API}/install-token", json={"environments": ["alice/my-env"]})
    assert answer.json()["data"]["environments"] == ["alice/my-env", "alice/realpriv"]


# --- who may not have it gets nothing, and nothing else -----------------------------------------


async def test_without_rights_to_a_dependency_nothing_is_installed(hub, requiring):
    alice, bob = await hub.person("alice"), await hub.person("bob")
    await published(alice, requiring("realpriv"), "PRIVATE")
    await published(alice, requiring("my-env", "realpriv"))
    for client in (hub.http, bob.http):
        found = await details(client, "alice/my-env")
        assert found["install"] is None
        assert "realpriv" in found["install_refused"]
        refused = await client.get(found["wheel_url"])
        assert (refused.status_code, "realpriv" in refused.text) == (409, True)
        # An installer with the environment's own index stops as well.
        page = await client.get("/alice/my-env/simple/realpriv/")
        assert page.status_code == 409


async def test_a_token_for_one_environment_does_not_install_the_other(small_hub, requiring):
    alice = await small_hub.person("alice")
    await published(alice, requiring("realpriv"), "PRIVATE")
    await published(alice, requiring("my-env", "realpriv"), "PRIVATE")
    narrow = await small_hub.person("alice", actions=["read"], environments=["alice/my-env"])
    found = await details(narrow.http, "alice/my-env")
    assert (found["install"], "realpriv" in found["install_refused"]) == (None, True)


async def test_a_deleted_dependency_is_not_looked_for_elsewhere(small_hub, requiring):
    alice = await small_hub.person("alice")
    await published(alice, requiring("base-env"))
    await published(alice, requiring("my-env", "base-env"))
    assert (await alice.http.delete(f"{API}/alice/base-env")).status_code == 200
    for client in (alice.http, small_hub.http):
        found = await details(client, "alice/my-env")
        assert (found["install"], "base-env" in found["install_refused"]) == (None, True)
    answer = await publish(alice, requiring("next-env", "base-env"))
    assert (answer.status_code, "deleted" in answer.text) == (400, True)


async def test_a_dependency_that_is_published_later_counts(small_hub, requiring):
    alice = await small_hub.person("alice")
    await published(alice, requiring("my-env", "base-env"))
    assert names_of(await details(alice.http, "alice/my-env")) == []
    await published(alice, requiring("base-env"))
    assert names_of(await details(alice.http, "alice/my-env")) == ["base-env"]


async def test_the_index_of_an_environment_has_its_dependencies(small_hub, requiring):
    alice = await small_hub.person("alice")
    await published(alice, requiring("base-env"))
    await published(alice, requiring("my-env", "base-env"))
    page = await small_hub.http.get("/alice/my-env/simple/base-env/", headers=JSON)
    assert page.status_code == 200
    [file] = page.json()["files"]
    address = "/" + file["url"].removeprefix("../../../../")
    assert (await small_hub.http.get(address)).status_code == 200
    assert (await small_hub.http.get("/alice/my-env/simple/numpy/")).status_code == 404
    assert (await small_hub.http.get("/alice/my-env/simple/other-env/")).status_code == 404


@pytest.mark.parametrize("name", ["secret-env", "absent-env"])
async def test_the_index_of_an_owner_stops_who_may_not_read_everything(small_hub, wheel, name):
    alice, bob = await small_hub.person("alice"), await small_hub.person("bob")
    hidden = wheel(name="secret-env", files={"secret_env.py": b""})
    await published(alice, hidden, "PRIVATE")
    assert (await small_hub.http.get(f"/alice/simple/{name}/")).status_code == 401
    assert (await bob.http.get(f"/alice/simple/{name}/")).status_code == 403
    assert (await small_hub.http.get(f"/nobody/simple/{name}/")).status_code == 401
    assert (await alice.http.get("/alice/simple/absent-env/")).status_code == 404
    # Names that no environment can have go on to the next index.
    for well_known in ("numpy", "verifiers", "torch"):
        assert (await small_hub.http.get(f"/alice/simple/{well_known}/")).status_code == 404


# --- names of other owners ------------------------------------------------------------------------


async def test_a_name_of_another_owner_must_be_explained(small_hub, requiring):
    alice, bob = await small_hub.person("alice"), await small_hub.person("bob")
    await published(bob, requiring("helper-env"))
    answer = await publish(alice, requiring("my-env", "helper-env"))
    assert answer.status_code == 400
    assert "bob/helper-env" in answer.text
    assert "[project.urls]" in answer.text
    page = "helper-env, http://hub/dashboard/environments/bob/helper-env"
    await published(alice, requiring("my-env", "helper-env", urls=[page]))
    assert names_of(await details(alice.http, "alice/my-env")) == ["helper-env"]
    elsewhere = "Helper_Env, https://example.org/helper"
    await published(alice, requiring("other-env", "helper-env", urls=[elsewhere]))
    assert names_of(await details(alice.http, "alice/other-env")) == []
    wrong = "helper-env, http://hub/dashboard/environments/carol/helper-env"
    answer = await publish(alice, requiring("third-env", "helper-env", urls=[wrong]))
    assert (answer.status_code, "Correct the address" in answer.text) == (400, True)


async def test_private_names_of_others_change_nothing(small_hub, requiring):
    alice, bob = await small_hub.person("alice"), await small_hub.person("bob")
    await published(bob, requiring("helper-env"), "PRIVATE")
    await published(alice, requiring("my-env", "helper-env"))
    found = await details(alice.http, "alice/my-env")
    assert (names_of(found), found["install_refused"]) == ([], None)


async def test_another_owner_cannot_take_over_a_dependency_later(small_hub, requiring):
    alice, bob = await small_hub.person("alice"), await small_hub.person("bob")
    await published(alice, requiring("my-env", "some-library"))
    await published(bob, requiring("some-library"))
    assert names_of(await details(alice.http, "alice/my-env")) == []


async def test_a_fork_requires_what_its_source_required(small_hub, requiring):
    alice, bob = await small_hub.person("alice"), await small_hub.person("bob")
    await published(alice, requiring("base-env"))
    await published(alice, requiring("my-env", "base-env"))
    answer = await bob.http.post(f"{API}/alice/my-env/fork", json={})
    assert answer.status_code == 200, answer.text
    await published(bob, requiring("base-env"))
    [line] = (await details(bob.http, "bob/my-env"))["install"]["dependencies"]
    assert "/files/alice/base-env/" in line


# --- copies ---------------------------------------------------------------------------------------


def test_a_copy_changes_requirements_and_nothing_else(requiring, tmp_path):
    source = requiring("my-env", "base-env", 'left-env ; extra == "x"')
    source.readme = "# Hello\n\nRequires-Dist: not a header\n"
    path = tmp_path / source.filename
    path.write_bytes(source.bytes())
    address = "http://hub/files/alice/base-env/" + "0" * 64 + "/base_env-1-py3-none-any.whl"
    content = with_requirements(path, [f"base-env @ {address}", f"deep-env @ {address}"])
    copy = tmp_path / "copy" / source.filename
    copy.parent.mkdir()
    copy.write_bytes(content)
    before, after = read_wheel(path), read_wheel(copy)
    assert len(after.requires_dist) == 3
    assert after.description == before.description
    assert (after.name, after.version, after.entry_points) == (
        before.name,
        before.version,
        before.entry_points,
    )
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(io.BytesIO(content)) as new:
        assert old.namelist() == new.namelist()
        for name in old.namelist():
            if not name.endswith(("/METADATA", "/RECORD")):
                assert old.read(name) == new.read(name)
