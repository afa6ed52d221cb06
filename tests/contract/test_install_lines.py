"""Every line that tells people to install something works on a machine that has only a package index.

The public index has another package with the name of this library: the library comes from a folder, a wheel or a hub.
"""

import re
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLACES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "environments/**/*.md",
    "environments/**/*.py",
    "verifiers/**/*.py",
    "verifiers/**/*.template",
    "hub_server/**/*.py",
    "cli/**/*.py",
)
LINE = re.compile(
    r"(?:\buv add|\b(?:uv )?pip3? install|\buvx|\bpipx (?:install|run)|\buv tool (?:install|run))(?P<rest>[^\n`]*)"
)
NAMED = frozenset(
    {"accelerate", "cachetools", "nemo-gym", "openpipe-art", "requests", "setuptools", "skyrl"}
    | {"swebench", "tinker", "tinker-cookbook", "transformers", "trl", "verl", "vllm"}
)
"""Packages of the public index that pages and messages name."""
MY_OWN = {"my-env"}
"""Names that stand for the reader's own."""
WITH_VALUE = {
    "-r",
    "-c",
    "-p",
    "-e",
    "-w",
    "--index-url",
    "--extra-index-url",
    "--python",
    "--target",
}


class Line(NamedTuple):
    where: str
    targets: list[str]
    options: list[str]


def install_lines() -> list[Line]:
    found = []
    for place in PLACES:
        for path in sorted(ROOT.glob(place)):
            for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                for match in LINE.finditer(text):
                    targets, options = _targets(match["rest"])
                    if targets:
                        where = f"{path.relative_to(ROOT)}:{number}"
                        found.append(Line(where, targets, options))
    return found


def _targets(rest: str) -> tuple[list[str], list[str]]:
    """What is installed, and the options, of the rest of a line of prose, code or a terminal."""
    rest = re.split(r"\s#\s|&&|\|\||;|\)(?:\s|$|\.|:)|\s\\$", rest)[0].rstrip(' .,:"')
    if rest.count("'") % 2:
        rest = rest.rstrip("'").rstrip(".") if rest.endswith("'") else rest.partition("'.")[0] + "'"
    try:
        words = shlex.split(rest)
    except ValueError:
        words = rest.split()
    targets, options = [], []
    waiting = iter(words)
    for word in waiting:
        if word.startswith("-"):
            options.append(word)
            if word in WITH_VALUE:
                options.append(next(waiting, ""))
        elif re.match(r"[A-Za-z0-9./'\"{$<\[]", word):
            targets.append(word)
        else:
            break
    return targets, options


def known_names() -> set[str]:
    listed = [*PROJECT["dependencies"]]
    for requirements in PROJECT["optional-dependencies"].values():
        listed += requirements
    names = {canonicalize_name(Requirement(line).name) for line in listed}
    return (names | NAMED | MY_OWN) - {"verifiers"}


def problem_of(target: str, options: list[str]) -> str | None:
    """What is wrong with one thing to install; None when it works."""
    if "{" in target or "$" in target or target.isupper():
        return None  # filled in by the program, or by the reader
    path, _, _ = target.partition("[")
    if path.endswith(".whl") and " @ " not in target:
        name, version, _, _ = parse_wheel_filename(path.rpartition("/")[2])
        is_ours = (name, str(version)) == ("verifiers", PROJECT["version"])
        return None if is_ours and "/" in path else "not the path of this library's wheel"
    if path in (".", "..") or path.startswith(("./", "/", "git+https://", "https://")):
        return None
    try:
        requirement = Requirement(target)
    except InvalidRequirement:
        return "not something to install"
    if requirement.url:
        return None
    name = canonicalize_name(requirement.name)
    if name == "verifiers":
        return "the public index has another package of this name; give a folder, a wheel or a hub's address"
    if name in MY_OWN and not any("index-url" in option for option in options):
        return "an environment comes from its hub"
    return None if name in known_names() else f"{name} is not known to be on the public index"


def test_every_line_installs_what_it_says() -> None:
    lines = install_lines()
    assert len(lines) > 25, "the search finds no lines"
    wrong = [
        f"{line.where}: {target!r}: {problem}"
        for line in lines
        for target in line.targets
        if (problem := problem_of(target, line.options))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "rest",
    [
        " 'verifiers[mcp]'.\"",
        " verifiers trl",
        " verifiers>=1.0",
        " -U verifiers",
        " verifiers-1.0.0-py3-none-any.whl",
        " './verifiers-0.9.0-py3-none-any.whl[hub]'",
        " no-such-package-anywhere",
    ],
)
def test_lines_that_do_not_work_are_noticed(rest: str) -> None:
    targets, options = _targets(rest)
    assert any(problem_of(target, options) for target in targets), targets


def test_the_packages_of_messages_are_those_of_the_extras() -> None:
    """A message that names packages instead of an extra asks for the versions that the extra asks for."""
    extras = {
        canonicalize_name(Requirement(line).name): Requirement(line).specifier
        for requirements in PROJECT["optional-dependencies"].values()
        for line in requirements
    }
    for line in install_lines():
        for target in line.targets:
            if not line.where.startswith("verifiers/") or problem_of(target, line.options):
                continue
            try:
                requirement = Requirement(target)
            except InvalidRequirement:
                continue
            name = canonicalize_name(requirement.name)
            if name in extras and requirement.specifier:
                assert requirement.specifier == extras[name], f"{line.where}: {target}"
