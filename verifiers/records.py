"""`Record`, a dict with declared fields as attributes and pydantic's method names; and the records themselves:
messages, tools, responses.

A run creates millions of messages, responses and tools. Authors of both v0 generations read them as `m["role"]`,
`m.get("role")` and `m.role`. JSON, pickle and `datasets` accept them too. A dict subclass supports all of these.
Creating a record copies its keyword arguments and checks required fields, nothing more.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, dataclass_transform, get_type_hints

_NOTHING: Any = object()


@dataclass_transform(kw_only_default=True)
class Record(dict[str, Any]):
    """Base class of messages, responses, tools and similar values.

    A subclass annotates its fields; a field with a default is optional. An optional field without a value is not
    stored (no `None`-filled keys in saved files), and reads as its default through `record.field` and
    `record["field"]`. Extra keys are kept.
    """

    __slots__ = ()

    model_fields: ClassVar[dict[str, Any]] = {}
    """Name → default of every declared field; `...` for a required field."""
    _required: ClassVar[tuple[str, ...]] = ()
    _stored_defaults: ClassVar[dict[str, Any]] = {}
    _nested: ClassVar[dict[str, type[Record]]] = {}
    """Fields that hold a record, or a list of records. Plain dicts given for them are converted."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        fields = dict(cls.model_fields)
        for name in inspect.get_annotations(cls):
            if name.startswith("_") or name == "model_fields":
                continue
            fields[name] = cls.__dict__.get(name, ...)
            if name in cls.__dict__:
                delattr(cls, name)  # otherwise the class attribute would hide the stored value
        cls.model_fields = fields
        cls._required = tuple(name for name, default in fields.items() if default is ...)
        # A constant, such as a message's role or a content part's type, belongs in the stored form.
        cls._stored_defaults = {
            name: default
            for name, default in fields.items()
            if isinstance(default, str) and name in ("role", "type")
        }

    def __init__(self, **fields: Any) -> None:
        if self._stored_defaults:
            dict.update(self, self._stored_defaults)
        dict.update(self, fields)
        for name in self._required:
            if name not in fields:
                raise ValueError(
                    f"{type(self).__name__} needs a {name!r}; it received only {sorted(fields)}."
                )
        for name, kind in self._nested.items():
            value = fields.get(name)
            if value is not None and type(value) is not kind:
                self[name] = _convert(value, kind)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Return a record from valid fields, without checks and without copying nested values."""
        record = cls.__new__(cls)
        dict.update(record, fields)
        return record

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            ) from None

    def __missing__(self, key: str) -> Any:
        default = self.model_fields.get(key, ...)
        if default is ...:
            raise KeyError(key)
        return default() if callable(default) else default

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.items())})"

    def __copy__(self) -> Self:
        return self.of(self)

    copy = __copy__

    # --- pydantic's method names, which code for 0.1.11 and later calls ---

    def model_dump(
        self,
        *,
        mode: str = "python",
        include: Iterable[str] | None = None,
        exclude: Iterable[str] | None = None,
        exclude_none: bool = False,
        exclude_unset: bool = False,
        exclude_defaults: bool = False,
        **_: Any,
    ) -> dict[str, Any]:
        """Return a plain dict of the fields, nested records included. Defaults are filled in unless excluded."""
        names = list(self) if exclude_unset or exclude_defaults else [*self.model_fields]
        names += [name for name in self if name not in self.model_fields and name not in names]
        chosen = names if include is None else [name for name in names if name in include]
        options = {"exclude_none": exclude_none, "exclude_unset": exclude_unset}
        dumped: dict[str, Any] = {}
        for name in chosen:
            if exclude is not None and name in exclude:
                continue
            value = self[name] if name in self or self.model_fields[name] is not ... else None
            if value is None and exclude_none:
                continue
            if exclude_defaults and value == self.model_fields.get(name, _NOTHING):
                continue
            dumped[name] = _plain(value, options)
        return dumped

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """Return the JSON text of `model_dump(**options)`."""
        import json

        separators = None if indent else (",", ":")
        return json.dumps(self.model_dump(**options), indent=indent, separators=separators)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields replaced."""
        copied = deepcopy(self) if deep else self.of(self)
        if update:
            dict.update(copied, update)
        return copied

    @classmethod
    def model_construct(cls, _fields_set: Any = None, **fields: Any) -> Self:
        """Return a record without any check."""
        return cls.of({**cls._stored_defaults, **fields})

    @classmethod
    def model_validate(cls, obj: Any, **_: Any) -> Self:
        """Return a record from a mapping, or from an object with the fields as attributes.

        Raise ValueError for a missing required field, TypeError for any other object.
        """
        if isinstance(obj, cls):
            return obj
        if isinstance(obj, Mapping):
            return cls(**obj)
        if hasattr(obj, "model_dump"):
            return cls(**obj.model_dump(exclude_none=True))
        raise TypeError(f"{cls.__name__} cannot be made from {type(obj).__name__}: {obj!r}")

    @classmethod
    def model_validate_json(cls, json_data: str | bytes, **_: Any) -> Self:
        """Return a record from JSON text."""
        import json

        return cls.model_validate(json.loads(json_data))

    @classmethod
    def model_json_schema(cls, **_: Any) -> dict[str, Any]:
        """Return a JSON schema with the field names, without types."""
        return {
            "title": cls.__name__,
            "type": "object",
            "properties": {name: {} for name in cls.model_fields},
            "required": list(cls._required),
        }

    @classmethod
    def field_types(cls) -> dict[str, Any]:
        """Return name → declared type of every field."""
        hints = get_type_hints(cls)
        return {name: hints[name] for name in cls.model_fields}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Allow authors to use records as fields of pydantic models."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls.model_validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda record: record.model_dump(exclude_none=True)
            ),
        )


