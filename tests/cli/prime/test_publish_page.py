"""Every command of docs/publish.md is run, in its order, and prints what the page says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "publish.md"
ENTRIES = {
    "prime": "vf_cli.prime.main:main",
    "vf-eval": "vf_cli.main:eval_main",
    "vf-install": "vf_cli.main:install_main",
}


def steps() -> list[tuple[str, list[str]]]:
    """Each command with the lines of output that the page shows."""
    found: list[tuple[str, list[str]]] = []
    text = re.sub(r"```text no-run\n.*?```", "", PAGE.read_text(), flags=re.DOTALL)
    for block in re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def test_the_page_says_what_happens(hub, endpoint, target, prime, monkeypatch):
    programs = Path("bin")
    programs.mkdir()
    for name, entry in ENTRIES.items():
        module, _, function = entry.partition(":")
        code = f"import sys; from {module} import {function}; sys.exit({function}())"
        (programs / name).write_text(f'#!/bin/sh\nexec {target.python} -c "{code}" "$@"\n')
        (programs / name).chmod(0o755)
    # The package itself is importable there; installers must see it as installed too.
    known = target.site / "verifiers-1.0.0.dist-info"
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: verifiers\nVersion: 1.0.0\n")
    (known / "RECORD").write_text("")
    variables = {
        **os.environ,
        "PATH": f"{programs.resolve()}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KEY": hub.token,
        "VIRTUAL_ENV": str(Path(target.python).parents[1]),
        "UV_NO_INDEX": "1",
        "COLUMNS": "200",
    }
    places = {"http://127.0.0.1:8000": hub.url, "http://127.0.0.1:8001/v1": endpoint.url}
    for command, shown in steps():
        for there, here in places.items():
            command = command.replace(there, here)
        words = shlex.split(command)
        if words[0] == "prime" and not set("|>$") & set(command):
            with monkeypatch.context() as patch:  # no shell is asked for, so no process is either
                for name in ("PATH", "VIRTUAL_ENV", "UV_NO_INDEX", "COLUMNS"):
                    patch.setenv(name, variables[name])
                done = prime(*words[1:])
            code, text = done.code, done.out + done.err
        else:
            shell = subprocess.run(
                ["bash", "-c", command], env=variables, capture_output=True, text=True, timeout=60
            )
            code, text = shell.returncode, shell.stdout + shell.stderr
        assert code == 0, f"$ {command}\n{text}"
        printed = [" ".join(line.split()) for line in text.splitlines()]
        for line in shown:
            for there, here in places.items():
                line = line.replace(there, here)
            pattern = ".*".join(re.escape(part) for part in " ".join(line.split()).split("…"))
            assert any(re.fullmatch(pattern, one) for one in printed), (
                f"$ {command}\nthe page shows {line!r}, printed was\n{text}"
            )
    assert len(steps()) >= 18
