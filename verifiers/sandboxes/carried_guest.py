"""Sends the guest to machines that offer a Python interpreter and one byte stream, and nothing else of ours.

The command starts an interpreter with a short program, which reads the guest's source from stdin and runs it. No
file is written and nothing is mounted, so a remote machine needs no path in common with this one.
"""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path

from verifiers.sandboxes.spec import SandboxSpec

_FOLDER = Path(__file__).with_name("guest")
_LENGTH = struct.Struct("!I")

_PROGRAM = """
import sys
if sys.version_info < (3, 9):
    sys.exit("the guest needs Python 3.9 or newer, this is " + sys.version)
import importlib, importlib.abc, importlib.util, json, os
def read(count):
    parts = []
    while count:
        data = os.read(0, min(count, 65536))
        if not data:
            sys.exit(0)
        parts.append(data)
        count -= len(data)
    return b"".join(parts)
parcel = json.loads(read(int.from_bytes(read(4), "big")))
class Carried(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in parcel["modules"]:
            return importlib.util.spec_from_loader(name, self, is_package="." not in name)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        code = compile(parcel["modules"][module.__name__], "<" + module.__name__ + ">", "exec")
        exec(code, module.__dict__)
sys.meta_path.insert(0, Carried())
importlib.import_module("sandbox_guest.stdio").main(parcel["settings"])
"""


def command(python: str = "python3") -> list[str]:
    """Return the command to run inside the machine."""
    return [python, "-I", "-B", "-c", _PROGRAM]


def parcel(
    spec: SandboxSpec,
    *,
    workdir: str,
    limit_memory: bool,
    limit_processes: bool,
    owns_kernel: bool = False,
    filter_system_calls: bool = True,
) -> bytes:
    """Return the bytes to write to the command's stdin before the first frame.

    `limit_memory`, `limit_processes`: the guest enforces the limit itself, because nothing around it does.
    `owns_kernel`: the sandbox has its own kernel, so its /proc/meminfo counts the sandbox's memory only.
    `filter_system_calls`: false for whole machines, where root may mount and gain privileges.
    """
    settings = {
        "workdir": workdir,
        "folders": list(spec.folders),
        "env": spec.env,
        "preload": list(spec.preload),
        "memory_bytes": spec.memory_mb << 20,
        "limit_memory": limit_memory,
        "max_processes": spec.max_processes if limit_processes else None,
        "owns_kernel": owns_kernel,
        "keeps_variables": spec.writable_image,
        "filter_system_calls": filter_system_calls,
    }
    content = json.dumps({"modules": _modules(), "settings": settings}).encode()
    return _LENGTH.pack(len(content)) + content


@cache
def _modules() -> dict[str, str]:
    modules = {f"sandbox_guest.{path.stem}": path.read_text() for path in _FOLDER.glob("*.py")}
    modules["sandbox_guest"] = modules.pop("sandbox_guest.__init__")
    return modules