def _convert(value: Any, kind: type[Record]) -> Any:
    if isinstance(value, list | tuple):
        return [v if isinstance(v, kind) or v is None else kind.model_validate(v) for v in value]
    return value if isinstance(value, kind) else kind.model_validate(value)


def _plain(value: Any, options: dict[str, Any]) -> Any:
    if isinstance(value, Record) or hasattr(value, "model_dump"):
        return value.model_dump(**options)
    if isinstance(value, dict):
        return {key: _plain(item, options) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, options) for item in value]
    return value


# ---------------------------------------------------------------------------------------- messages, tools, responses


class CustomBaseModel(Record):
    """Base of messages; the name is v0's."""

    __slots__ = ()


class TextContentPart(CustomBaseModel):
    """Text inside a message with several parts."""

    __slots__ = ()
    type: Literal["text"] = "text"
    text: str


class ImageUrlSource(CustomBaseModel):
    """Address of an image; a `data:` URL carries the image itself."""

    __slots__ = ()
    url: str


class ImageUrlContentPart(CustomBaseModel):
    """An image inside a message."""

    __slots__ = ()
    _nested: ClassVar[dict[str, type[Record]]] = {"image_url": ImageUrlSource}
    type: Literal["image_url"] = "image_url"
    image_url: ImageUrlSource


class InputAudioSource(CustomBaseModel):
    """Base64 audio and its format (`wav`, `mp3`)."""

    __slots__ = ()
    data: str
    format: str


class InputAudioContentPart(CustomBaseModel):
    """Audio inside a message."""

    __slots__ = ()
    _nested: ClassVar[dict[str, type[Record]]] = {"input_audio": InputAudioSource}
    type: Literal["input_audio"] = "input_audio"
    input_audio: InputAudioSource


class GenericContentPart(CustomBaseModel):
    """A part of an unknown type, which is passed on unchanged."""

    __slots__ = ()
    type: str


class ToolCall(CustomBaseModel):
    """A tool call of the model; `arguments` is JSON text.

    Also readable in OpenAI's format (`call["function"]["name"]`), which generation (a) of the API used.
    """

    __slots__ = ()
    id: str
    name: str
    arguments: str

    def __missing__(self, key: str) -> Any:
        if key == "function":
            return Record.of({"name": self["name"], "arguments": self["arguments"]})
        if key == "type":
            return "function"
        return super().__missing__(key)


