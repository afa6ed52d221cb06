"""A new environment project from a template: code, test, README and pyproject.toml that work at once."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from importlib import resources
from pathlib import Path
from string import Template
from typing import NamedTuple

from verifiers.errors import ConfigError

DEFAULT_TEMPLATE = "single-turn"
DEFAULT_PATH = "./environments"


class TemplateText(NamedTuple):
    """Texts of a template for the README and pyproject.toml."""

    description: str
    kind: str
    keywords: tuple[str, ...]
    reward: str
    what_it_sees: str
    how_scored: str


TEMPLATES: dict[str, TemplateText] = {
    "single-turn": TemplateText(
        "Adding two numbers: one question, one answer.",
        "single turn (`vf.SingleTurnEnv`)",
        ("single-turn", "math"),
        "1.0 for the right sum, else 0.0",
        "A system prompt that asks for the result in `\\boxed{}`, and a question such as `What is 31 + 12?`.",
        "`is_right` compares the boxed number with the sum. The metric `is_boxed` has no weight.",
    ),
    "multi-turn": TemplateText(
        "Guessing a number with hints: several turns, ended by a stop condition.",
        "multi turn (`vf.MultiTurnEnv`)",
        ("multi-turn", "game"),
        "1.0 when the number is found, else 0.0",
        "The rules, then `higher` or `lower` after every guess.",
        "`found` checks whether the last guess is the number.",
    ),
    "tool": TemplateText(
        "Adding up prices that only a tool can look up.",
        "tool use (`vf.ToolEnv`)",
        ("tool-use",),
        "1.0 for the right total, else 0.0",
        "A question such as `What do 3 apples and 2 pears cost?` and the tool `price_of(fruit)`.",
        "`is_right` compares the last message with the total.",
    ),
    "judge": TemplateText(
        "One-sentence explanations, graded by a second model.",
        "single turn with a judge (`vf.JudgeRubric`)",
        ("single-turn", "judge"),
        "1.0 when the judge says yes, else 0.0",
        "A request such as `Explain in one sentence why ice floats.`",
        "`judged_right` asks the judge model whether the reply contains the expected facts.",
    ),
    "group": TemplateText(
        "Sums and differences: two environments in one.",
        "a group (`vf.EnvGroup`)",
        ("group", "math"),
        "1.0 for the right number, else 0.0",
        "A question such as `What is 31 - 12? Reply with the number.`",
        "Each environment of the group scores its own rows; here both compare the reply with the number.",
    ),
}


class Scaffold(NamedTuple):
    """A project and the files that were written or kept."""

    folder: Path
    written: list[Path]
    kept: list[Path]
    """Existing files that were not changed."""


def checked_name(name: str, *, target: Path | None = None) -> str:
    """Return the environment id for a name (`my_env` → `my-env`). Raises ConfigError if it is not a valid package
    name.

    Names of installed modules and of the standard library are refused too, unless the module is in `target`.
    """
    env_id = name.strip().replace("_", "-")
    module = env_id.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", env_id):
        proposal = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-").lstrip("0123456789-")
        hint = f" For example: {proposal}" if proposal else ""
        raise ConfigError(
            f"{name!r} is not a valid environment name: use lower-case letters, digits and single hyphens, "
            f"and begin with a letter.{hint}"
        )
    if keyword.iskeyword(module) or keyword.issoftkeyword(module):
        raise ConfigError(f"{module!r} is a keyword of Python; choose another name.")
    if module in sys.stdlib_module_names or module == "verifiers":
        raise ConfigError(
            f"{module!r} would hide the module of that name; choose another name, e.g. {env_id}-env."
        )
    spec = importlib.util.find_spec(module)
    if (
        spec is not None
        and spec.origin
        and (target is None or not Path(spec.origin).is_relative_to(target.resolve()))
    ):
        raise ConfigError(
            f"A module {module!r} is already installed ({spec.origin}); choose another name, e.g. {env_id}-2."
        )
    return env_id


def create_environment(
    name: str,
    path: str | Path = DEFAULT_PATH,
    *,
    template: str = DEFAULT_TEMPLATE,
    multi_file: bool = False,
    rewrite_readme: bool = False,
    force: bool = False,
) -> Scaffold:
    """Write `path/<name>/` from a template.

    Existing files are kept, except with `force` (all) or `rewrite_readme` (the README). `multi_file` makes the module
    a package, `<name>/<name>/`. Raises ConfigError for a bad name or an unknown template.
    """
    if template not in TEMPLATES:
        raise ConfigError(f"There is no template {template!r}; there are {', '.join(TEMPLATES)}.")
    module = name.strip().replace("-", "_")
    folder = Path(path) / module
    env_id = checked_name(name, target=folder)
    single, package = folder / f"{module}.py", folder / module
    existing = package if not multi_file else single
    if existing.exists():
        raise ConfigError(
            f"{folder} already has {existing.name}{'/' if existing.is_dir() else ''}, the other layout; one project "
            "can have only one of them. Remove it first, or run again "
            + ("with --multi-file." if not multi_file else "without --multi-file.")
        )
    contents = _contents(env_id, module, template, multi_file)
    scaffold = Scaffold(folder, [], [])
    for relative, text in contents.items():
        file = folder / relative
        if file.exists() and not force and not (rewrite_readme and relative == "README.md"):
            scaffold.kept.append(file)
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        scaffold.written.append(file)
    return scaffold


def init_environment(
    env: str,
    path: str = DEFAULT_PATH,
    rewrite_readme: bool = False,
    multi_file: bool = False,
    openenv: bool = False,
) -> Path:
    """Create an environment with the default template and return its folder: v0's name for `create_environment`."""
    if openenv:
        raise ConfigError("OpenEnv projects (--openenv) are not supported; leave the option out.")
    return create_environment(
        env, path, rewrite_readme=rewrite_readme, multi_file=multi_file
    ).folder


def _contents(env_id: str, module: str, template: str, multi_file: bool) -> dict[str, str]:
    """Return path inside the project → text."""
    text = TEMPLATES[template]
    included = f'packages = ["{module}"]' if multi_file else f'include = ["{module}.py"]'
    values = {
        "env_id": env_id,
        "module": module,
        "included": included,
        "arguments": "`num_examples`, `judge_model`, `judge_client`"
        if template == "judge"
        else "`num_examples` (default 100), `seed` (default 0)",
        **text._asdict(),
        "keywords": ", ".join(f'"{word}"' for word in text.keywords),
    }
    kind = template.replace("-", "_")
    code = _filled(f"{kind}/environment.py.template", values)
    contents = {
        "pyproject.toml": _filled("pyproject.toml.template", values),
        "README.md": _filled("README.md.template", values),
        f"test_{module}.py": _filled(f"{kind}/test.py.template", values),
    }
    if not multi_file:
        return {f"{module}.py": code, **contents}
    exported = (
        ["gold_completion", "load_environment"]
        if "def gold_completion" in code
        else ["load_environment"]
    )
    if template == "tool":
        exported.append("price_of")
    listed = ", ".join(f'"{name}"' for name in exported)
    init = f'"""{text.description}"""\n\nfrom .{module} import {", ".join(exported)}\n\n__all__ = [{listed}]\n'
    return {f"{module}/__init__.py": init, f"{module}/{module}.py": code, **contents}


def _filled(name: str, values: dict[str, str]) -> str:
    source = resources.files("verifiers.packages").joinpath("templates", *name.split("/"))
    return Template(source.read_text(encoding="utf-8")).substitute(values)
