"""An archive from a sandbox writes where it was told to, or nowhere."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verifiers.sandboxes.agent import archive

names = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0\n"), min_size=1, max_size=8
).filter(lambda name: name not in (".", ".."))


def unpack(root: Path, data: bytes, max_bytes: int = 1 << 20) -> None:
    pieces = iter([data[start : start + 7] for start in range(0, len(data), 7)])
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


def test_a_link_already_at_the_target_is_replaced_not_followed(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").symlink_to(victim)
    entry = {"path": "a", "kind": "file", "mode": 0o600, "size": 3}
    unpack(tmp_path / "in", lines(DIR, entry, b"new", END))
    assert victim.read_text() == "untouched"
    assert (tmp_path / "in" / "a").read_text() == "new"
