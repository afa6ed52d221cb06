"""`XMLParser`: named fields between tags, with alternatives, and a graded reward for the format."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from verifiers.parsers.parser import Parser, identity


@functools.lru_cache(maxsize=256)
def _pattern(name: str) -> re.Pattern[str]:
    """Return the pattern of a field with its content as the only group."""
    return re.compile(rf"<{re.escape(name)}>\s*(.*?)\s*</{re.escape(name)}>", re.DOTALL)


class XMLParser(Parser):
    """Reads `<field>…</field>`.

    `fields`: names in order. A tuple such as `("answer", "result")` is one field with alternative names; the first
    name is the canonical one. `parse_answer` returns the content of `answer_field`.
    """

    def __init__(
        self,
        fields: Sequence[str | tuple[str, ...]],
        answer_field: str = "answer",
        extract_fn: Callable[[str], Any] = identity,
    ) -> None:
        super().__init__(extract_fn=extract_fn)
        self._fields: list[tuple[str, list[str]]] = []
        seen: set[str] = set()
        for given in fields:
            if isinstance(given, str):
                names = [given]
            elif isinstance(given, tuple | list) and all(isinstance(name, str) for name in given):
                names = list(given)
            else:
                raise TypeError(
                    f"Each field must be a string or a tuple of strings; got {given!r}."
                )
            if not names:
                raise ValueError("Field tuple cannot be empty.")
            if names[0] in seen:
                raise ValueError(f"Duplicate field name: {names[0]}")
            seen.add(names[0])
            self._fields.append((names[0], names))
        self.answer_field = answer_field

    def parse(self, text: str, strip: bool = True, last: bool = False) -> Any:
        """Return a namespace with every field: its first (or `last`) content, None where the field is missing."""
        found: dict[str, str | None] = {}
        # Subclasses of v0 set `_fields` themselves and do not call `__init__`.
        for name in (name for _, names in self._fields for name in names):
            matches = _pattern(name).findall(text)
            content = matches[-1 if last else 0] if matches else None
            found[name] = content.strip() if content is not None and strip else content
        return SimpleNamespace(**found)

    def parse_answer(self, completion: Any) -> Any:
        """Return the first content of the answer field in the model's latest message that has one; None without.

        Of a text it is the last content. 0.1.14 distinguishes the two, and rewards depend on it. `extract_fn` is
        applied to the content.
        """
        is_text = isinstance(completion, str)
        if is_text:
            texts = [completion]
        else:
            messages = self.get_assistant_messages(completion) or self._messages_of(
                completion, "text"
            )
            texts = [self.text_of(message) for message in reversed(messages)]
        for text in texts:
            parsed = self.parse(text, last=is_text)
            for name in self._names(self.answer_field):
                content = getattr(parsed, name, None)
                if content is not None:
                    return self.extract_fn(content)
        return None

    def _names(self, canonical: str) -> list[str]:
        return next((names for name, names in self._fields if name == canonical), [canonical])

    def get_fields(self) -> list[str]:
        """Return the canonical field names in order."""
        return [name for name, _ in self._fields]

    def get_format_str(self) -> str:
        """Return the format as shown in a prompt; alternatives appear as `[ a | b ]`."""
        parts: list[str] = []
        for _, names in self._fields:
            tag = names[0] if len(names) == 1 else f"[ {' | '.join(names)} ]"
            parts.append(f"<{tag}>\n...\n</{tag}>")
        return "\n".join(parts)

    def format(self, **kwargs: Any) -> str:
        """Return the format with the fields filled in; each value is given under any of its field's names.

        Raise ValueError naming the field without a value.
        """
        parts: list[str] = []
        for canonical, names in self._fields:
            given = next((name for name in names if name in kwargs), None)
            if given is None:
                allowed = f" (allowed: {names})" if len(names) > 1 else ""
                raise ValueError(f"Missing value for field {canonical!r}{allowed}")
            parts.append(f"<{canonical}>\n{kwargs[given]}\n</{canonical}>")
        return "\n".join(parts)

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return a reward function: the mean over the model's messages of 0.4 x share of fields present, + 0.2 for
        any text, + 0.2 for a start with the first field's tag, + 0.2 for an end with the last field's tag.
        """
        total = len(self._fields)

        def follows_format(text: str) -> float:
            text = text.strip()
            if not total:
                return 0.0
            present = sum(
                any(_pattern(name).search(text) for name in names) for _, names in self._fields
            )
            starts = any(text.startswith(f"<{name}>") for name in self._fields[0][1])
            ends = any(text.endswith(f"</{name}>") for name in self._fields[-1][1])
            return 0.4 * present / total + 0.2 + 0.2 * starts + 0.2 * ends

        def format_reward_func(completion: Any, **kwargs: Any) -> float:
            messages = self.get_assistant_messages(completion)
            if not messages:
                return follows_format(completion) if isinstance(completion, str) else 0.0
            return sum(follows_format(self.text_of(m)) for m in messages) / len(messages)

        return format_reward_func
