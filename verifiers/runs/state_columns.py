"""State columns that no rollout has: a misspelt name would otherwise be a column of nulls that nobody notices.

A column that only some rollouts have is right, and null in the others. So the run itself goes on, and what is wrong is
said twice at most: after the first rollouts when a near name is there (a slip, told while little is lost), and at the
end for every column that no rollout had.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from verifiers.state import LIVE_KEYS, State

logger = logging.getLogger(__name__)

_OWN = frozenset(name for name, key in vars(State).items() if hasattr(key, "__set_name__"))
"""The library's own keys, which every state has."""
NEAR = 0.75
"""How alike two names are, from 0 to 1, for one to be taken for a slip of the other."""


class StateColumns:
    """Which of the columns that were asked for have been seen in no rollout so far."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self.missing = [name for name in dict.fromkeys(wanted) if name not in _OWN]
        self._known: dict[str, None] = {}
        self._told: set[str] = set()

    def saw(
        self, outputs: Sequence[Mapping[str, Any]], states: Sequence[Mapping[str, Any]] | None
    ) -> None:
        """Take note of finished rollouts. Those of another process come without `states`: null then counts as absent.

        Rollouts that failed are passed over: they may have ended before their environment wrote anything.
        """
        if not self.missing:
            return
        is_first = not self._known
        for index, output in enumerate(outputs):
            if output.get("error") is not None:
                continue
            present = {name: None for name, value in output.items() if value is not None}
            if states is not None:
                present |= dict.fromkeys(states[index])
            self._known |= present
            self.missing = [name for name in self.missing if name not in present]
        if is_first and (slips := [name for name in self.missing if self._near(name)]):
            self._told.update(slips)
            logger.warning("The first rollout has no %s", self._described(slips))

    def report(self) -> None:
        """Say which columns no rollout had, unless that was said before; nothing when no rollout could tell."""
        untold = [name for name in self.missing if name not in self._told]
        if untold and self._known:
            logger.warning(
                "No rollout had a %s Saved as null. Keys that there were: %s.",
                self._described(untold),
                ", ".join(sorted(self._candidates())),
            )

    def _candidates(self) -> Collection[str]:
        return {*self._known, *_OWN} - LIVE_KEYS

    def _near(self, name: str) -> str | None:
        found = get_close_matches(name, self._candidates(), n=1, cutoff=NEAR)
        return found[0] if found else None

    def _described(self, names: Sequence[str]) -> str:
        """`state column 'scroe' (did you mean 'score'?), 'x'.`"""
        shown = [
            f"{name!r} (did you mean {near!r}?)" if (near := self._near(name)) else repr(name)
            for name in names
        ]
        return f"state column {', '.join(shown)}."
