"""Names that only callers of v0 use: `GenerateOutputsBuilder`, running metrics, error chains, the text of a run.

The library itself uses `RunDescription`, `summary.RunningSummary`, `errors.error_chain` and `errors.error_info`.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypedDict, runtime_checkable

from verifiers.errors import Error, error_chain, error_info, is_void
from verifiers.messages import content_text, messages_to_printable, printable_text
from verifiers.runs.description import RunDescription, endpoint_url, get_version_info
from verifiers.runs.output import jsonable, output_from_state
from verifiers.runs.statistics import pass_all_k, pass_at_k, powers_of_two
from verifiers.runs.summary import RunningSummary, summarize
from verifiers.state import State
from verifiers.types import GenerateMetadata, GenerateOutputs, RolloutOutput, SamplingArgs, Tool


def state_to_output(state: State, state_columns: Iterable[str] = ()) -> RolloutOutput:
    """Return the saved form of a rollout. Raises ValueError for a requested column that JSON cannot hold.

    A run of this library saves such a value as its `repr` instead, so that the rollout is not lost.
    """
    columns = list(state_columns or ())
    output = output_from_state(state, columns)
    for name in columns:
        try:
            json.dumps(output.get(name), default=_as_json)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"state_columns value for {name!r} is not JSON-serializable: {error}. Store plain data in the state."
            ) from error
    return output


def states_to_outputs(
    states: Iterable[State], state_columns: Iterable[str] = ()
) -> list[RolloutOutput]:
    """Return the saved forms of rollouts; see `state_to_output`."""
    columns = list(state_columns or ())
    return [state_to_output(state, columns) for state in states]


def _as_json(value: Any) -> Any:
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump()
    if isinstance(value, date | Path | BaseException):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"the value has the type {type(value).__name__}")


class GenerateOutputsBuilder:
    """Collector of the rollouts of a run, with outputs and metadata at any time."""

    def __init__(
        self,
        env_id: str,
        env_args: dict[str, Any],
        model: str,
        client: Any,
        num_examples: int,
        rollouts_per_example: int,
        state_columns: list[str] | None,
        sampling_args: SamplingArgs,
        results_path: Path | None,
        pass_threshold: float = 0.5,
    ) -> None:
        self.description = RunDescription(
            env_id=env_id,
            model=model,
            num_examples=num_examples,
            rollouts_per_example=rollouts_per_example,
            env_args=env_args,
            base_url=self.compute_base_url(client),
            sampling_args=sampling_args,
            state_columns=state_columns or (),
            path_to_save=results_path,
            pass_threshold=pass_threshold,
            version_info=get_version_info(env_id),
        )
        self.outputs: list[RolloutOutput] = []
        self.summary = RunningSummary(pass_threshold)
        self.start_time = time.time()

    @staticmethod
    def format_base_url(url: str) -> str:
        """Return the URL as text."""
        return str(url)

    def compute_base_url(self, client: Any) -> str:
        """Return the URL that the client's requests go to; see `description.endpoint_url`."""
        return endpoint_url(client)

    @staticmethod
    def tools_key(tools: list[Tool] | None) -> str:
        """Return text that is equal for equal tools."""
        return "" if not tools else str(jsonable(tools))

    def add_outputs(self, new_outputs: list[RolloutOutput]) -> None:
        """Add finished rollouts."""
        self.outputs += new_outputs
        self.summary.add(new_outputs)

    def build_metadata(self) -> GenerateMetadata:
        """Return the metadata so far."""
        elapsed_s = time.time() - self.start_time
        return self.description.metadata(
            self.summary.summary(), time_s=elapsed_s, tools=self.summary.tools
        )

    def build_outputs(self, sort_by_example_id: bool = False) -> list[RolloutOutput]:
        """Return the rollouts in the order in which they were added, or by example."""
        if sort_by_example_id:
            return sorted(self.outputs, key=lambda output: output["example_id"])
        return self.outputs

    def build(self, sort_by_example_id: bool = False) -> GenerateOutputs:
        """Return outputs and metadata together."""
        return GenerateOutputs(
            outputs=self.build_outputs(sort_by_example_id), metadata=self.build_metadata()
        )


