"""Files that are replaced as a whole, hashed, or written to the last byte."""

import hashlib
import os
import stat
import threading
from pathlib import Path

import pytest

from verifiers.files import (
    PRIVATE,
    remove_leftovers,
    replace_file,
    replacement,
    sha256_of,
    write_all,
)


def test_a_replaced_file_has_the_new_content_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    replace_file(file, "eins")
    replace_file(file, "zwölf".encode(), is_durable=True)
    assert file.read_text(encoding="utf-8") == "zwölf"
    assert list(tmp_path.iterdir()) == [file]


def test_a_failed_replacement_keeps_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    replace_file(file, "old")

    def fail() -> None:
        with replacement(file) as temporary:
            temporary.write_text("half")
            raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        fail()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_private_file_is_never_open_to_others(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("open to all")
    with replacement(file, mode=PRIVATE) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == PRIVATE
        temporary.write_text("secret")
    assert stat.S_IMODE(file.stat().st_mode) == PRIVATE


def test_other_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_two_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "a"
    contents = [letter * 100_000 for letter in "abcd"]
    threads = [
        threading.Thread(target=lambda c=c: [replace_file(file, c) for _ in range(20)])
        for c in contents
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read_text() in contents
    assert list(tmp_path.iterdir()) == [file]


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    for name in ("a.json", ".a.json.tmp", ".a.json.0f0f0f0f.tmp", ".b.json.tmp"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path / "a.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.json.tmp", "a.json"]


def test_a_pipe_receives_all_bytes_and_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4_000
    out, into = os.pipe()
    file = tmp_path / "a"

    def copy() -> None:
        with os.fdopen(out, "rb") as reading:
            file.write_bytes(reading.read())

    reader = threading.Thread(target=copy)
    reader.start()
    write_all(into, memoryview(data))
    os.close(into)
    reader.join()
    assert sha256_of(file) == hashlib.sha256(data).hexdigest()
