"""Check requests: read the fields of a JSON body by type (`Fields`) and return values that the engine can run.

An error names the field and its value. Unsupported fields are refused. Fields without effect on the response (`user`,
`metadata`, ...) are accepted and ignored; `_IGNORED` lists them.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from verifiers.endpoint.chat_template import ROLE_TOKENS, render_chat
from verifiers.endpoint.engine import Generation
from verifiers.endpoint.errors import RequestError
from verifiers.endpoint.sampling import Sampling
from verifiers.endpoint.tokenizer import VOCAB_SIZE, encode

SEED_LIMIT = 2**64


def shown(value: Any) -> str:
    """Return a value as shown in an error message, shortened to 120 characters."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def refuse(name: str, value: Any, expected: str) -> RequestError:
    """Return the error for a field with an invalid value; the caller raises it."""
    return RequestError(f"{name}={shown(value)} is not valid: expected {expected}.", param=name)


class Fields:
    """A JSON object of a request. A field that is null counts as absent."""

    def __init__(self, body: Any, *, within: str = "") -> None:
        if not isinstance(body, dict):
            raise RequestError(
                f"{within or 'The body'} is {shown(body)}, expected a JSON object.",
                param=within or None,
            )
        self.body = body
        self._within = within

    def get(self, name: str) -> Any:
        """Return the value as received; None if absent."""
        return self.body.get(name)

    def label(self, name: str) -> str:
        """Return the name of a field, prefixed with the name of the enclosing object."""
        return f"{self._within}.{name}" if self._within else name

    def check_known(self, known: frozenset[str]) -> None:
        """Refuse unknown fields: a misspelt option must not be ignored silently."""
        unknown = [name for name in self.body if name not in known and self.body[name] is not None]
        if unknown:
            close = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise RequestError(
                f"This server does not support the field {unknown[0]!r}.{hint}", param=unknown[0]
            )

    def check_neutral(self, neutral: dict[str, tuple[Any, ...]]) -> None:
        """Refuse options that this server lacks, unless their value has no effect."""
        for name, accepted in neutral.items():
            value = self.body.get(name)
            if value is not None and value not in accepted:
                allowed = " or ".join(map(repr, accepted)) or "the field to be left out"
                raise RequestError(
                    f"{name}={shown(value)} is not supported by this server: expected {allowed}.",
                    param=name,
                )

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise refuse(self.label(name), value, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """Return a string."""
        value = self.body.get(name)
        if value is not None and not isinstance(value, str):
            raise refuse(self.label(name), value, "a string")
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """Return an integer in [low, high]."""
        value = self.body.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise refuse(self.label(name), value, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """Return a finite number in [low, high]."""
        value = self.body.get(name)
        if value is None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or not low <= value <= high
        ):
            raise refuse(self.label(name), value, f"a number from {low:g} to {high:g}")
        return float(value)

    def token_ids(self, name: str, vocab_size: int) -> list[int] | None:
        """Return a list of token ids."""
        value = self.body.get(name)
        if value is None:
            return None
        return check_token_ids(self.label(name), value, vocab_size)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """Return a string or a list of at most `most` non-empty strings as a tuple."""
        value = self.body.get(name)
        if value is None:
            return ()
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise refuse(self.label(name), value, "a string or a list of strings")
        if len(items) > most:
            raise refuse(self.label(name), value, f"at most {most} strings")
        if "" in items:
            raise refuse(self.label(name), value, "strings that are not empty")
        return tuple(items)


def check_token_ids(name: str, value: Any, vocab_size: int) -> list[int]:
    """Return `value` if it is a list of token ids. Raise RequestError otherwise."""
    if not isinstance(value, list):
        raise refuse(name, value, "a list of token ids")
    for item in value:
        if type(item) is not int or not 0 <= item < vocab_size:
            raise RequestError(
                f"{name} holds {shown(item)}: expected token ids from 0 to {vocab_size - 1}.",
                param=name,
            )
    return value


def names(*groups: Iterable[str]) -> frozenset[str]:
    """Return all names of several groups."""
    return frozenset(name for group in groups for name in group)


MOST_CHOICES = 128
MOST_GENERATIONS = 4096
"""Maximum number of choices times prompts per request."""
MOST_TOP_LOGPROBS = 20
MOST_STOP_STRINGS = 64
COMPLETION_TOKENS_DEFAULT = 16
"""The OpenAI API's default for /v1/completions. Chat generates up to the end of the context."""
GREEDY_BELOW = 1e-5
"""Smaller temperatures count as 0: dividing by them would overflow."""

_GENERATION = (
    "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n",
    "stop", "stop_token_ids", "ignore_eos", "min_tokens", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "stream", "stream_options",
    "return_token_ids", "return_tokens_as_token_ids", "include_stop_str_in_output", "skip_special_tokens",
    "cache_salt",
)  # fmt: skip
_IGNORED = (
    "user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier",
    "prompt_cache_key", "prompt_cache_retention", "priority", "request_id", "chat_template_kwargs",
    "reasoning_effort", "verbosity", "spaces_between_special_tokens", "add_special_tokens",
)  # fmt: skip
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "best_of": (1,),
    "suffix": ("",),
    "modalities": (["text"],),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "prompt_logprobs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "audio": (),
    "prediction": (),
}
_CHAT = ("messages", "tools", "add_generation_prompt", "continue_final_message", "echo")
_CHAT_KNOWN = names(_GENERATION, _IGNORED, _NEUTRAL, _CHAT)
_TOKENS_KNOWN = _CHAT_KNOWN | {"tokens"}
_COMPLETION_KNOWN = names(_GENERATION, _IGNORED, _NEUTRAL, ("prompt", "echo"))


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request for chat or completions, ready to run."""

    model: str
    generations: list[Generation]
    """The choices of the first prompt, then of the second, ..."""
    choices: int
    """n: number of choices per prompt."""
    logprobs: bool = False
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    skip_special: bool = True
    parses_tools: bool = False
    echo: bool = False
    discards_completion: bool = False
    """`max_tokens: 0` with echo: the prompt is scored and nothing is generated."""


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """Properties of the server that requests are checked against."""

    model_names: tuple[str, ...]
    """Responses name the first unless the request names another."""
    context_length: int


def chat_request(body: Any, served: Served) -> GenerationRequest:
    """Check a `/v1/chat/completions` body."""
    fields = Fields(body)
    fields.check_known(_CHAT_KNOWN)
    return _chat_generation(fields, served, chat_prompt(fields))


def chat_tokens_request(body: Any, served: Served) -> GenerationRequest:
    """Check a `/v1/chat/completions/tokens` body: the prompt is given as token ids; the messages are not rendered."""
    fields = Fields(body)
    fields.check_known(_TOKENS_KNOWN)
    tokens = fields.token_ids("tokens", VOCAB_SIZE)
    if tokens is None:
        raise RequestError(
            "The field 'tokens' is missing: the prompt as token ids.", param="tokens"
        )
    return _chat_generation(fields, served, tokens)


def chat_prompt(fields: Fields) -> list[int]:
    """Return the prompt of `messages` and `tools`."""
    messages = check_messages(fields.get("messages"))
    tools = check_tools(fields.get("tools"))
    if fields.get("tool_choice") == "none":
        tools = []
    continue_final = fields.flag("continue_final_message")
    add_prompt = fields.flag("add_generation_prompt", default=not continue_final)
    if continue_final and add_prompt:
        raise RequestError(
            "continue_final_message=True needs add_generation_prompt=False.",
            param="continue_final_message",
        )
    return render_chat(
        messages, tools, add_generation_prompt=add_prompt, continue_final_message=continue_final
    )


def _chat_generation(fields: Fields, served: Served, prompt: list[int]) -> GenerationRequest:
    fields.check_neutral(_NEUTRAL | {"echo": (False,)})
    logprobs = fields.flag("logprobs")
    top = fields.integer("top_logprobs", 0, MOST_TOP_LOGPROBS) or 0
    if top and not logprobs:
        raise RequestError(f"top_logprobs={top} needs logprobs=True.", param="top_logprobs")
    has_tools = bool(fields.get("tools")) and fields.get("tool_choice") != "none"
    limit = token_limit(fields)
    request = _shared(fields, served, logprobs=logprobs, parses_tools=has_tools)
    generations = _generations(fields, served, prompt, limit, top, what="messages")
    return dataclasses.replace(request, generations=generations)


def completion_request(body: Any, served: Served) -> GenerationRequest:
    """Check a `/v1/completions` body; the prompt is a string, a list of strings, token ids, or a list of those."""
    fields = Fields(body)
    fields.check_known(_COMPLETION_KNOWN)
    fields.check_neutral(_NEUTRAL)
    prompts = completion_prompts(fields.get("prompt"))
    top = fields.body.get("logprobs")
    if isinstance(top, bool):
        # Some chat clients send the chat form; true requests the log-probability of the sampled token.
        top = 0 if top else None
    else:
        top = fields.integer("logprobs", 0, MOST_TOP_LOGPROBS)
    echo = fields.flag("echo")
    if echo and fields.flag("stream"):
        raise RequestError("echo=True cannot be streamed; omit one of the two.", param="echo")
    limit = token_limit(fields, lowest=0 if echo else 1)
    if limit is None:
        limit = COMPLETION_TOKENS_DEFAULT
    request = _shared(fields, served, logprobs=top is not None)
    if len(prompts) * request.choices > MOST_GENERATIONS:
        raise RequestError(
            f"n={request.choices} for {len(prompts)} prompts makes {len(prompts) * request.choices} "
            f"completions: expected at most {MOST_GENERATIONS} in one request.",
            param="n",
        )
    generations = [
        generation
        for prompt in prompts
        for generation in _generations(
            fields, served, prompt, max(limit, 1), top or 0,
            what="prompt", prompt_logprobs=echo and top is not None,
        )
    ]  # fmt: skip
    return dataclasses.replace(
        request, generations=generations, echo=echo, discards_completion=limit == 0
    )


def completion_prompts(value: Any) -> list[list[int]]:
    """Return the prompts of a completions body as token ids."""
    if isinstance(value, str):
        return [encode(value, parse_special=True)]
    if not isinstance(value, list) or not value:
        raise refuse("prompt", value, "a string, a list of strings, or token ids")
    if isinstance(value[0], int):
        return [check_token_ids("prompt", value, VOCAB_SIZE)]
    prompts = []
    for index, item in enumerate(value):
        if isinstance(item, str):
            prompts.append(encode(item, parse_special=True))
        else:
            prompts.append(check_token_ids(f"prompt[{index}]", item, VOCAB_SIZE))
    return prompts


def token_limit(fields: Fields, lowest: int = 1) -> int | None:
    """Return `max_completion_tokens` or its older name, `max_tokens`."""
    limit = fields.integer("max_completion_tokens", lowest, 2**31)
    older = fields.integer("max_tokens", lowest, 2**31)
    return older if limit is None else limit


def check_model(fields: Fields, served: Served) -> str:
    """Return the name of the model; by default the served one."""
    model = fields.text("model")
    if model is None:
        return served.model_names[0]
    if model not in served.model_names:
        raise RequestError(
            f"The model {model!r} does not exist. Served here: {', '.join(served.model_names)}.",
            status=404,
            param="model",
            code="model_not_found",
            kind="NotFoundError",
        )
    return model


def _shared(
    fields: Fields, served: Served, *, logprobs: bool, parses_tools: bool = False
) -> GenerationRequest:
    stream = fields.flag("stream")
    options = fields.get("stream_options")
    if options is not None and not stream:
        raise RequestError("stream_options needs stream=True.", param="stream_options")
    include_usage = options is not None and Fields(options, within="stream_options").flag(
        "include_usage"
    )
    return GenerationRequest(
        model=check_model(fields, served),
        generations=[],
        choices=fields.integer("n", 1, MOST_CHOICES) or 1,
        logprobs=logprobs,
        stream=stream,
        include_usage=include_usage,
        return_token_ids=fields.flag("return_token_ids"),
        tokens_as_ids=fields.flag("return_tokens_as_token_ids"),
        skip_special=fields.flag("skip_special_tokens", default=True),
        parses_tools=parses_tools,
    )


def _generations(
    fields: Fields,
    served: Served,
    prompt: list[int],
    limit: int | None,
    top_logprobs: int,
    *,
    what: str,
    prompt_logprobs: bool = False,
) -> list[Generation]:
    room = served.context_length - len(prompt)
    if room < 1 or (limit is not None and limit > room):
        raise context_error(served.context_length, len(prompt), limit, what)
    if not prompt:
        raise RequestError(f"The field {what!r} gives an empty prompt.", param=what)
    first = Generation(
        prompt_ids=prompt,
        max_tokens=room if limit is None else limit,
        sampling=_sampling(fields),
        seed=fields.integer("seed", -(SEED_LIMIT // 2), SEED_LIMIT - 1),
        stop=fields.texts("stop", MOST_STOP_STRINGS),
        include_stop=fields.flag("include_stop_str_in_output"),
        stop_token_ids=tuple(fields.token_ids("stop_token_ids", VOCAB_SIZE) or ()),
        ignore_eos=fields.flag("ignore_eos"),
        min_tokens=fields.integer("min_tokens", 0, served.context_length) or 0,
        top_logprobs=top_logprobs,
        prompt_logprobs=prompt_logprobs,
        cache_salt=fields.text("cache_salt") or "",
        streams_text=fields.flag("stream"),
        skip_special=fields.flag("skip_special_tokens", default=True),
    )
    count = fields.integer("n", 1, MOST_CHOICES) or 1
    return [first, *(dataclasses.replace(first, choice=choice) for choice in range(1, count))]


def context_error(context: int, prompt: int, limit: int | None, what: str) -> RequestError:
    """Build the error for a prompt that is too long, with the wording that clients search for."""
    message = f"This model's maximum context length is {context} tokens. However, "
    if limit is None or prompt >= context:
        message += f"your request has {prompt} tokens in the {what}. Please reduce the length of the {what}."
    else:
        message += (
            f"you requested {prompt + limit} tokens ({prompt} in the {what}, {limit} in the completion). "
            f"Please reduce the length of the {what} or completion."
        )
    return RequestError(message, param=what, code="context_length_exceeded")


def _sampling(fields: Fields) -> Sampling:
    temperature = fields.number("temperature", 0.0, 1000.0, 1.0)
    top_p = fields.number("top_p", 0.0, 1.0, 1.0)
    if top_p == 0.0:
        raise refuse("top_p", fields.get("top_p"), "a number above 0 and up to 1")
    repetition = fields.number("repetition_penalty", 0.0, 100.0, 1.0)
    if repetition == 0.0:
        raise refuse("repetition_penalty", fields.get("repetition_penalty"), "a number above 0")
    return Sampling(
        temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
        top_k=fields.integer("top_k", -1, 2**31) or 0,
        top_p=top_p,
        min_p=fields.number("min_p", 0.0, 1.0, 0.0),
        presence_penalty=fields.number("presence_penalty", -2.0, 2.0, 0.0),
        frequency_penalty=fields.number("frequency_penalty", -2.0, 2.0, 0.0),
        repetition_penalty=repetition,
        logit_bias=_logit_bias(fields.get("logit_bias")),
    )


def _logit_bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    entries = Fields(value, within="logit_bias")
    biases = {}
    for token in entries.body:
        if not token.isdecimal() or int(token) >= VOCAB_SIZE:
            raise refuse("logit_bias", value, f"token ids from 0 to {VOCAB_SIZE - 1} as keys")
        biases[int(token)] = entries.number(token, -100.0, 100.0, 0.0)
    return biases


def check_messages(value: Any) -> list[Mapping[str, Any]]:
    """Return the messages if the chat template can render them."""
    if not isinstance(value, list) or not value:
        raise refuse("messages", value, "a list with at least one message")
    for index, message in enumerate(value):
        where = f"messages[{index}]"
        fields = Fields(message, within=where)
        if fields.text("role") not in ROLE_TOKENS:
            raise refuse(f"{where}.role", message.get("role"), f"one of {', '.join(ROLE_TOKENS)}")
        _check_content(fields.get("content"), f"{where}.content")
        if fields.get("tool_calls") is not None:
            _check_calls(fields.get("tool_calls"), f"{where}.tool_calls")
        elif fields.get("content") is None and message["role"] != "assistant":
            raise refuse(f"{where}.content", None, "a string or a list of text parts")
    return value


def _check_content(content: Any, where: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise refuse(where, content, "a string or a list of text parts")
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, dict) else part
            raise refuse(f"{where}[{index}].type", kind, "'text': this model accepts text only")
        if not isinstance(part.get("text"), str):
            raise refuse(f"{where}[{index}].text", part.get("text"), "a string")


def _check_calls(calls: Any, where: str) -> None:
    if not isinstance(calls, list):
        raise refuse(where, calls, "a list of tool calls")
    for index, call in enumerate(calls):
        function = Fields(call, within=f"{where}[{index}]").get("function")
        fields = Fields(function, within=f"{where}[{index}].function")
        for name in ("name", "arguments"):
            if not isinstance(fields.get(name), str):
                raise refuse(fields.label(name), fields.get(name), "a string")


def check_tools(value: Any) -> list[Mapping[str, Any]]:
    """Return the tool definitions if the chat template can render them."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise refuse("tools", value, "a list of function tools")
    for index, tool in enumerate(value):
        where = f"tools[{index}]"
        fields = Fields(tool, within=where)
        if fields.get("type") not in (None, "function"):
            raise refuse(f"{where}.type", fields.get("type"), "'function'")
        function = Fields(fields.get("function"), within=f"{where}.function")
        if not isinstance(function.get("name"), str):
            raise refuse(function.label("name"), function.get("name"), "a string")
        parameters = function.get("parameters")
        if parameters is not None:
            inner = Fields(parameters, within=function.label("parameters"))
            if inner.get("properties") is not None:
                Fields(inner.get("properties"), within=inner.label("properties"))
    return value
