"""The token file of a run: written during the run, read back rollout by rollout.

    tokens.arrow · tokens.index      beside results.jsonl, only if the endpoint returns token ids

The tokens of a rollout are on the disk before its line in `results.jsonl`, so every saved rollout has its tokens.
Tokens whose line is missing after a crash are superseded when their rollout is run again.
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
    """Return the key of a rollout in the token file of its run."""
    return f"{output['example_id']}-{output.get('rollout_index', 0)}"


class RunTokens:
    """Writer of the token file of a run folder; no file is created until a rollout has tokens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: TokenFile | None = None
        self._is_continued = (folder / TOKENS_FILE).exists()
        self._waiting: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._writing = asyncio.Lock()
        self._failure: Exception | None = None

    async def add(self, outputs: Sequence[Mapping[str, Any]], trajectories: Sequence[Any]) -> None:
        """Save the tokens of finished rollouts; they are on the disk when the call returns. Raises TokenFileError.

        Rollouts that finish during a write share the next one.
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
            # A rollout without tokens is recorded only if it replaces a rollout that had tokens.
            known = self._file
            self._file.append({k: steps for k, steps in batch.items() if steps or k in known})
        except Exception as error:
            self._failure = error  # for the callers that wait for the same write
            raise

    def close(self) -> None:
        """Close the file. Closing twice has no effect."""
        if self._file is not None:
            self._file.close()


def has_tokens(trajectory: Any) -> bool:
    """Whether a step of a trajectory has token ids."""
    return any(step.get("tokens") is not None for step in trajectory or ())


def _sound(output: Mapping[str, Any], trajectory: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    """Return the trajectory with checked tokens; [] if its tokens contradict each other, so that the rollout is not
    lost.
    """
    try:
        stored = stored_steps([step.get("tokens") for step in trajectory])
    except (TokensInvalid, KeyError, TypeError) as error:
        logger.warning("The tokens of rollout %s are not saved: %s", token_key(output), error)
        return []
    return [{**step, "tokens": tokens} for step, tokens in zip(trajectory, stored, strict=True)]


def outputs_with_tokens(folder: str | Path) -> Iterator[RolloutOutput]:
    """Yield the saved rollouts of a run, each with the `trajectory` that `samples_of` needs.

    A trajectory that is saved in `results.jsonl` keeps its other keys. A rollout whose endpoint returned no token ids
    is unchanged. Raises TokenFileError if the run has no token file.
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
