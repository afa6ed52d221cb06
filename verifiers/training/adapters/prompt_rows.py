"""Finding an environment's row again when a trainer hands back nothing but the prompt."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from verifiers.dialects.chat_completions import native_messages
from verifiers.errors import ConfigError

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment

Split = Literal["train", "eval"]


class PromptRows:
    """The rows of an environment by their prompts.

    Rows with the same prompt, which differ in their answers only, carry their `example_id` in the first message.
    """

    def __init__(self, env: Environment, num_examples: int = -1) -> None:
        self._env = env
        self._num_examples = num_examples
        self._splits: dict[Split, dict[str, dict[str, Any]]] = {}

    def prompts(self, split: Split = "train") -> list[list[dict[str, Any]]]:
        """What the trainer's dataset must hold, in the order of the rows."""
        return [json.loads(key) for key in self._rows(split)]

    def row_of(self, prompt: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The row of a prompt; raises ConfigError when there is none."""
        key = _key(_plain(prompt))
        # The evaluation rows are read only when a prompt is none of the others.
        row = self._rows("train").get(key) or self._rows("eval").get(key)
        if row is None:
            raise ConfigError(
                f"The trainer asks for a prompt that is none of the environment's: {prompt!r:.200}. Its dataset must "
                "be the one the adapter made."
            )
        return row

    def _rows(self, split: Split) -> dict[str, dict[str, Any]]:
        if split not in self._splits:
            rows = [dict(row) for row in self._env.source(split).inputs(self._num_examples)]
            prompts = [_plain(row["prompt"]) for row in rows]
            counts = Counter(map(_key, prompts))
            for row, prompt in zip(rows, prompts, strict=True):
                if counts[_key(prompt)] > 1:
                    prompt[0] = {**prompt[0], "example_id": f"{split}-{row['example_id']}"}
            self._splits[split] = {_key(p): row for p, row in zip(prompts, rows, strict=True)}
        return self._splits[split]


def _plain(prompt: Any) -> list[dict[str, Any]]:
    """Messages without the None that Arrow puts where another row has a field."""
    return [
        {name: value for name, value in message.items() if value is not None}
        for message in native_messages(prompt)
    ]


def _key(prompt: list[dict[str, Any]]) -> str:
    return json.dumps(prompt, ensure_ascii=False, sort_keys=True)
