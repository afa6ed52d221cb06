"""An archive from a sandbox writes where it was told to, or nowhere."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verifiers.sandboxes.guest import archive

names = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0\n"), min_size=1, max_size=8
).filter(lambda name: name not in (".", ".."))


def unpack(root: Path, data: bytes, max_bytes: int = 1 << 20) -> None:
    step = 7 if len(data) < 10_000 else 65_521
    pieces = iter([data[start : start + step] for start in range(0, len(data), step)])
    archive.unpack(str(root), lambda: next(pieces, b""), max_bytes=max_bytes)


def lines(*entries: dict[str, object] | bytes) -> bytes:
    return b"".join(e if isinstance(e, bytes) else json.dumps(e).encode() + b"\n" for e in entries)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
@given(files=st.dictionaries(names, st.binary(max_size=100), max_size=6))
def test_what_is_packed_comes_out_the_same(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
):
    folder = tmp_path_factory.mktemp("archive")
    source = folder / "source"
    (source / "sub").mkdir(parents=True)
    kept = {}
    for name, content in files.items():
        if len(name.encode()) < 250:
            (source / "sub" / name).write_bytes(content)
            kept[name] = content
    unpack(folder / "copy", b"".join(archive.pack(str(source))))
    copied = {path.name: path.read_bytes() for path in (folder / "copy" / "sub").iterdir()}
    assert copied == {path.name: path.read_bytes() for path in (source / "sub").iterdir()}


END = {"end": True}
DIR = {"path": "", "kind": "dir", "mode": 0o755}
HOSTILE = {
    "dots": [DIR, {"path": "../x", "kind": "file", "mode": 0, "size": 0}, END],
    "absolute": [DIR, {"path": "/x", "kind": "file", "mode": 0, "size": 0}, END],
    "parent_not_listed": [DIR, {"path": "a/x", "kind": "file", "mode": 0, "size": 0}, END],
    "parent_is_a_link": [
        DIR,
        {"path": "a", "kind": "link", "mode": 0, "target": "."},
        {"path": "a/x", "kind": "file", "mode": 0, "size": 0},
        END,
    ],
    "second_root": [DIR, DIR, END],
    "zero_byte": [DIR, {"path": "a\0b", "kind": "file", "mode": 0, "size": 0}, END],
    "empty_part": [DIR, {"path": "a//b", "kind": "dir", "mode": 0}, END],
    "unknown_kind": [DIR, {"path": "a", "kind": "device", "mode": 0}, END],
    "mode_of_a_wrong_type": [DIR, {"path": "a", "kind": "dir", "mode": "x"}, END],
    "no_json": [b"hello\n"],
    "json_of_a_wrong_type": [b"[]\n"],
    "deep_json": [b"[" * 10_000 + b"\n"],
    "no_end": [DIR],
    "something_after_the_end": [DIR, END, b"x"],
    "endless_header": [b"x" * 100_000],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused(tmp_path: Path, name: str):
    with pytest.raises(archive.BadArchive):
        unpack(tmp_path / "in", lines(*HOSTILE[name]))
    assert [path.name for path in tmp_path.iterdir()] in ([], ["in"])


def test_sizes_and_counts_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    big = {"path": "a", "kind": "file", "mode": 0o600, "size": 1 << 40}
    with pytest.raises(archive.ArchiveTooLarge):
        unpack(tmp_path / "in", lines(DIR, big))
    monkeypatch.setattr(archive, "MAX_ENTRIES", 10)
    many = [{"path": f"d{n}", "kind": "dir", "mode": 0o755} for n in range(20)]
    with pytest.raises(archive.ArchiveTooLarge):
        unpack(tmp_path / "in", lines(DIR, *many, END))


def test_a_link_that_leaves_the_tree_is_left_out_and_one_that_stays_is_made_last(tmp_path: Path):
    entries = [
        DIR,
        {"path": "out", "kind": "link", "mode": 0, "target": "../../etc"},
        {"path": "absolute", "kind": "link", "mode": 0, "target": "/etc"},
        {"path": "d", "kind": "dir", "mode": 0o755},
        {"path": "d/up", "kind": "link", "mode": 0, "target": "../d"},
        END,
    ]
    unpack(tmp_path / "in", lines(*entries))
    assert sorted(path.name for path in (tmp_path / "in").rglob("*")) == ["d", "up"]
    assert os.readlink(tmp_path / "in" / "d" / "up") == "../d"


@pytest.mark.parametrize(
    "target",
    [
        "up/../host-secret",
        "up/../../x",
        "deep/../up/../host-secret",
        "./up/..",
        "UP/../host-secret",
    ],
)
def test_a_link_cannot_leave_the_tree_through_another_link(tmp_path: Path, target: str):
    (tmp_path / "host-secret").write_text("secret")
    entries = [
        DIR,
        {"path": "a", "kind": "dir", "mode": 0o755},
        {"path": "a/up", "kind": "link", "mode": 0, "target": ".."},
        {"path": "a/leak", "kind": "link", "mode": 0, "target": target},
        {"path": "a/good", "kind": "link", "mode": 0, "target": "up/file"},
        {"path": "file", "kind": "file", "mode": 0o600, "size": 0},
        END,
    ]
    unpack(tmp_path / "in", lines(*entries))
    made = sorted(path.name for path in (tmp_path / "in" / "a").iterdir())
    assert made == ["good", "up"]
    for path in (tmp_path / "in").rglob("*"):
        assert path.resolve().is_relative_to(tmp_path / "in")


@pytest.mark.parametrize("kind", ["file", "link"])
def test_an_entry_cannot_take_the_place_of_a_directory(tmp_path: Path, kind: str):
    again = {"path": "a", "kind": kind, "mode": 0, "size": 0, "target": "b"}
    with pytest.raises(archive.BadArchive):
        unpack(tmp_path / "in", lines(DIR, {"path": "a", "kind": "dir", "mode": 0o755}, again, END))


PIECES = {"path": "a", "kind": "file", "mode": 0o600, "size": 1 << 30, "sparse": True}


def test_the_zeros_of_a_large_file_neither_travel_nor_take_room(tmp_path: Path):
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.write(b"first")
        file.seek(700 << 20)
        file.write(b"middle" + bytes(3 << 20))
        file.truncate(1 << 30)
    packed = b"".join(archive.pack(str(source)))
    assert len(packed) < 1 << 20
    copy = tmp_path / "copy"
    unpack(copy, packed, max_bytes=1 << 30)
    status = copy.stat()
    assert (status.st_size, status.st_blocks * 512 < 4 << 20) == (1 << 30, True)
    with copy.open("rb") as file:
        assert file.read(6) == b"first\0"
        file.seek((700 << 20) - 1)
        assert file.read(8) == b"\0middle\0"
    with pytest.raises(archive.ArchiveTooLarge):
        unpack(tmp_path / "more", packed, max_bytes=(1 << 30) - 1)


@pytest.mark.parametrize(
    "pieces",
    [
        [{"at": 5, "n": 2}, b"xx", {"at": 6, "n": 1}, b"x"],
        [{"at": 1 << 30, "n": 1}, b"x"],
        [{"at": -1, "n": 1}, b"x"],
        [{"at": 0, "n": 1.5}],
        [{"at": 0}],
        [b"hello\n"],
        [b"[" * 10_000 + b"\n"],
        [END],
    ],
)
def test_hostile_pieces_are_refused(tmp_path: Path, pieces: list[dict[str, object] | bytes]):
    with pytest.raises(archive.BadArchive):
        unpack(tmp_path / "in", lines(DIR, PIECES, *pieces), max_bytes=1 << 40)


def test_directories_nested_thousands_deep_are_packed_as_far_as_paths_reach(tmp_path: Path):
    home = os.open(".", os.O_RDONLY)
    try:
        os.mkdir(tmp_path / "tree")
        os.chdir(tmp_path / "tree")
        for _ in range(2000):
            os.mkdir("d")
            os.chdir("d")
        packed = b"".join(archive.pack(str(tmp_path / "tree")))
    finally:
        os.fchdir(home)
        os.close(home)
    unpack(tmp_path / "copy", packed)
    subprocess.run(["rm", "-rf", "tree", "copy"], cwd=tmp_path, check=True)
    assert packed.count(b'"kind":"dir"') == 1 + (archive.MAX_PATH_BYTES + 1) // 2


def test_an_exact_copy_keeps_times_and_links_wherever_they_lead(tmp_path: Path):
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d" / "file").write_text("x")
    (source / "out").symlink_to("/usr/bin/python3")
    for path in (source / "d" / "file", source / "d"):
        os.utime(path, ns=(10**18, 10**18))
    pieces = iter([b"".join(archive.pack(str(source), exact=True))])
    copy = tmp_path / "copy"
    archive.unpack(str(copy), lambda: next(pieces, b""), max_bytes=1 << 20, exact=True)
    assert os.readlink(copy / "out") == "/usr/bin/python3"
    assert {path.stat().st_mtime_ns for path in (copy / "d", copy / "d" / "file")} == {10**18}


def test_a_link_already_at_the_target_is_replaced_not_followed(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").symlink_to(victim)
    entry = {"path": "a", "kind": "file", "mode": 0o600, "size": 3}
    unpack(tmp_path / "in", lines(DIR, entry, b"new", END))
    assert victim.read_text() == "untouched"
    assert (tmp_path / "in" / "a").read_text() == "new"
