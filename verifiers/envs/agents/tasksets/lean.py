"""`LeanTaskSet`: theorems of Lean 4. The agent replaces `sorry` in a file by a proof, and the compiler checks it.

The file has imports, the header, and the statement of the theorem between two marks. A proof counts only if the text
between the marks is unchanged, and if nothing but theorems and lemmas was added above it: an axiom, an instance or a
notation would change what the statement means.

Source of the compiler's command: https://leanprover-community.github.io
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from verifiers.envs.agents.task_sets import SandboxSpec, SandboxTaskSet
from verifiers.envs.agents.tasksets.common import (
    TaskRubric,
    load_rows,
    read_text,
    rows_from,
    write_text,
)
from verifiers.envs.sandbox_client import timeout_errors
from verifiers.errors import ConfigError

LEAN_GUARD_BEGIN_MARKER = "-- lean-guard: begin protected"
LEAN_GUARD_END_MARKER = "-- lean-guard: end protected"
LEAN_SYSTEM_PROMPT = f"""\
You prove theorems in Lean 4 with Mathlib.

- The proof file has the statement of a theorem, which ends in `:= by`, and `sorry` in place of its proof. Replace it.
- Edit the file, then compile it with the command of the task. Compile after every edit, and read the errors.
- You are done only when the file compiles without errors and without `sorry` or `admit`.
- The lines from `{LEAN_GUARD_BEGIN_MARKER}` to `{LEAN_GUARD_END_MARKER}` are protected. If you change them, the proof
  does not count. You may add theorems and lemmas above them, and nothing else.
- Work in small steps: state intermediate results with `have`, and try `simp`, `omega`, `norm_num`, `linarith` and
  `exact?` on the parts.
