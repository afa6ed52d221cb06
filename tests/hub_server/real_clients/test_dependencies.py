"""pip, uv and the public `prime` with environments that require others, where an attacker owns the index.

They are told one address and nothing else (`wheel_url`), so the addresses of what is required are inside the wheel.
"""

import os
import sys
from pathlib import Path

import httpx
import pytest

API = "/api/v1/environmentshub"


@pytest.fixture
def evil_index(tmp_path, wheel):
    """An index on which every one of these names is a stranger's, at 99.0."""
    root = tmp_path / "attacker"

    def make(*names):
        for name in names:
            folder = root / name
            folder.mkdir(parents=True)
            module = name.replace("-", "_")
            evil = wheel(name=name, version="99.0", metadata="", files={f"{module}.py": b"EVIL\n"})
            (folder / evil.filename).write_bytes(evil.bytes())
            link = f'<!DOCTYPE html><a href="{evil.filename}">{evil.filename}</a>'
            (folder / "index.html").write_text(link)
        return root.as_uri()

    return make


@pytest.fixture
def chain(stocked_hub, wheel, publish):
    """`top` requires `middle`, which requires `deep`, which is private; their names."""

    def make(suffix):
        deep, middle, top = (f"{name}-{suffix}" for name in ("deep", "middle", "top"))
        for name, needs in ((deep, ""), (middle, f"{deep}>=0.1"), (top, f"{middle}[fast]")):
            module = name.replace("-", "_")
            metadata = f"Requires-Dist: {needs}\n" if needs else ""
            made = wheel(name=name, metadata=metadata, files={f"{module}.py": b"HUB\n"})
            publish(stocked_hub, made, visibility="private" if name == deep else "public")
        return deep, middle, top

    return make


def wheel_url(hub, name, token=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = httpx.get(f"{hub.url}{API}/alice/{name}/@latest", headers=headers)
    return answer.json()["data"]["wheel_url"]


@pytest.mark.parametrize("program", ["uv", "pip"])
def test_one_address_installs_everything_from_the_hub(
    stocked_hub, uv, old_pip, call, tmp_path, chain, evil_index, program
):
    names = chain(f"one-{program}-{os.getpid()}")
    command = [uv, "pip"] if program == "uv" else old_pip
    index = evil_index(*names)
    address = wheel_url(stocked_hub, names[-1], stocked_hub.token)
    call(*command, "install", "--target", "site", "--index-url", index, address)
    for name in names:
        module = name.replace("-", "_")
        assert (tmp_path / "site" / f"{module}.py").read_text() == "HUB\n"
        assert (tmp_path / "site" / f"{module}-0.1.0.dist-info").exists()
    # Without rights to the private one nothing is installed, and nothing of the stranger's.
    refused = call(
        *command,
        "install",
        "--target",
        "other",
        "--index-url",
        index,
        wheel_url(stocked_hub, names[-1]),
        check=False,
    )
    assert refused.returncode != 0
    assert not (tmp_path / "other").exists() or not list((tmp_path / "other").glob("*.py"))


def test_uv_with_the_index_of_the_environment_takes_what_it_requires_from_there(
    stocked_hub, uv, call, tmp_path, chain, evil_index, with_credentials
):
    names = chain(f"extra-{os.getpid()}")
    evil = evil_index(*names)
    base = ["install", "--target", "site", "--index-url", evil, "--extra-index-url"]
    call(uv, "pip", *base, with_credentials(stocked_hub, f"/alice/{names[-1]}/simple/"), names[-1])
    for name in names:
        assert (tmp_path / "site" / f"{name.replace('-', '_')}.py").read_text() == "HUB\n"
    # The owner's index stops a caller without a token at the private name.
    base[2] = "other"
    stopped = call(uv, "pip", *base, f"{stocked_hub.url}/alice/simple/", names[-1], check=False)
    assert stopped.returncode != 0
    assert not list((tmp_path / "other").glob("*.py"))


PUBLIC = {
    "0.5.3": ["prime==0.5.3", "prime-sandboxes==0.2.6", "prime-evals==0.1.6"],
    "0.7.7": ["prime==0.7.7"],
    "0.18.0": ["prime==0.18.0"],
}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", ["uv", "pip"])
@pytest.mark.parametrize("version", PUBLIC)
def test_the_public_prime_installs_required_environments_from_the_hub(
    stocked_hub, installed, uv, call, tmp_path, chain, evil_index, version, program
):
    prime = installed(*PUBLIC[version]) / "prime"
    names = chain(f"{version.replace('.', '-')}-{program}-{os.getpid()}")
    target = tmp_path / "venv"
    call(uv, "venv", "-q", "--seed", "-p", sys.executable, target, **_index_of_this_machine())
    index = evil_index(*names)
    call(
        prime,
        "env",
        "install",
        f"alice/{names[-1]}",
        "--with",
        program,
        PRIME_API_BASE_URL=stocked_hub.url,
        PRIME_API_KEY=stocked_hub.token,
        PRIME_DISABLE_VERSION_CHECK="1",
        VIRTUAL_ENV=str(target),
        PATH=f"{target}/bin:{Path(uv).parent}:{os.environ['PATH']}",
        UV_DEFAULT_INDEX=index,
        UV_INDEX_URL=index,
        PIP_INDEX_URL=index,
    )
    library = f"lib/python3.{sys.version_info.minor}/site-packages"
    for name in names:
        module = f"{name.replace('-', '_')}.py"
        found = [
            root / library / module
            for root in (target, prime.parent.parent)
            if (root / library / module).exists()
        ]
        assert [file.read_text() for file in found] == ["HUB\n"]


def _index_of_this_machine():
    return {k: v for k, v in os.environ.items() if k.startswith(("UV_", "PIP_"))}
