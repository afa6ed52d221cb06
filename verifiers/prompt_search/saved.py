"""The folder of a finished prompt search, in the format `verifiers.gepa.v1` of 0.1.14.

    system_prompt.txt       the best prompt, verbatim
    results.jsonl           one line per candidate
    pareto_frontier.jsonl   the best candidates of each validation row, if their scores are known
    metadata.json           the search

This module needs no optional package.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

GEPA_SCHEMA_VERSION = "verifiers.gepa.v1"
GEPA_EVAL_KIND = "gepa"
GEPA_OPTIMIZATION_TARGET = "system_prompt"

Line = dict[str, Any]


def save_gepa_results(run_dir: Path, result: Any, config: Mapping[str, Any] | None = None) -> None:
    """Write the files of a search. `result` is gepa's result, or any object or mapping with some of its fields.

    Without `candidates`, the best candidate is the only one. The files of an earlier search are replaced.
    """
    folder = Path(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    best = _field(result, "best_candidate")
    candidates = _field(result, "candidates")
    if candidates is None:
        candidates = [] if best is None else [best]
    prompts = [_prompt_of(candidate) for candidate in candidates]
    best_index = int(_field(result, "best_idx") or 0)
    if best is not None:
        best_prompt = _prompt_of(best)
    else:
        best_prompt = prompts[best_index] if best_index < len(prompts) else ""
    lines = [_candidate_line(result, prompts, index, best_index) for index in range(len(prompts))]
    (folder / "system_prompt.txt").write_text(best_prompt, encoding="utf-8")
    _write_lines(folder / "results.jsonl", lines)
    frontier = _frontier(lines)
    if frontier:
        _write_lines(folder / "pareto_frontier.jsonl", frontier)
    metadata = _metadata(result, config, lines, best_index, best_prompt)
    text = json.dumps(metadata, indent=2, ensure_ascii=False, default=str)
    (folder / "metadata.json").write_text(text, encoding="utf-8")


def _field(result: Any, name: str) -> Any:
    return result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)


def _prompt_of(candidate: Any) -> str:
    if isinstance(candidate, Mapping):
        return str(candidate.get(GEPA_OPTIMIZATION_TARGET, ""))
    return str(candidate)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _at(values: Any, index: int) -> Any:
    return values[index] if isinstance(values, Sequence) and index < len(values) else None


def _number(value: Any) -> float | None:
    """Return a finite number, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _candidate_line(result: Any, prompts: Sequence[str], index: int, best_index: int) -> Line:
    score = _number(_at(_field(result, "val_aggregate_scores"), index))
    subscores = _subscores(_at(_field(result, "val_subscores"), index))
    parents = _at(_field(result, "parents"), index) or []
    info: Line = {
        "schema_version": GEPA_SCHEMA_VERSION,
        "eval_kind": GEPA_EVAL_KIND,
        "sample_type": "gepa_candidate",
        "optimization_target": GEPA_OPTIMIZATION_TARGET,
        "candidate_idx": index,
        "is_best": index == best_index,
        "system_prompt": prompts[index],
        "system_prompt_sha256": _sha256(prompts[index]),
        "diff_from_initial": _diff(prompts[0], prompts[index]),
        "parent_candidate_idxs": [int(parent) for parent in parents if parent is not None],
        "val_subscores": subscores,
        "num_val_examples": len(subscores),
    }
    calls = _at(_field(result, "discovery_eval_counts"), index)
    if calls is not None:
        info["discovery_metric_calls"] = int(calls)
    return {"example_id": index, "reward": score or 0.0, "score": score, "info": info}


def _subscores(scores: Any) -> dict[str, float | None]:
    """Return the scores by validation row; a list counts as rows 0, 1, …"""
    if not scores:
        return {}
    pairs = scores.items() if isinstance(scores, Mapping) else enumerate(scores)
    return {str(row): _number(score) for row, score in pairs}


def _diff(initial: str, text: str) -> str:
    if initial == text:
        return ""
    lines = difflib.unified_diff(
        initial.splitlines(),
        text.splitlines(),
        "initial/system_prompt.txt",
        "candidate/system_prompt.txt",
        lineterm="",
    )
    return "".join(f"{line}\n" for line in lines)


def _frontier(lines: Sequence[Line]) -> list[Line]:
    """Return one line per validation row: the candidates with the highest score."""
    scored: dict[str, list[Line]] = {}
    for line in lines:
        for row, score in line["info"]["val_subscores"].items():
            if score is not None:
                scored.setdefault(row, []).append(
                    {
                        "candidate_idx": line["example_id"],
                        "system_prompt_sha256": line["info"]["system_prompt_sha256"],
                        "score": score,
                    }
                )
    frontier: list[Line] = []
    for row, candidates in sorted(scored.items(), key=lambda one: _row_order(one[0])):
        best_score = max(candidate["score"] for candidate in candidates)
        best = [candidate for candidate in candidates if candidate["score"] == best_score]
        frontier.append(
            {
                "schema_version": GEPA_SCHEMA_VERSION,
                "valset_row": _row_number(row),
                "best_score": best_score,
                "num_best_candidates": len(best),
                "best_candidates": best,
            }
        )
    return frontier


def _row_number(row: str) -> int | str:
    return int(row) if row.lstrip("-").isdecimal() else row


def _row_order(row: str) -> tuple[bool, int, str]:
    number = _row_number(row)
    return (True, 0, row) if isinstance(number, str) else (False, number, "")


def _metadata(
    result: Any,
    config: Mapping[str, Any] | None,
    lines: Sequence[Line],
    best_index: int,
    best_prompt: str,
) -> Line:
    known = config or {}
    metadata: Line = {
        "schema_version": GEPA_SCHEMA_VERSION,
        "eval_kind": GEPA_EVAL_KIND,
        "framework": "verifiers",
        "optimizer": "gepa",
        "optimization_target": GEPA_OPTIMIZATION_TARGET,
        **{name: known.get(name) for name in ("env_id", "model", "reflection_model")},
        "num_candidates": len(lines),
        "best_idx": best_index,
        "best_score": lines[best_index]["score"] if best_index < len(lines) else None,
        "total_metric_calls": _field(result, "total_metric_calls"),
        "initial_prompt_sha256": lines[0]["info"]["system_prompt_sha256"] if lines else None,
        "best_prompt_sha256": _sha256(best_prompt),
        "system_prompt_path": "system_prompt.txt",
        "results_path": "results.jsonl",
        "completed_at": datetime.now().isoformat(),
    }
    return {**metadata, "config": dict(config)} if config is not None else metadata


def _write_lines(path: Path, lines: Sequence[Line]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