"""
_DEFAULT_IMPORTS = "import Mathlib"
_SORRY = re.compile(r"declaration uses ['`‘]?sorry")
_DECLARATION = re.compile(
    r"^(?:@\[[^\]]*\]\s*)?(?:(?:private|protected|noncomputable|nonrec)\s+)*(?:theorem|lemma|example)\b",
    re.MULTILINE,
)
_UNPROVED = re.compile(r"(?:\s*:=)?(?:\s*\bby\b)?(?:\s*\bsorry\b)?\s*\Z")
_COMMENT = re.compile(r"/-.*?-/|--[^\n]*", re.DOTALL)
_CHANGES_MEANING = re.compile(
    r"\b(?:abbrev|attribute|axiom|class|def|elab\w*|export|implemented_by|import|inductive|infix[lr]?|instance|macro\w*"
    r"|namespace|notation\w*|opaque|open|postfix|prefix|section|set_option|structure|syntax|universe|unsafe|variable)\b"
)
"""Commands of Lean after which the same statement may mean something else."""
_MATHLIB_IMPORT = re.compile(r"^import Mathlib\..*\n?", re.MULTILINE)


class LeanPreset(NamedTuple):
    """A dataset of theorems, and its columns."""

    dataset_name: str
    split: str = "train"
    name_key: str | None = "name"
    header_key: str | None = None
    is_old_mathlib: bool = False
    """Whether imports of single Mathlib modules, which have moved since, become `import Mathlib`."""


PRESETS = {
    "goedel-pset": LeanPreset("Goedel-LM/Goedel-Pset-v1", name_key=None),
    "numina-lean": LeanPreset("AI-MO/NuminaMath-LEAN", name_key="uuid"),
    "deepseek-prover-v1": LeanPreset("deepseek-ai/DeepSeek-Prover-V1", header_key="header"),
    "kimina": LeanPreset("AI-MO/Kimina-Prover-Promptset"),
    "minif2f": LeanPreset(
        "cat-searcher/minif2f-lean4", "test", "id", header_key="header", is_old_mathlib=True
    ),
    "deepseek-proverbench": LeanPreset("deepseek-ai/DeepSeek-ProverBench", header_key="header"),
}


class LeanTaskSet(SandboxTaskSet):
    """Theorems in an image with Lean and Mathlib, scored by the compiler.

    `preset` names a dataset and its columns; `dataset_name` and `dataset_split` replace the dataset, which may be a
    folder of this machine. It is loaded on first use. `compile_timeout` limits one compilation, in seconds. The sandbox
    needs `docker_image`, so choose a back end with images, such as "prime" or "docker" (`VF_SANDBOX_BACKEND`).
    """

    default_workdir = "/workspace/mathlib4"

    def __init__(
        self,
        preset: str = "deepseek-prover-v1",
        dataset_name: str | None = None,
        dataset_split: str | None = None,
        filter_fn: str | None = None,
        docker_image: str = "cmkkc4gtv000mapvd5jegz3yz/lean-tactic:mathlib-v4.27.0-v3",
        lean_project_path: str = "/workspace/mathlib4",
        proof_file_path: str = "/tmp/proof.lean",
        compile_timeout: int = 120,
        ds_num_proc: int | None = 8,
        ds_keep_in_memory: bool = True,
    ) -> None:
        if preset not in PRESETS:
            raise ConfigError(f"Unknown preset {preset!r}. Choose one of {', '.join(PRESETS)}.")
        chosen = PRESETS[preset]
        self.docker_image = docker_image
        self.lean_project_path = lean_project_path
        self.proof_file_path = proof_file_path
        self.compile_timeout = compile_timeout

        def load() -> list[dict[str, Any]]:
            rows = load_rows(
                dataset_name or chosen.dataset_name,
                None,
                dataset_split or chosen.split,
                ds_num_proc,
                ds_keep_in_memory,
            )
            return rows_from(rows, lambda row: _row(row, chosen), ("formal_statement",))

        super().__init__(load, name=f"lean/{preset}", filter_fn=filter_fn)

    @property
    def compile_command(self) -> str:
        """The shell command that compiles the proof file."""
        project, proof = shlex.quote(self.lean_project_path), shlex.quote(self.proof_file_path)
        return f"cd {project} && lake env lean {proof}"

    def get_instruction(self, info: dict[str, Any]) -> str:
        """Return the theorem, the path of its file and the command that compiles it."""
        parts = [
            f"Prove the following Lean 4 theorem. The proof file is at `{self.proof_file_path}`.",
            f"```lean\n{info['formal_statement']}\n```",
        ]
        if info.get("header"):
            parts.append(
                f"The file begins with these imports and settings:\n```lean\n{info['header']}\n```"
            )
        parts.append(f"Compile with your shell tool using:\n`{self.compile_command}`")
        return "\n\n".join(parts)

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        """Return a sandbox with Lean and Mathlib."""
        return SandboxSpec(self.docker_image)

    def get_workdir(self, info: dict[str, Any]) -> str:
        """Return the directory of the Lean project."""
        return self.lean_project_path

    def get_rubric(self) -> LeanRubric:
        """Return the rubric that compiles the proof."""
        return LeanRubric(self)

    async def setup(self, state: Any) -> None:
        """Write the proof file with `sorry`."""
        await write_text(
            state["sandbox_client"],
            state["sandbox_id"],
            self.proof_file_path,
            proof_file(state["info"]),
        )

    async def compile(self, state: Any) -> bool:
        """Return whether the proof file compiles without `sorry`. Store `lean_compiled` and `compile_output`."""
        try:
            done = await state["sandbox_client"].execute_command(
                state["sandbox_id"], f"{self.compile_command} 2>&1", timeout=self.compile_timeout
            )
            output, is_compiled = done.stdout or "", done.exit_code == 0
        except timeout_errors() as error:
            output, is_compiled = str(error), False
        state["compile_output"] = state["test_output"] = output
        state["lean_compiled"] = is_compiled
        return is_compiled and not _SORRY.search(output)

    async def validate_instance(self, state: Any) -> bool:
        """Return whether the statement compiles with `sorry`."""
        await self.compile(state)
        return bool(state["lean_compiled"])


class LeanRubric(TaskRubric):
    """Reward `solved`: 1.0 if the statement is unchanged and its proof compiles without `sorry`."""

    async def verdict(self, state: Any, info: dict[str, Any]) -> float:
        """Return 1.0 for a complete proof."""
        path = self.taskset.proof_file_path
        text = await read_text(state["sandbox_client"], state["sandbox_id"], path)
        if is_tampered(text or "", proof_file(info)):
            state["lean_tampered"], state["lean_compiled"] = True, False
            return 0.0
        return float(await self.taskset.compile(state))


def _row(row: Mapping[str, Any], preset: LeanPreset) -> dict[str, Any]:
    info = {
        "formal_statement": row["formal_statement"],
        "header": (row.get(preset.header_key) or "") if preset.header_key else "",
        "imports": _DEFAULT_IMPORTS,
        "_normalize_mathlib_imports": preset.is_old_mathlib,
    }
    if preset.name_key and row.get(preset.name_key) is not None:
        info["name"] = row[preset.name_key]
    return {"info": info, "answer": ""}


def proof_file(info: Mapping[str, Any]) -> str:
    """Return the text of the proof file of a task. The header is left out if the statement has its own imports."""
    statement = info["formal_statement"].strip()
    found = list(_DECLARATION.finditer(statement))
    start = found[-1].start() if found else 0
    before = statement[:start].strip()
    signature = f"{statement[start:][: _UNPROVED.search(statement[start:]).start()]} := by"  # type: ignore[union-attr]  # matches ""
    if not re.search(r"^import\b", before, re.MULTILINE):
        before = f"{info.get('header') or ''}\n\n{before}".strip()
        if not re.search(r"^import\b", before, re.MULTILINE):
            before = f"{info.get('imports') or _DEFAULT_IMPORTS}\n\n{before}".strip()
    if info.get("_normalize_mathlib_imports"):
        others = _MATHLIB_IMPORT.sub("", before).replace(f"{_DEFAULT_IMPORTS}\n", "")
        before = f"{_DEFAULT_IMPORTS}\n{others}".strip()
    return f"{before}\n\n{LEAN_GUARD_BEGIN_MARKER}\n{signature}\n{LEAN_GUARD_END_MARKER}\n  sorry\n"


def protected(text: str) -> str | None:
    """Return the text between the marks, or None unless each mark stands there exactly once and in order."""
    before, begin, rest = text.partition(LEAN_GUARD_BEGIN_MARKER)
    inside, end, after = rest.partition(LEAN_GUARD_END_MARKER)
    marks = (LEAN_GUARD_BEGIN_MARKER, LEAN_GUARD_END_MARKER)
    if not (begin and end) or any(
        mark in part for mark in marks for part in (before, inside, after)
    ):
        return None
    return inside.strip()


def is_tampered(text: str, original: str) -> bool:
    """Return whether a proof file states something else than the original one."""
    if protected(text) != protected(original):
        return True
    own, now = (
        each.partition(LEAN_GUARD_BEGIN_MARKER)[0].splitlines() for each in (original, text)
    )
    added = "\n".join(line for line in now if line not in own)
    return not set(own) <= set(now) or bool(_CHANGES_MEANING.search(_COMMENT.sub(" ", added)))


__all__ = [
    "LEAN_GUARD_BEGIN_MARKER",
    "LEAN_GUARD_END_MARKER",
    "LEAN_SYSTEM_PROMPT",
    "LeanRubric",
    "LeanTaskSet",
]