class Tool(CustomBaseModel):
    """A tool offered to the model; `parameters` is a JSON schema of its arguments."""

    __slots__ = ()
    name: str
    description: str
    parameters: dict[str, object]
    strict: bool | None = None


class SystemMessage(CustomBaseModel):
    """Instructions of the author, before the conversation."""

    __slots__ = ()
    role: Literal["system"] = "system"
    content: Any

    @classmethod
    def from_path(cls, path: str | Path) -> SystemMessage:
        """Return a system message with the text of a file (UTF-8), verbatim."""
        return cls(content=Path(path).read_text(encoding="utf-8"))


class UserMessage(CustomBaseModel):
    """A message of the user, or of the environment in the user's role."""

    __slots__ = ()
    role: Literal["user"] = "user"
    content: Any


class AssistantMessage(CustomBaseModel):
    """A message of the model: text, reasoning, tool calls."""

    __slots__ = ()
    _nested: ClassVar[dict[str, type[Record]]] = {"tool_calls": ToolCall}
    role: Literal["assistant"] = "assistant"
    content: Any = None
    reasoning_content: str | None = None
    thinking_blocks: list[Any] | None = None
    tool_calls: list[ToolCall] | None = None


class ToolMessage(CustomBaseModel):
    """The result of one tool call."""

    __slots__ = ()
    role: Literal["tool"] = "tool"
    tool_call_id: str
    content: Any


class TextMessage(CustomBaseModel):
    """Raw text: the prompt or the completion of a text-completion environment."""

    __slots__ = ()
    role: Literal["text"] = "text"
    content: str


ContentPart = (
    TextContentPart
    | ImageUrlContentPart
    | InputAudioContentPart
    | GenericContentPart
    | dict[str, Any]
)
MessageContent = str | list[ContentPart]
Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage | TextMessage
Messages = list[Message]
FinishReason = Literal["stop", "length", "tool_calls"] | None
SamplingArgs = dict[str, Any]


class Usage(CustomBaseModel):
    """Token counts of one model call, as the endpoint reported them."""

    __slots__ = ()
    prompt_tokens: int
    reasoning_tokens: int = 0
    completion_tokens: int
    total_tokens: int


class ResponseTokens(CustomBaseModel):
    """Token ids of one model call.

    `prompt_ids`, `prompt_mask`: `[P]`; `completion_ids`, `completion_mask`, `completion_logprobs`: `[C]`. A mask is 1
    where the model sampled the token.
    """

    __slots__ = ()
    prompt_ids: list[int]
    prompt_mask: list[int]
    completion_ids: list[int]
    completion_mask: list[int]
    completion_logprobs: list[float]
    routed_experts: list[list[list[int]]] | None = None


class ResponseMessage(AssistantMessage):
    """The assistant message of a response, with its finish reason."""

    __slots__ = ()
    _nested: ClassVar[dict[str, type[Record]]] = {"tool_calls": ToolCall, "tokens": ResponseTokens}
    finish_reason: FinishReason = None
    is_truncated: bool | None = None
    tokens: ResponseTokens | None = None


class Response(CustomBaseModel):
    """One response of a model, in the same form for every API.

    Also readable in OpenAI's format (`response.choices[0].message.content`), which generation (a) of the API used.
    """

    __slots__ = ()
    _nested: ClassVar[dict[str, type[Record]]] = {"usage": Usage, "message": ResponseMessage}
    id: str
    created: int
    model: str
    usage: Usage | None = None
    message: ResponseMessage

    def __missing__(self, key: str) -> Any:
        return [_as_choice(self["message"])] if key == "choices" else super().__missing__(key)


def _as_choice(message: ResponseMessage) -> Record:
    """Return the message as the only element of OpenAI's `choices`, for chat and for text completions."""
    logprobs = None
    if message.tokens is not None:
        each = [Record.of({"logprob": value}) for value in message.tokens.completion_logprobs]
        logprobs = Record.of({"content": each})
    return Record.of(
        {
            "index": 0,
            "message": message,
            "text": message.content or "",
            "finish_reason": message.finish_reason,
            "logprobs": logprobs,
        }
    )