@runtime_checkable
class Metric(Protocol):
    """One or several numbers that are updated with every finished rollout."""

    def add_output(self, output: RolloutOutput) -> None:
        """Count one rollout."""
        ...

    def add_outputs(self, outputs: list[RolloutOutput]) -> None:
        """Count several rollouts."""
        ...

    def compute(self) -> Any:
        """Return the value so far."""
        ...

    def reset(self) -> None:
        """Reset the metric."""
        ...


class _Adding:
    """`add_outputs` in terms of `add_output`."""

    def add_output(self, output: RolloutOutput) -> None:
        """Count one rollout."""
        raise NotImplementedError

    def add_outputs(self, outputs: Iterable[RolloutOutput]) -> None:
        """Count several rollouts."""
        for output in outputs:
            self.add_output(output)


class MeanMetric(_Adding, ABC):
    """Mean of a number over the rollouts that have it; 0.0 if none has."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    @abstractmethod
    def extract(self, output: RolloutOutput) -> float | None:
        """Return the number of a rollout, or None to skip the rollout."""

    def add_output(self, output: RolloutOutput) -> None:
        """Count one rollout."""
        value = self.extract(output)
        if value is not None:
            self._sum += value
            self._count += 1

    def reset(self) -> None:
        """Reset the metric."""
        self._sum, self._count = 0.0, 0

    def compute(self) -> float:
        """Return the mean so far."""
        return self._sum / self._count if self._count else 0.0

    @property
    def count(self) -> int:
        """Number of rollouts that had the number."""
        return self._count


class RewardMetric(MeanMetric):
    """Mean reward; a missing reward, and the reward of a crashed rollout, count 0.0."""

    def extract(self, output: RolloutOutput) -> float:
        """Return the reward."""
        return 0.0 if is_void(output) else output.get("reward") or 0.0


class ErrorRateMetric(MeanMetric):
    """Share of rollouts that ended with an error."""

    def extract(self, output: RolloutOutput) -> float:
        """Return 1.0 for a failed rollout."""
        return 0.0 if output.get("error") is None else 1.0


class TokenUsageKeyMetric(MeanMetric):
    """Mean of one entry of `token_usage`."""

    _key: ClassVar[str] = ""

    def extract(self, output: RolloutOutput) -> float | None:
        """Return the entry, if the rollout reports it."""
        return (output.get("token_usage") or {}).get(self._key)


class InputTokensMetric(TokenUsageKeyMetric):
    """Mean number of tokens sent."""

    _key = "input_tokens"


class OutputTokensMetric(TokenUsageKeyMetric):
    """Mean number of tokens that the model generated."""

    _key = "output_tokens"


class FinalInputTokensMetric(TokenUsageKeyMetric):
    """Mean number of tokens of the last context that the model did not generate."""

    _key = "final_input_tokens"


class FinalOutputTokensMetric(TokenUsageKeyMetric):
    """Mean number of tokens of the last context that the model generated."""

    _key = "final_output_tokens"


class EnvMetrics(_Adding):
    """Mean of every metric, over the rollouts that have it."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)

    def add_output(self, output: RolloutOutput) -> None:
        """Count one rollout."""
        for name, value in (output.get("metrics") or {}).items():
            if value is not None:
                self._sums[name] += value
                self._counts[name] += 1

    def reset(self) -> None:
        """Reset the metric."""
        self._sums.clear()
        self._counts.clear()

    def compute(self) -> dict[str, float]:
        """Return name → mean so far."""
        return {name: self._sums[name] / count for name, count in self._counts.items()}


