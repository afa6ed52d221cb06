"""What flows through the library: messages, rollout inputs, state, trajectory steps, scores, outputs.

The import path and the names are those of the v0 API. Names that would pull in a heavy package (`ClientConfig` and
the other pydantic configs, the OpenAI response types of generation (a)) are resolved on first use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, NotRequired, TypedDict

from verifiers.records import Record
from verifiers.state import RolloutTiming as RolloutTiming
from verifiers.state import State as State
from verifiers.state import StateUsageTracker as StateUsageTracker
from verifiers.state import TimeSpan as TimeSpan
from verifiers.state import TimeSpans as TimeSpans

if TYPE_CHECKING:
    from pandas import DataFrame

# ---------------------------------------------------------------------------------------------- messages


class CustomBaseModel(Record):
    """v0's name for the base of messages."""

    __slots__ = ()


class TextContentPart(CustomBaseModel):
    """Text inside a message of several parts."""

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
    """A part of a kind this library does not know; passed on as it is."""

    __slots__ = ()
    type: str


class ToolCall(CustomBaseModel):
    """A call of a tool by the model; `arguments` is JSON text.

    Reads in the OpenAI shape too (`call["function"]["name"]`), which generation (a) of the API used.
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
    """What the author tells the model before the conversation."""

    __slots__ = ()
    role: Literal["system"] = "system"
    content: Any

    @classmethod
    def from_path(cls, path: str | Path) -> SystemMessage:
        """A system message with the text of a file (UTF-8), verbatim."""
        return cls(content=Path(path).read_text(encoding="utf-8"))


class UserMessage(CustomBaseModel):
    """What the user, or the environment in the user's place, says."""

    __slots__ = ()
    role: Literal["user"] = "user"
    content: Any


class AssistantMessage(CustomBaseModel):
    """What the model says: text, reasoning, tool calls."""

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
MessageType = Literal["chat", "completion"]
FinishReason = Literal["stop", "length", "tool_calls"] | None
Info = dict[str, Any]
SamplingArgs = dict[str, Any]
JsonPrimitive = Literal["string", "number", "integer", "boolean", "array", "object"]

# --------------------------------------------------------------------------------------------- responses


class Usage(CustomBaseModel):
    """Tokens of one model call, as the endpoint counted them."""

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
    """The assistant message of a response, with how and why it ended."""

    __slots__ = ()
    _nested: ClassVar[dict[str, type[Record]]] = {"tool_calls": ToolCall, "tokens": ResponseTokens}
    finish_reason: FinishReason = None
    is_truncated: bool | None = None
    tokens: ResponseTokens | None = None


class Response(CustomBaseModel):
    """One answer of a model, whatever API it came through.

    Reads in the OpenAI shape too (`response.choices[0].message.content`), which generation (a) of the API used.
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
    """The message as the one element of OpenAI's `choices`, of a chat and of a text completion."""
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


# ------------------------------------------------------------------------------------- inputs and steps


class RolloutInput(TypedDict, total=False):
    """One row of a dataset, ready to roll out."""

    prompt: Messages
    example_id: int
    answer: str
    info: Info | str
    task: Any


BaseRolloutInput = RolloutInput
TASK_INPUT_FIELDS = {"prompt", "example_id", "answer", "info"}


class TrajectoryStepTokens(TypedDict):
    """Token ids of one turn; shapes as in `ResponseTokens`."""

    prompt_ids: list[int]
    prompt_mask: list[int]
    completion_ids: list[int]
    completion_mask: list[int]
    completion_logprobs: list[float]
    overlong_prompt: bool
    is_truncated: bool
    routed_experts: NotRequired[list[list[list[int]]] | None]


class TrajectoryStep(TypedDict):
    """One turn: what the model saw, what it said."""

    prompt: Messages
    completion: Messages
    response: Response
    tokens: TrajectoryStepTokens | None
    reward: float | None
    advantage: float | None
    is_truncated: bool
    trajectory_id: str
    extras: dict[str, Any]


class ErrorInfo(TypedDict):
    """What is saved of an error."""

    error: str
    error_chain_repr: str
    error_chain_str: str
    where: NotRequired[str]
    """File, line and function of the author's code that raised."""
    traceback: NotRequired[str]
    """At most 8,000 characters, without keys."""
    voids_reward: NotRequired[bool]
    """True when the rollout crashed or infrastructure failed: its reward is 0.0 and is not trained on."""


class TokenUsage(TypedDict):
    """Tokens of a rollout. `final_*`: of the last context, where tokens shared by turns count once."""

    input_tokens: float
    output_tokens: float
    final_input_tokens: NotRequired[float]
    final_output_tokens: NotRequired[float]


class RolloutScore(TypedDict):
    """Reward and metrics of one rollout, as generation (a) returned them."""

    reward: float
    metrics: dict[str, float]


class RolloutScores(TypedDict):
    """Rewards and metrics of several rollouts, as generation (a) returned them."""

    reward: list[float]
    metrics: dict[str, list[float]]


class VersionInfo(TypedDict):
    """Versions of the library and of the environment; `None` where not known."""

    vf_version: str
    vf_commit: str | None
    env_version: str | None
    env_commit: str | None


class Endpoint(TypedDict):
    """One entry of an endpoint registry."""

    key: str
    url: str
    model: str
    api_client_type: NotRequired[str]
    extra_headers: NotRequired[dict[str, str]]


Endpoints = dict[str, list[Endpoint]]

# ------------------------------------------------------------------------------------- scores and outputs


class Score(NamedTuple):
    """What scoring gives for one rollout."""

    reward: float
    metrics: dict[str, float]
    errors: list[dict[str, Any]]
    """One entry for each reward function that raised or reached its time limit; the function counted 0.0."""


