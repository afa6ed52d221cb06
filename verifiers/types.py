"""Values at v0's import path: messages, rollout inputs, state, trajectory steps, scores, outputs.

Messages, tools and responses are defined in `verifiers.records`, state and steps in `verifiers.state`, the others here.
Names that would import a heavy package (`ClientConfig` and the other pydantic configs, the OpenAI response types of
generation (a)) are resolved on first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NotRequired, Self, TypedDict

from verifiers.lazy_names import lazy_names
from verifiers.records import AssistantMessage as AssistantMessage
from verifiers.records import ContentPart as ContentPart
from verifiers.records import CustomBaseModel as CustomBaseModel
from verifiers.records import FinishReason as FinishReason
from verifiers.records import GenericContentPart as GenericContentPart
from verifiers.records import ImageUrlContentPart as ImageUrlContentPart
from verifiers.records import ImageUrlSource as ImageUrlSource
from verifiers.records import InputAudioContentPart as InputAudioContentPart
from verifiers.records import InputAudioSource as InputAudioSource
from verifiers.records import Message as Message
from verifiers.records import MessageContent as MessageContent
from verifiers.records import Messages as Messages
from verifiers.records import Response as Response
from verifiers.records import ResponseMessage as ResponseMessage
from verifiers.records import ResponseTokens as ResponseTokens
from verifiers.records import SamplingArgs as SamplingArgs
from verifiers.records import SystemMessage as SystemMessage
from verifiers.records import TextContentPart as TextContentPart
from verifiers.records import TextMessage as TextMessage
from verifiers.records import Tool as Tool
from verifiers.records import ToolCall as ToolCall
from verifiers.records import ToolMessage as ToolMessage
from verifiers.records import Usage as Usage
from verifiers.records import UserMessage as UserMessage
from verifiers.state import RolloutTiming as RolloutTiming
from verifiers.state import State as State
from verifiers.state import StateUsageTracker as StateUsageTracker
from verifiers.state import TimeSpan as TimeSpan
from verifiers.state import TimeSpans as TimeSpans
from verifiers.state import TokenUsage as TokenUsage
from verifiers.state import TrajectoryStep as TrajectoryStep
from verifiers.state import TrajectoryStepTokens as TrajectoryStepTokens

if TYPE_CHECKING:
    from pandas import DataFrame

    from verifiers.configs import ClientConfig as ClientConfig
    from verifiers.configs import ClientType as ClientType
    from verifiers.configs import EndpointClientConfig as EndpointClientConfig
    from verifiers.configs import EndpointConfig as EndpointConfig
    from verifiers.configs import EvalConfig as EvalConfig
    from verifiers.configs import EvalRunConfig as EvalRunConfig
    from verifiers.configs import GenerateInputs as GenerateInputs

MessageType = Literal["chat", "completion"]
Info = dict[str, Any]
JsonPrimitive = Literal["string", "number", "integer", "boolean", "array", "object"]

# ------------------------------------------------------------------------------------------- inputs and options


class RolloutInput(TypedDict, total=False):
    """One row of a dataset, ready to roll out."""

    prompt: Messages
    example_id: int
    answer: str
    info: Info | str
    task: Any


BaseRolloutInput = RolloutInput
TASK_INPUT_FIELDS = {"prompt", "example_id", "answer", "info"}


class ErrorInfo(TypedDict):
    """The saved form of an error."""

    error: str
    error_chain_repr: str
    error_chain_str: str
    where: NotRequired[str]
    """File, line and function of the author's code that raised."""
    traceback: NotRequired[str]
    """At most 8,000 characters, without keys."""
    voids_reward: NotRequired[bool]
    """True when the rollout crashed or infrastructure failed: its reward is 0.0 and is not trained on."""


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


