"""The source archive of a project: what goes in, its content hash, and archives that are hostile.

Files that `.gitignore` names are not published. The rules mean what they mean to git.
"""

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from verifiers.errors import ConfigError
from verifiers.hub.errors import HubMisbehaved
from verifiers.hub.source_archive import content_hash, source_files, unpack

CASES = {
    "a name matches at any depth": (
        {".gitignore": "key.pem\n"},
        ["a/key.pem", "a/b/key.pem"],
        ["a/key.pem.md"],
    ),
    "a leading slash anchors": (
        {".gitignore": "/only.py\n/a/only.py\n"},
        ["only.py", "a/only.py"],
        ["b/only.py", "b/a/only.py"],
    ),
    "a slash in the middle anchors too": (
        {".gitignore": "a/*.txt\n"},
        ["a/x.txt"],
        ["b/a/x.txt", "a/c/x.txt"],
    ),
    "a trailing slash means folders": (
        {".gitignore": "data/\n"},
        ["a/data/x", "data/y"],
        ["b/data"],
    ),
    "two stars stand for any number of folders": (
        {".gitignore": "**/secret/*.bin\na/**/z\nlogs/**\n"},
        ["secret/1.bin", "x/secret/1.bin", "a/z", "a/b/c/z", "logs/1/2"],
        ["secret/deep/1.bin", "b/z"],
    ),
    "an exclamation mark takes a file back": (
        {".gitignore": "*.log\n!kept.log\n"},
        ["a/x.log"],
        ["a/kept.log"],
    ),
    "nothing is taken back from an ignored folder": (
        {".gitignore": "private/\n!private/kept.py\n"},
        ["private/kept.py", "private/x.py"],
        [],
    ),
    "the last rule decides": (
        {".gitignore": "!x.txt\n*.txt\n"},
        ["a/x.txt"],
        [],
    ),
    "a nested file adds rules below its folder": (
        {".gitignore": "", "a/.gitignore": "token\n/top\n"},
        ["a/token", "a/b/token", "a/top"],
        ["token.py", "b/token", "a/b/top"],
    ),
    "a nested file comes first": (
        {".gitignore": "*.csv\n", "a/.gitignore": "!*.csv\n", "a/b/.gitignore": "*.csv\n"},
        ["x/1.csv", "a/b/1.csv"],
        ["a/1.csv", "a/c/1.csv"],
    ),
    "spaces at the end do not count unless they are escaped": (
        {".gitignore": "plain.txt   \nspaced\\ \n"},
        ["a/plain.txt", "a/spaced "],
        ["a/spaced"],
    ),
    "comments, escapes and a byte order mark": (
        {".gitignore": "\ufefffirst.txt\n# c.txt\n\\#hash.txt\n\\!bang.txt\n\n"},
        ["a/first.txt", "a/#hash.txt", "a/!bang.txt"],
        ["a/c.txt", "a/ c.txt"],
    ),
    "sets and question marks": (
        {".gitignore": "v[0-9].txt\nk?y\n[!a]nd.md\n"},
        ["a/v1.txt", "a/key", "a/xnd.md"],
        ["a/vx.txt", "a/ky", "a/and.md"],
    ),
    "lines that end as on Windows": (
        {".gitignore": "one.txt\r\ntwo/\r\n"},
        ["a/one.txt", "two/x"],
        [],
    ),
}


def project(folder: Path, rules: dict[str, str], names: list[str]) -> None:
    for name in ("pyproject.toml", "main.py", *names):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    for name, text in rules.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())


@pytest.mark.parametrize("case", CASES)
def test_what_gitignore_names_is_left_out(tmp_path: Path, case: str) -> None:
    rules, ignored, kept = CASES[case]
    project(tmp_path, rules, ignored + kept)
    found = set(source_files(tmp_path))
    assert found & set(ignored) == set()
    assert found >= {name for name in kept if "/" in name}
    assert found >= {"pyproject.toml", "main.py"}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("case", CASES)
def test_git_agrees(tmp_path: Path, case: str) -> None:
    rules, ignored, kept = CASES[case]
    project(tmp_path, rules, ignored + kept)
    # Without the user's own ignore file.
    env = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, env=env)
    listed = subprocess.run(
        ["git", "-C", str(tmp_path), "ls-files", "-z", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
        env=env,
    ).stdout
    by_git = {name for name in listed.split("\0") if name and not name.endswith(".gitignore")}
    assert by_git == {"pyproject.toml", "main.py", *kept}


def test_a_line_that_is_not_a_pattern_is_an_error_and_not_skipped(tmp_path: Path) -> None:
    project(tmp_path, {".gitignore": "a.txt\n!\n"}, [])
    with pytest.raises(ConfigError, match="not a pattern"):
        source_files(tmp_path)


def test_the_content_hash_is_over_names_and_bytes_in_order():
    contents = {"b.py": b"2", "a/z.py": b"1", "a.py": b"0"}
    by_hand = hashlib.sha256(b"file:a.py0file:a/z.py1file:b.py2").hexdigest()
    assert content_hash(contents) == by_hand


def test_a_project_without_a_module_cannot_be_packed(tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    with pytest.raises(ConfigError, match="no Python module"):
        source_files(tmp_path)


# --- unpacking ---------------------------------------------------------------------------------


def member(
    name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = ""
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


@pytest.mark.parametrize(
    "hostile",
    [
        member("../evil.py"),
        member("/etc/evil.py"),
        member("a/../../evil.py"),
        member("link", tarfile.SYMTYPE, link="/etc/passwd"),
        member("link", tarfile.LNKTYPE, link="pyproject.toml"),
        member("pipe", tarfile.FIFOTYPE),
        member("device", tarfile.CHRTYPE),
        member("c:\\evil.py"),
        member("bad\nname.py"),
    ],
    ids=lambda info: repr(info.name),
)
def test_hostile_archives_leave_nothing_behind(tmp_path, hostile):
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(member("pyproject.toml"), io.BytesIO())
        tar.addfile(hostile, io.BytesIO())
    with pytest.raises(HubMisbehaved, match="not unpacked"):
        unpack(archive, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz"]


def test_archives_that_are_too_large_or_cut_short_leave_nothing_behind(tmp_path, monkeypatch):
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(member("zeros", size=3_000_000), io.BytesIO(bytes(3_000_000)))
    monkeypatch.setattr("verifiers.hub.source_archive.MAX_UNPACKED_BYTES", 2_000_000)
    with pytest.raises(HubMisbehaved, match="too large"):
        unpack(archive, tmp_path / "out")
    archive.write_bytes(archive.read_bytes()[:-40])
    monkeypatch.undo()
    with pytest.raises(HubMisbehaved):
        unpack(archive, tmp_path / "out2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz"]
