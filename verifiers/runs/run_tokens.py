"""The token file of a run: written while the run goes on, read back rollout by rollout.

    tokens.arrow · tokens.index      beside results.jsonl, only when the endpoint gave token ids

The tokens of a rollout are on the disk before its line in `results.jsonl`, so every rollout that is there has them.
What a crash leaves in the token file alone is superseded when its rollout is run again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from verifiers.runs.store import iterate_outputs, load_metadata
from verifiers.tokens import TokensInvalid, stored_steps
from verifiers.tokens.token_file import TOKENS_FILE, TokenFile
from verifiers.types import RolloutOutput

logger = logging.getLogger(__name__)


def token_key(output: Mapping[str, Any]) -> str:
    """The key of a rollout in the token file of its run."""
    return f"{output['example_id']}-{output.get('rollout_index', 0)}"


class RunTokens:
    """Writes the token file of a run folder; nothing is created until a rollout has tokens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: TokenFile | None = None
        self._is_continued = (folder / TOKENS_FILE).exists()
        self._waiting: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._writing = asyncio.Lock()
        self._failure: Exception | None = None

    async def add(self, outputs: Sequence[Mapping[str, Any]], trajectories: Sequence[Any]) -> None:
        """Save the tokens of finished rollouts; on the disk when it returns. Raises TokenFileError.

        Rollouts that finish while a write is going on share the next one.
        """
        new = {
            token_key(output): _sound(output, trajectory) if has_tokens(trajectory) else []
            for output, trajectory in zip(outputs, trajectories, strict=True)
        }
        if self._file is None and not self._is_continued and not any(new.values()):
            return
        self._waiting |= new
        async with self._writing:
            if self._failure is not None:
                raise self._failure
            batch, self._waiting = self._waiting, {}
            if batch:
                await asyncio.to_thread(self._write, batch)

    def _write(self, batch: dict[str, Sequence[Mapping[str, Any]]]) -> None:
        try:
            if self._file is None:
                self._file = TokenFile(self._folder).__enter__()
            # A rollout without tokens is noted only where it takes the place of one that had some.
            known = self._file
            self._file.append({k: steps for k, steps in batch.items() if steps or k in known})
        except Exception as error:
            self._failure = error  # for those that wait for the same write
            raise

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        if self._file is not None:
            self._file.close()


def has_tokens(trajectory: Any) -> bool:
    """Whether a step of a trajectory has token ids."""
    return any(step.get("tokens") is not None for step in trajectory or ())


def _sound(output: Mapping[str, Any], trajectory: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    """The trajectory, its tokens checked; nothing when they contradict each other, which must not cost the rollout."""
    try:
        stored = stored_steps([step.get("tokens") for step in trajectory])
    except (TokensInvalid, KeyError, TypeError) as error:
        logger.warning("The tokens of rollout %s are not saved: %s", token_key(output), error)
        return []
    return [{**step, "tokens": tokens} for step, tokens in zip(trajectory, stored, strict=True)]


def outputs_with_tokens(folder: str | Path) -> Iterator[RolloutOutput]:
    """The saved rollouts of a run, each with the `trajectory` that `samples_of` needs, one read at a time.

    A trajectory that is saved in `results.jsonl` keeps its other keys. A rollout whose endpoint gave no token ids comes
    as it was saved. Raises TokenFileError when the run has no token file.
    """
    sampling_args = load_metadata(Path(folder)).get("sampling_args") or {}
    with TokenFile(folder, read_only=True) as file:
        for output in iterate_outputs(Path(folder)):
            key = token_key(output)
            steps: list[Any] = file.read_steps(key) if key in file else []
            if steps:
                saved: Sequence[Mapping[str, Any]] = output.get("trajectory") or []
                if len(saved) == len(steps):
                    steps = [
                        {**old, "tokens": new["tokens"]}
                        for old, new in zip(saved, steps, strict=True)
                    ]
                output["trajectory"] = steps
                output.setdefault("sampling_args", sampling_args)
            yield output