class PassAtKMetric(_Adding):
    """pass@k and pass^k for k = 1, 2, 4 …, over examples with all rollouts; empty for one rollout per example."""

    def __init__(self, rollouts_per_example: int, threshold: float = 0.5) -> None:
        self.rollouts_per_example = rollouts_per_example
        self.threshold = threshold
        self._counts: defaultdict[Any, int] = defaultdict(int)
        self._passes: defaultdict[Any, int] = defaultdict(int)

    def add_output(self, output: RolloutOutput) -> None:
        """Count one rollout."""
        example = output.get("example_id")
        self._counts[example] += 1
        passes = (output.get("reward") or 0.0) >= self.threshold
        self._passes[example] += passes and not is_void(output)

    def reset(self) -> None:
        """Reset the metric."""
        self._counts.clear()
        self._passes.clear()

    def compute(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return (k → pass@k, k → pass^k), with k as text."""
        complete = [
            (count, self._passes[example])
            for example, count in self._counts.items()
            if count >= self.rollouts_per_example
        ]
        if self.rollouts_per_example < 2 or not complete:
            return {}, {}
        ks = powers_of_two(self.rollouts_per_example)
        return (
            {str(k): sum(pass_at_k(n, c, k) for n, c in complete) / len(complete) for k in ks},
            {str(k): sum(pass_all_k(n, c, k) for n, c in complete) / len(complete) for k in ks},
        )


class ErrorData(TypedDict):
    """The saved form of an error in 0.3."""

    error: str
    message: str
    error_chain_repr: str
    error_chain_str: str


def get_error_chain(
    error: BaseException | None, parent_type: type[BaseException] | None = None
) -> list[BaseException]:
    """Return the error and its causes, outermost first, up to the first that is not a `parent_type`, if one is
    given.
    """
    chain = error_chain(error)
    if parent_type is None:
        return chain
    return list(takewhile(lambda link: isinstance(link, parent_type), chain))


def get_vf_error_chain(error: BaseException) -> list[Error]:
    """Return the error and its causes as long as they are errors of this library."""
    return list(takewhile(lambda link: isinstance(link, Error), error_chain(error)))  # type: ignore[arg-type]  # checked


class ErrorChain:
    """An error with its causes. Equal if the types are equal; `SomeError in chain` looks for a type."""

    def __init__(
        self,
        error: BaseException,
        build_error_chain: Callable[[BaseException], list[BaseException]] = get_error_chain,
    ) -> None:
        self.root_error = error
        self.chain = build_error_chain(error)

    def _types(self) -> tuple[type[BaseException], ...]:
        return tuple(type(link) for link in self.chain)

    def __contains__(self, error_type: type[BaseException]) -> bool:
        return any(issubclass(kind, error_type) for kind in self._types())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ErrorChain):
            return NotImplemented
        return self._types() == other._types()

    def __hash__(self) -> int:
        return hash(self._types())

    def __str__(self) -> str:
        return " -> ".join(kind.__name__ for kind in self._types())

    def __repr__(self) -> str:
        return " -> ".join(map(repr, self.chain))


def error_data(error: BaseException) -> ErrorData:
    """Return the saved form of an error, with its own message apart."""
    saved = error_info(error)
    return {
        "error": saved["error"],
        "message": str(error),
        "error_chain_repr": saved["error_chain_repr"],
        "error_chain_str": saved["error_chain_str"],
    }


def is_error_data(value: object) -> bool:
    """Whether the value has every field of `ErrorData` as text."""
    return isinstance(value, Mapping) and all(
        isinstance(value.get(name), str) for name in ErrorData.__annotations__
    )


def validate_error_data(value: object) -> ErrorData:
    """Return the value. Raises TypeError if it is not an `ErrorData`."""
    if not is_error_data(value):
        raise TypeError(
            f"Saved errors have the text fields {[*ErrorData.__annotations__]}; got {value!r:.200}."
        )
    return value  # type: ignore[return-value]  # just checked


def error_type_name(error: object) -> str | None:
    """Return the type name of an error or of a saved error; None for other values."""
    if isinstance(error, BaseException):
        return type(error).__name__
    name = error.get("error") if isinstance(error, Mapping) else None
    return name if isinstance(name, str) else None


def vf_error_types() -> tuple[type[Error], ...]:
    """Return every loaded error type of this library, subclasses before their bases."""
    return tuple(dict.fromkeys(_bottom_up(Error)))


def _bottom_up(kind: type[Error]) -> Iterator[type[Error]]:
    for subclass in kind.__subclasses__():
        yield from _bottom_up(subclass)
    yield kind


def error_info_to_exception(
    error: Mapping[str, Any], error_types: tuple[type[Exception], ...]
) -> Exception | None:
    """A saved error as an exception of the first given type that it, or one of its causes, was; else None."""
    names = _chain_names(error)
    for kind in error_types:
        if names & {loaded.__name__ for loaded in _tree(kind)}:
            return kind(error.get("error_chain_repr") or error.get("error"))
    return None


error_data_to_exception = error_info_to_exception


def error_from_data(error: Mapping[str, Any]) -> Error:
    """A saved error as the most special of this library's types that it was."""
    text = error.get("error_chain_repr") or error.get("error")
    for kind in vf_error_types():
        if kind.__name__ == error.get("error"):
            return kind(text)
    return Error(text)


def _chain_names(error: Mapping[str, Any]) -> set[str]:
    links = str(error.get("error_chain_str") or "").split(" -> ")
    return {str(error.get("error"))} | {link.partition(":")[0].strip() for link in links}


def _tree(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _tree(subclass)


def results_text(results: GenerateOutputs, num_samples: int = 1) -> str:
    """Settings, up to `num_samples` rollouts, then rewards, pass@k and metrics with their standard errors."""
    results = GenerateOutputs.of(results)
    outputs, metadata = results.outputs, results.get("metadata") or {}
    summary = summarize(outputs, metadata.get("pass_threshold", 0.5))
    lines = ["--- Evaluation ---"]
    for label, key in (("Environment", "env_id"), ("Model", "model"), ("Endpoint", "base_url")):
        lines.append(f"{label}: {metadata.get(key, '')}")
    lines += [
        f"Examples: {summary.examples}",
        f"Rollouts per example: {summary.rollouts_per_example}",
    ]
    for output in outputs[: max(0, num_samples)]:
        lines.append(f"--- Example {output.get('example_id')}, reward {output.get('reward')} ---")
        for message in messages_to_printable(
            [*_list(output.get("prompt")), *_list(output.get("completion"))]
        ):
            lines.append(
                f"{message.get('role')}: {printable_text(content_text(message.get('content')))}"
            )
    lines.append("--- All ---")
    reward = summary.reward
    lines.append(f"reward: mean {reward.mean:.3f}, standard error {reward.stderr:.3f}")
    by_index = _by_rollout_index(outputs)
    lines += _lines_of_rollouts(by_index, lambda output: output.get("reward"))
    for label, values in (("pass@k", summary.pass_at_k), ("pass^k", summary.pass_all_k)):
        if values:
            lines.append(
                f"{label}: "
                + ", ".join(f"{k}={estimate.mean:.3f}" for k, estimate in values.items())
            )
    for name, metric in summary.metrics.items():
        lines.append(f"{name}: mean {metric.estimate.mean:.3f}, deviation {metric.deviation:.3f}")
        lines += _lines_of_rollouts(
            by_index, lambda output, name=name: (output.get("metrics") or {}).get(name)
        )
    lines.append(
        f"errors: {summary.error_count} of {summary.rollouts}, truncated: {summary.truncated}"
    )
    for name, errors in summary.errors.items():
        lines.append(f"  {name}: {errors.count}")
    lines += _lines_of_usage(outputs)
    return "\n".join(lines) + "\n"


def _by_rollout_index(outputs: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the first rollouts of all examples, then the second ones, and so on."""
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for output in outputs:
        groups.setdefault(output.get("example_id"), []).append(output)
    longest = max(map(len, groups.values()), default=0)
    return [
        [group[index] for group in groups.values() if index < len(group)]
        for index in range(longest)
    ]


def _lines_of_rollouts(
    by_index: list[list[Mapping[str, Any]]], value_of: Callable[[Mapping[str, Any]], Any]
) -> list[str]:
    lines: list[str] = []
    for index, outputs in enumerate(by_index, 1):
        values = [value_of(output) for output in outputs]
        shown = [None if value is None else round(float(value), 3) for value in values]
        lines.append(f"r{index}: {shown}")
    return lines


_USAGE = ("input_tokens", "output_tokens", "final_input_tokens", "final_output_tokens")


def _lines_of_usage(outputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the mean tokens of the rollouts that have token counts."""
    counted = [usage for output in outputs if (usage := output.get("token_usage"))]
    if not counted:
        return []
    means = {
        name: sum(float(usage.get(name) or 0.0) for usage in counted) / len(counted)
        for name in _USAGE
    }
    return ["Usage:", *(f"{name} (avg): {mean:.3f}" for name, mean in means.items())]


def _list(messages: object) -> list[object]:
    if isinstance(messages, str):
        return [{"role": "text", "content": messages}]
    return list(messages) if isinstance(messages, list) else []
