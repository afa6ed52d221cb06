"""A workaround for builds of runsc that reject a flag of statx(2): a shared object of 4 KiB, written byte by byte.

gVisor before 2023 returns EINVAL for AT_NO_AUTOMOUNT, which `ls` and `stat` of coreutils 9 always pass. The object
defines `statx` as `syscall(SYS_statx, …)` without that flag (sandboxes mount nothing automatically).
/etc/ld.so.preload loads it before the C library.

Requiring a newer runsc would make this module unnecessary. It stays because `apt-get install runsc`, the documented
installation, still gives a build of December 2022 on Debian 12.
"""

from __future__ import annotations

import struct

FIRST_WITHOUT_FAULT = 20240101
"""Builds from this date on do not need the workaround; it does no harm there."""

_CODE = bytes.fromhex(
    "4d89c1"  # mov r9, r8                       buffer
    "4189c8"  # mov r8d, ecx                     mask
    "81e2fff7ffff"  # and edx, ~AT_NO_AUTOMOUNT
    "89d1"  # mov ecx, edx                       flags
    "4889f2"  # mov rdx, rsi                     path
    "89fe"  # mov esi, edi                       directory
    "bf4c010000"  # mov edi, SYS_statx
    "31c0"  # xor eax, eax                       no vector arguments
    "ff25"  # jmp [rip + distance to the entry that the loader fills with the address of `syscall`]
)
_NAMES = b"\0statx\0syscall\0"
_SYMBOL, _RELOCATION, _DYNAMIC_ENTRY = 24, 24, 16
_HASH, _STRINGS, _SYMBOLS, _RELOCATIONS = 4, 5, 6, 7
_RELOCATIONS_SIZE, _RELOCATION_SIZE, _STRINGS_SIZE, _SYMBOL_SIZE = 8, 9, 10, 11
_LOAD, _DYNAMIC, _READ, _WRITE, _EXECUTE = 1, 2, 4, 2, 1
_GLOBAL_FUNCTION, _GLOB_DAT = 0x12, 6
_PAGE = 0x1000


def shared_object() -> bytes:
    """Return the shared object, for x86-64 and any C library with `syscall`."""
    starts: dict[str, int] = {}
    end = 64 + 3 * 56  # after the ELF header and three program headers

    def reserve(name: str, size: int) -> int:
        nonlocal end
        start = (end + 7) & ~7
        starts[name] = start
        end = start + size
        return start

    # One bucket whose chain holds both names.
    hash_table = struct.pack("<6I", 1, 3, 1, 0, 2, 0)
    hash_at = reserve("hash", len(hash_table))
    symbols_at = reserve("symbols", 3 * _SYMBOL)
    names_at = reserve("names", len(_NAMES))
    relocations_at = reserve("relocations", _RELOCATION)
    code_at = reserve("code", len(_CODE) + 4)
    read_only_end = end
    dynamic = [
        (_HASH, hash_at),
        (_STRINGS, names_at),
        (_SYMBOLS, symbols_at),
        (_STRINGS_SIZE, len(_NAMES)),
        (_SYMBOL_SIZE, _SYMBOL),
        (_RELOCATIONS, relocations_at),
        (_RELOCATIONS_SIZE, _RELOCATION),
        (_RELOCATION_SIZE, _RELOCATION),
        (0, 0),
    ]
    dynamic_at, dynamic_size = _PAGE, len(dynamic) * _DYNAMIC_ENTRY
    entry_at = dynamic_at + dynamic_size
    statx = _symbol(_NAMES.index(b"statx"), 1, code_at, len(_CODE) + 4)
    contents = {
        "hash": hash_table,
        "symbols": bytes(_SYMBOL) + statx + _symbol(_NAMES.index(b"syscall"), 0, 0, 0),
        "names": _NAMES,
        "relocations": struct.pack("<QQq", entry_at, 2 << 32 | _GLOB_DAT, 0),
        "code": _CODE + struct.pack("<i", entry_at - (code_at + len(_CODE) + 4)),
    }
    headers = (
        _elf_header()
        + _program_header(_LOAD, _READ | _EXECUTE, 0, read_only_end)
        + _program_header(_LOAD, _READ | _WRITE, dynamic_at, dynamic_size + 8)
        + _program_header(_DYNAMIC, _READ | _WRITE, dynamic_at, dynamic_size)
    )
    image = bytearray(entry_at + 8)
    image[: len(headers)] = headers
    for name, start in starts.items():
        image[start : start + len(contents[name])] = contents[name]
    table = b"".join(struct.pack("<QQ", *entry) for entry in dynamic)
    image[dynamic_at : dynamic_at + dynamic_size] = table
    return bytes(image)


def _symbol(name: int, section: int, value: int, size: int) -> bytes:
    return struct.pack("<IBBHQQ", name, _GLOBAL_FUNCTION, 0, section, value, size)


def _elf_header() -> bytes:
    identification = b"\x7fELF\2\1\1" + bytes(9)  # 64 bits, little-endian, version 1
    shared, x86_64 = 3, 62
    return identification + struct.pack(
        "<HHIQQQIHHHHHH", shared, x86_64, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0
    )


def _program_header(kind: int, flags: int, start: int, size: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, start, start, start, size, size, _PAGE)
