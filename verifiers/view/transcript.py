"""Messages, scores and tokens of a rollout, prepared for a page. Every text here comes from models and is hostile."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from verifiers.messages import content_text

PAGE = 50
"""Number of messages per page."""
SHOWN = 8000
"""Maximum number of characters of a text that a page shows; a link leads to the whole text."""
MAX_CALLS = 40
"""Maximum number of tool calls of one message that a page shows."""
MAX_TOKENS = 2000
"""Maximum number of tokens of a turn that a page shows."""
MAX_IMAGE = 3 << 20
"""Maximum length of an embedded image that a page shows."""

_SYMBOLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_SYMBOLS |= {0x7F: 0x2421, 0x0D: 0x240D}
_SYMBOLS |= dict.fromkeys(range(128, 160), "�")
_SYMBOLS |= {
    code: f"⟦U+{code:04X}⟧"
    for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
}
_SURROGATES = re.compile("[\ud800-\udfff]")
_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+\Z")
_THINK = re.compile(r"\A\s*<think(?:ing)?>(.*?)</think(?:ing)?>", re.DOTALL)


def visible(text: str) -> str:
    """Return text whose control characters are symbols: escape sequences, direction changes and lone surrogates."""
    text = text.replace("\r\n", "\n").translate(_SYMBOLS)
    return _SURROGATES.sub("�", text)


class Shown(NamedTuple):
    """A text, cut to a length that a page can hold."""

    text: str
    left_out: int
    """Number of characters that are not shown."""


def shown(value: Any, limit: int = SHOWN) -> Shown:
    """Return the beginning of a text; values that are not text become indented JSON."""
    if not isinstance(value, str):
        value = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return Shown(visible(value[:limit]), max(0, len(value) - limit))


@dataclass(frozen=True)
class Call:
    """A tool call."""

    name: str
    arguments: Shown
    id: str
    brief: str
    """The arguments on one line."""


@dataclass(frozen=True)
class MessageView:
    """A message as a page shows it."""

    number: int
    """Position in the conversation, from 0."""
    role: str
    text: Shown
    reasoning: Shown | None = None
    calls: list[Call] = field(default_factory=list)
    calls_left_out: int = 0
    call_id: str = ""
    """Of a tool result: the call that it answers."""
    parts: list[str] = field(default_factory=list)
    """Kinds of the parts that are not text."""
    images: list[str] = field(default_factory=list)
    """Images that are part of the message, as `data:` addresses."""
    is_prompt: bool = False

    @property
    def brief(self) -> str:
        """The beginning of the text on one line."""
        return " ".join(self.text.text[:300].split())


def conversation(output: Mapping[str, Any]) -> list[Any]:
    """Return prompt and completion as one list of messages. A plain text becomes one message."""
    return [
        *_messages(output.get("prompt"), "user"),
        *_messages(output.get("completion"), "assistant"),
    ]


def prompt_length(output: Mapping[str, Any]) -> int:
    """Return the number of messages of the prompt."""
    return len(_messages(output.get("prompt"), "user"))


def _messages(value: Any, role: str) -> list[Any]:
    if isinstance(value, list):
        return value
    return [] if value is None else [{"role": role, "content": value}]


def message_view(message: Any, number: int, *, is_prompt: bool, limit: int = SHOWN) -> MessageView:
    """Return a message as a page shows it; also a message of an unknown shape."""
    if not isinstance(message, Mapping):
        return MessageView(number, "text", shown(message, limit), is_prompt=is_prompt)
    content = message.get("content")
    text = content if isinstance(content, str) else content_text(content)
    if isinstance(content, Mapping):
        text = shown(content, limit).text
    reasoning = reasoning_of(message)
    if reasoning is None and (match := _THINK.match(text[: 10 * limit])):
        reasoning, text = match[1].strip(), text[match.end() :].lstrip()
    calls = message.get("tool_calls")
    calls = calls if isinstance(calls, list) else []
    kinds, images = _other_parts(content)
    return MessageView(
        number,
        str(message.get("role") or "unknown")[:40],
        shown(text, limit),
        None if not reasoning else shown(reasoning, limit),
        [_call(call) for call in calls[:MAX_CALLS]],
        max(0, len(calls) - MAX_CALLS),
        str(message.get("tool_call_id") or ""),
        kinds,
        images,
        is_prompt,
    )


def reasoning_of(message: Mapping[str, Any]) -> str | None:
    """Return the reasoning of a message in any of its usual forms, or None."""
    for key in ("reasoning_content", "reasoning"):
        value = message.get(key)
        if isinstance(value, str) and value:
            return value
    blocks = message.get("thinking_blocks")
    if isinstance(blocks, list):
        texts = [str(block.get("thinking") or "") for block in blocks if isinstance(block, Mapping)]
        return "\n\n".join(filter(None, texts)) or None
    return None


def _other_parts(content: Any) -> tuple[list[str], list[str]]:
    kinds: list[str] = []
    images: list[str] = []
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, Mapping) or isinstance(part.get("text"), str):
            continue
        address = part.get("image_url")
        address = address.get("url") if isinstance(address, Mapping) else address
        is_image = isinstance(address, str) and len(address) <= MAX_IMAGE and _IMAGE.match(address)
        if is_image and len(images) < 8:
            images.append(str(address))
        else:
            kinds.append(str(part.get("type") or "part")[:40])
    return kinds, images


def _call(call: Any) -> Call:
    if isinstance(call, str):
        try:
            call = json.loads(call)
        except (ValueError, RecursionError):
            return Call("call", shown(call), "", "")
    if not isinstance(call, Mapping):
        return Call("call", shown(call), "", "")
    function = call.get("function")
    function = function if isinstance(function, Mapping) else call
    arguments = function.get("arguments")
    brief = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
    if isinstance(arguments, str) and len(arguments) <= SHOWN:
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            pass
    if isinstance(arguments, Mapping) and all(isinstance(item, str) for item in arguments.values()):
        lines = [f"{key}: {item}" for key, item in arguments.items()]  # code keeps its line breaks
        arguments = "\n".join(lines)
    name = visible(str(function.get("name") or "call"))[:200]
    return Call(
        name, shown(arguments), str(call.get("id") or ""), " ".join(visible(brief[:160]).split())
    )


def last_text(output: Mapping[str, Any], limit: int = 200) -> str:
    """Return the beginning of the last text of the model on one line."""
    for message in reversed(_messages(output.get("completion"), "assistant")):
        if isinstance(message, Mapping):
            content = message.get("content")
            text = content if isinstance(content, str) else content_text(content)
            if text.strip():
                return " ".join(visible(text[: 2 * limit]).split())[:limit]
    return ""


def question_text(output: Mapping[str, Any], limit: int = 200) -> str:
    """Return the beginning of the last message of the prompt on one line."""
    prompt = _messages(output.get("prompt"), "user")
    if not prompt:
        return ""
    message = prompt[-1]
    content = message.get("content") if isinstance(message, Mapping) else message
    text = content if isinstance(content, str) else content_text(content)
    return " ".join(visible(text[: 2 * limit]).split())[:limit]


# --- scores


class ScoreRow(NamedTuple):
    """One reward function or metric of a rollout."""

    name: str
    value: float | None
    answer: Shown | None
    explanation: Shown | None
    metadata: Shown | None
    error: str | None


def scores(output: Mapping[str, Any]) -> list[ScoreRow]:
    """Return the metrics of a rollout with their reasons, and the reward functions that raised."""
    metrics = output.get("metrics")
    metrics = metrics if isinstance(metrics, Mapping) else {}
    details = output.get("score_details")
    details = details if isinstance(details, Mapping) else {}
    errors: dict[str, str] = {}
    for entry in output.get("errors") or ():
        if isinstance(entry, Mapping):
            name = str(entry.get("function") or entry.get("name") or "reward function")
            errors[name] = visible(str(entry.get("message") or entry.get("error") or entry)[:SHOWN])
    rows = []
    for name in dict.fromkeys([*metrics, *details, *errors]):
        detail = details.get(name)
        detail = detail if isinstance(detail, Mapping) else {}
        value = metrics.get(name, detail.get("value"))
        answer, explanation, metadata = (
            None if detail.get(key) in (None, "", {}) else shown(detail[key], 4000)
            for key in ("answer", "explanation", "metadata")
        )
        number = value if isinstance(value, int | float) else None
        name, error = visible(str(name)), errors.get(name)
        rows.append(ScoreRow(name, number, answer, explanation, metadata, error))
    return rows


def judge_replies(output: Mapping[str, Any]) -> list[tuple[Shown, Shown]]:
    """Return (question, reply) of every call of a judge."""
    replies = output.get("judge_response")
    if isinstance(replies, Mapping):
        return [(shown(str(asked), 4000), shown(reply, 4000)) for asked, reply in replies.items()]
    return [] if replies is None else [(Shown("", 0), shown(replies, 4000))]


# --- tokens


class TokenView(NamedTuple):
    """A token of the model."""

    text: str
    bucket: int
    """0 (probability near 1) to 9 (log-probability below -9); -1 without a log-probability."""
    is_masked: bool
    """Whether training leaves the token out."""
    title: str


class TurnView(NamedTuple):
    """The sampled tokens of a turn."""

    number: int
    tokens: list[TokenView]
    left_out: int
    mean_logprob: float | None


def token_turns(steps: list[dict[str, Any]]) -> list[TurnView]:
    """Return the tokens of every turn with their colours; texts of tokens only if the responses have them."""
    turns = []
    for number, step in enumerate(steps):
        tokens = step.get("tokens")
        if not isinstance(tokens, Mapping):
            continue
        ids = list(tokens.get("completion_ids") or [])
        logprobs = list(tokens.get("completion_logprobs") or [])
        mask = list(tokens.get("completion_mask") or [])
        texts = _token_texts(step.get("response"))
        views = []
        for place, token in enumerate(ids[:MAX_TOKENS]):
            logprob = logprobs[place] if place < len(logprobs) else None
            views.append(
                TokenView(
                    visible(texts[place]) if len(texts) == len(ids) else str(token),
                    _bucket(logprob),
                    place < len(mask) and not mask[place],
                    f"token {token}"
                    + (f", log-probability {logprob:.3f}" if _is_real(logprob) else ""),
                )
            )
        real = [value for value in logprobs if _is_real(value)]
        mean = sum(real) / len(real) if real else None
        turns.append(TurnView(number, views, max(0, len(ids) - MAX_TOKENS), mean))
    return turns


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _bucket(logprob: Any) -> int:
    return min(9, max(0, int(-logprob * 1.5))) if _is_real(logprob) else -1


def _token_texts(response: Any) -> list[str]:
    if not isinstance(response, Mapping):
        return []
    choices = response.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else response
    logprobs = choice.get("logprobs") if isinstance(choice, Mapping) else None
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    return [str(item.get("token", "")) for item in content or () if isinstance(item, Mapping)]