class RolloutOutput(dict[str, Any]):
    """One finished rollout as it is returned and saved: JSON-like values only."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class GenerateMetadata(TypedDict, total=False):
    """What is saved about a run beside its rollouts; None for a number that cannot be computed."""

    format_version: int
    env_id: str
    env_args: dict[str, Any]
    model: str
    base_url: str
    num_examples: int
    rollouts_per_example: int
    sampling_args: SamplingArgs
    date: str
    time: float
    avg_reward: float
    avg_metrics: dict[str, float]
    avg_error: float
    pass_at_k: dict[str, float]
    pass_all_k: dict[str, float]
    pass_threshold: float
    usage: TokenUsage | None
    version_info: VersionInfo
    state_columns: list[str]
    path_to_save: Path
    tools: list[Tool] | None
    avg_reward_error_free: float | None
    reward_stderr: float | None
    reward_ci95: list[float] | None
    num_errors: int
    num_failed: int
    num_reward_errors: int
    num_truncated: int
    cost: Any
    provenance: dict[str, Any] | None
    interrupted: bool
    failure: dict[str, Any]


class GenerateOutputs(dict[str, Any]):
    """`outputs` (one `RolloutOutput` a rollout) and `metadata`.

    Generation (a) had parallel lists instead; `results["reward"]`, `results.prompt` and the like still give them.
    """

    __slots__ = ()
    COLUMNS: ClassVar[frozenset[str]] = frozenset(
        [
            "prompt",
            "completion",
            "answer",
            "reward",
            "info",
            "task",
            "example_id",
            "state",
            "stop_condition",
            "is_truncated",
        ]
    )

    @property
    def outputs(self) -> list[RolloutOutput]:
        """The rollouts, in the order of their inputs."""
        return self["outputs"]

    @property
    def metadata(self) -> GenerateMetadata:
        """What is known of the run as a whole."""
        return self["metadata"]

    def __repr__(self) -> str:
        # Short for a second reason: at its end asyncio.run() of CPython 3.11 asks for the text of what it returns,
        # which for 2,000 rollouts took as long as half of the run.
        metadata = self.get("metadata") or {}
        shown = "".join(
            f", {name}={metadata[name]!r}" for name in ("model", "avg_reward") if name in metadata
        )
        return f"{type(self).__name__}({len(self.get('outputs') or ())} rollouts{shown})"

    def _repr_html_(self) -> str:
        from verifiers.notebooks import results_html

        return results_html(self.get("outputs") or [], self.get("metadata") or {})

    def to_pandas(self) -> DataFrame:
        """The rollouts as a pandas `DataFrame`, one row per rollout, with a column for every metric."""
        from verifiers.notebooks import results_frame

        return results_frame(self.get("outputs") or [])

    @classmethod
    def of(cls, results: Mapping[str, Any]) -> GenerateOutputs:
        """Results from a mapping with `outputs`, or from generation (a)'s parallel lists."""
        if isinstance(results, cls):
            return results
        if "outputs" in results:
            return cls(results)
        columns = {k: v for k, v in results.items() if isinstance(v, list | tuple)}
        count = max(map(len, columns.values()), default=0)
        metrics = results.get("metrics") or {}
        rows = [
            RolloutOutput(
                {k: v[i] for k, v in columns.items() if len(v) == count}
                | {"metrics": {name: values[i] for name, values in metrics.items()}}
            )
            for i in range(count)
        ]
        return cls(outputs=rows, metadata=results.get("metadata") or {})

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, key) or key == "metrics" or key in self.COLUMNS

    def get(self, key: str, default: Any = None) -> Any:
        """As `dict.get`, the columns of generation (a) included."""
        return self[key] if key in self else default  # noqa: SIM401 - this is that method

    def __missing__(self, key: str) -> Any:
        if key == "metrics":
            names = sorted({name for output in self["outputs"] for name in output["metrics"]})
            return {n: [o["metrics"].get(n, 0.0) for o in self["outputs"]] for n in names}
        if key == "state":
            return self["outputs"]
        if key in self.COLUMNS:
            return [output.get(key) for output in self["outputs"]]
        raise KeyError(key)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


IndividualRewardFunc = Callable[..., float | Awaitable[float]]
GroupRewardFunc = Callable[..., list[float] | Awaitable[list[float]]]
RewardFunc = IndividualRewardFunc | GroupRewardFunc
DatasetBuilder = Callable[[], Any]
StartCallback = Callable[[list[Any], Any], None]
ProgressCallback = Callable[[list[RolloutOutput], list[RolloutOutput], GenerateMetadata], None]
LogCallback = Callable[[str], None]

_CONFIGS = frozenset(
    [
        "ClientConfig",
        "ClientType",
        "EndpointClientConfig",
        "EndpointConfig",
        "EvalConfig",
        "EvalRunConfig",
    ]
)
_OPENAI = {
    "ChatCompletion": ("openai.types.chat", "ChatCompletion"),
    "ChatMessage": ("openai.types.chat", "ChatCompletionMessageParam"),
    "ChatCompletionToolParam": ("openai.types.chat", "ChatCompletionToolParam"),
    "ChatCompletionMessageToolCall": ("openai.types.chat", "ChatCompletionMessageToolCall"),
    "Completion": ("openai.types", "Completion"),
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _CONFIGS:
        return getattr(importlib.import_module("verifiers.configs"), name)
    if name in _OPENAI:
        module, attribute = _OPENAI[name]
        return getattr(importlib.import_module(module), attribute)
    if name == "ModelResponse":
        return __getattr__("ChatCompletion") | __getattr__("Completion")
    if name == "ChatMessages":
        return list[dict[str, Any]]
    raise AttributeError(f"module 'verifiers.types' has no attribute {name!r}")