class Score(float):
    """A reward with its reasons, returned by a reward function in place of a plain number.

    `answer` is the answer that the function read, `explanation` a text for people, `metadata` further data. Answer and
    metadata are JSON. The three are saved with the rollout; a `Score` counts like the float that it is.
    """

    __slots__ = ("answer", "explanation", "metadata")

    answer: Any
    explanation: str | None
    metadata: Mapping[str, Any] | None

    def __new__(
        cls,
        value: float,
        *,
        answer: Any = None,
        explanation: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """`value` is the reward. It must be a finite number."""
        try:
            score = super().__new__(cls, value)
        except (TypeError, ValueError):
            raise TypeError(f"Score takes a number; got {value!r:.200}.") from None
        score.answer, score.explanation, score.metadata = answer, explanation, metadata
        return score

    def __reduce__(self) -> tuple[Any, ...]:
        return _score, (float(self), self.answer, self.explanation, self.metadata)

    def reasons(self) -> dict[str, Any]:
        """Return those of `answer`, `explanation` and `metadata` that are set."""
        fields = {
            "answer": self.answer,
            "explanation": self.explanation,
            "metadata": self.metadata,
        }
        return {name: value for name, value in fields.items() if value is not None}


def _score(value: float, answer: Any, explanation: Any, metadata: Any) -> Score:
    return Score(value, answer=answer, explanation=explanation, metadata=metadata)


class RolloutOutput(dict[str, Any]):
    """One finished rollout as returned and saved: JSON-like values only."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class GenerateMetadata(TypedDict, total=False):
    """The saved data of a run beside its rollouts; None for a number that cannot be computed."""

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
    """`outputs` (one `RolloutOutput` per rollout) and `metadata`.

    Generation (a) had parallel lists instead; `results["reward"]`, `results.prompt` and the like return them.
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
        """Data of the whole run."""
        return self["metadata"]

    def __repr__(self) -> str:
        # Short for a second reason: asyncio.run() of CPython 3.11 requests the text of its result at the end. The full
        # text of 2,000 rollouts took half as long as the run.
        metadata = self.get("metadata") or {}
        shown = "".join(
            f", {name}={metadata[name]!r}" for name in ("model", "avg_reward") if name in metadata
        )
        return f"{type(self).__name__}({len(self.get('outputs') or ())} rollouts{shown})"

    def _repr_html_(self) -> str:
        from verifiers.notebooks import results_html

        return results_html(self.get("outputs") or [], self.get("metadata") or {})

    def to_pandas(self) -> DataFrame:
        """Return the rollouts as a pandas `DataFrame`, one row per rollout, with a column for every metric."""
        from verifiers.notebooks import results_frame

        return results_frame(self.get("outputs") or [])

    @classmethod
    def of(cls, results: Mapping[str, Any]) -> GenerateOutputs:
        """Return results from a mapping with `outputs`, or from generation (a)'s parallel lists."""
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
        """Like `dict.get`, the columns of generation (a) included."""
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


@dataclass
class ProcessedOutputs:
    """Rollouts as token ids and masks, one entry per rollout, as trainers of 0.1.7 receive them.

    A completion holds all tokens after the prompt, including those of the environment.
    """

    prompt_ids: list[list[int]] = field(default_factory=list)
    prompt_mask: list[list[int]] = field(default_factory=list)
    completion_ids: list[list[int]] = field(default_factory=list)
    completion_mask: list[list[int]] = field(default_factory=list)
    """1 for each token to train on."""
    completion_logprobs: list[list[float]] | None = field(default_factory=list)
    """Log-probabilities of the endpoint, 0.0 for tokens of the environment; None if a rollout has none."""
    rewards: list[float] = field(default_factory=list)


IndividualRewardFunc = Callable[..., float | Awaitable[float]]
GroupRewardFunc = Callable[..., list[float] | Awaitable[list[float]]]
RewardFunc = IndividualRewardFunc | GroupRewardFunc
DatasetBuilder = Callable[[], Any]
StartCallback = Callable[[list[Any], Any], None]
ProgressCallback = Callable[[list[RolloutOutput], list[RolloutOutput], GenerateMetadata], None]
LogCallback = Callable[[str], None]

_OPENAI = {
    "ChatCompletion": ("openai.types.chat", "ChatCompletion"),
    "ChatCompletionMessageParam": ("openai.types.chat", "ChatCompletionMessageParam"),
    "ChatMessage": ("openai.types.chat", "ChatCompletionMessageParam"),
    "ChatCompletionToolParam": ("openai.types.chat", "ChatCompletionToolParam"),
    "ChatCompletionMessageToolCall": ("openai.types.chat", "ChatCompletionMessageToolCall"),
    "Completion": ("openai.types", "Completion"),
    "FunctionParameters": ("openai.types.shared_params", "FunctionParameters"),
}


_load = lazy_names(__name__)[1]


def __getattr__(name: str) -> Any:
    if name in _OPENAI:
        module, attribute = _OPENAI[name]
        return getattr(importlib.import_module(module), attribute)
    if name == "ModelResponse":
        return __getattr__("ChatCompletion") | __getattr__("Completion")
    if name == "ChatMessages":
        return list[dict[str, Any]]
    return _load(name)
