"""`GymEnv`: an environment with `reset` and `step`, as in Gymnasium, that a model plays in text."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, overload

from verifiers.decorators import cleanup, stop
from verifiers.envs.hooks import call_hook
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.errors import ConfigError
from verifiers.parsers.parser import Parser
from verifiers.rubrics.rubric import Rubric
from verifiers.state import State
from verifiers.tasks import Row
from verifiers.types import Messages, MessageType, TextMessage, UserMessage


class RowsOnDemand(Sequence[Row]):
    """The rows `make(first)` … `make(first + count - 1)`. Each is created on first access, because it can take
    seconds.
    """

    def __init__(self, make: Callable[[int], Row], first: int, count: int) -> None:
        self._make = make
        self._first = first
        self._count = count
        self._rows: dict[int, Row] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        index = index + self._count if index < 0 else index
        if not 0 <= index < self._count:
            raise IndexError(index)
        if index not in self._rows:
            self._rows[index] = self._make(self._first + index)
        return self._rows[index]


logger = logging.getLogger(__name__)

DEFAULT_MAX_EPISODE_STEPS = 1000
SLOW_STEP_S = 0.5
"""A reset or step that blocks the event loop for longer, in seconds, is reported once."""

ResetOut: TypeAlias = Any
"""An observation, or (observation, info)."""
StepOut: TypeAlias = (
    tuple[Any, float, bool, bool, dict[str, Any]] | tuple[Any, float, bool, dict[str, Any]]
)
"""(observation, reward, terminated, truncated, info), or Gym's older (observation, reward, done, info)."""


class StepResetEnv(Protocol):
    """The interface of an environment. `reset`, `step` and `close` may be coroutine functions; `close` is optional."""

    def reset(self, *, seed: int | None = None) -> ResetOut:
        """Start an episode. Equal seeds start equal episodes."""
        ...

    def step(self, action: Any) -> StepOut:
        """Take one action."""
        ...


class Step(NamedTuple):
    """The result of one action."""

    observation: Any
    reward: float
    terminated: bool
    """Whether the episode reached its end: won, lost or finished."""
    truncated: bool
    """Whether the episode was cut off by a limit on time or steps."""
    info: dict[str, Any]


def normalize_reset(out: ResetOut) -> tuple[Any, dict[str, Any]]:
    """Return (observation, info) from the return value of `reset`."""
    if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], dict):
        return out[0], out[1]
    return out, {}


def normalize_step(out: StepOut) -> Step:
    """Return the result of `step` in Gymnasium's form. Raises ConfigError for anything else."""
    if isinstance(out, tuple) and len(out) == 5:
        observation, reward, terminated, truncated, info = out
        return Step(observation, float(reward), bool(terminated), bool(truncated), dict(info or {}))
    if isinstance(out, tuple) and len(out) == 4:
        observation, reward, done, info = out
        cut_off = bool((info or {}).get("TimeLimit.truncated", False))
        return Step(
            observation, float(reward), bool(done) and not cut_off, cut_off, dict(info or {})
        )
    raise ConfigError(
        "step() must return (observation, reward, terminated, truncated, info) or "
        f"(observation, reward, done, info); got {out!r:.200}"
    )


def sum_step_rewards(state: State) -> float:
    """Return the sum of the rewards of the episode's steps."""
    return float(sum(step["reward"] or 0.0 for step in state.get("trajectory") or []))


class EpisodicSumRubric(Rubric):
    """The reward of a rollout is the sum of the rewards of its steps."""

    def __init__(self, weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_reward_func(sum_step_rewards, weight)


class MakesRows(Protocol):
    """An environment whose rows come from seeds."""

    def episode_row(self, seed: int) -> Row:
        """Return the dataset row of one seed."""
        ...


class GymEnv(MultiTurnEnv):
    """Plays `env_cls(**env_kwargs)`, one instance per rollout and one action per turn.

    `env_cls` is a class, a function that creates an environment, or a Gymnasium id (`"FrozenLake-v1"`). The parsed
    response of the model goes through `action_parser` to `step`. Observations go through `obs_to_text` to the
    model. The reward of a step is the reward of its turn in the trajectory; the reward of the rollout is their sum.
    If `action_parser` raises, the episode ends.

    `reset` and `step` run in the event loop, since many environments must stay in one thread and need microseconds.
    Set `run_in_thread` for slow environments. Coroutine functions are awaited. The state holds `gym_terminated`
    (the episode reached its end), `gym_truncated` (it was cut off), `gym_done` (either) and `gym_steps`.
    """

    def __init__(
        self,
        env_cls: Callable[..., StepResetEnv] | str,
        env_kwargs: Mapping[str, Any] | None = None,
        action_parser: Callable[[str], Any] | None = None,
        obs_to_text: Callable[[Any], str] | None = None,
        num_train_episodes: int = 1000,
        num_eval_episodes: int = 20,
        max_episode_steps: int | None = None,
        seed: int = 0,
        system_prompt: str | None = None,
        few_shot: Messages | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        message_type: MessageType = "chat",
        *,
        run_in_thread: bool = False,
        **kwargs: Any,
    ) -> None:
        self.env_cls = _maker(env_cls)
        self.env_kwargs = dict(env_kwargs or {})
        self.action_parser = action_parser or _same
        self._obs_to_text = obs_to_text or str
        self.num_train_episodes = num_train_episodes
        self.num_eval_episodes = num_eval_episodes
        self.max_episode_steps = max_episode_steps
        self.seed = seed
        self.run_in_thread = run_in_thread
        self._slow_step_reported = False
        self._template: Any = None
        # Episodes and their first observations are the dataset; the split of a seed never depends on `-n`.
        dataset, eval_dataset = self.gym_to_hf()
        super().__init__(
            max_turns=max_episode_steps or DEFAULT_MAX_EPISODE_STEPS,
            dataset=dataset,
            eval_dataset=eval_dataset,
            system_prompt=system_prompt,
            few_shot=few_shot,
            parser=parser,
            rubric=rubric or EpisodicSumRubric(parser=parser),
            message_type=message_type,
            **kwargs,
        )

    def gym_to_hf(self) -> tuple[Sequence[Row] | None, Sequence[Row] | None]:
        """Return training and evaluation rows, which have no seed in common."""
        for name in ("num_train_episodes", "num_eval_episodes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative; got {getattr(self, name)}.")
        train = RowsOnDemand(self.episode_row, self.seed, self.num_train_episodes)
        evaluation = RowsOnDemand(
            self.episode_row, self.seed + self.num_train_episodes, self.num_eval_episodes
        )
        return train or None, evaluation or None

    def episode_row(self, seed: int) -> Row:
        """Return the dataset row of one seed: its first observation as the question, the seed as the answer."""
        if self._template is None:
            self._template = self.env_cls(**self.env_kwargs)
        out = self._template.reset(seed=seed)
        if asyncio.iscoroutine(out):
            from verifiers.concurrency import run_sync

            awaitable = out
            out = run_sync(lambda: awaitable)
        observation, _ = normalize_reset(out)
        return {"question": self.obs_to_text(observation), "answer": str(seed)}

    # ------------------------------------------------------------------------------------- what authors override

    def obs_to_text(self, obs: Any) -> str:
        """Return an observation as text for the model."""
        text = self._obs_to_text(obs)
        if not isinstance(text, str):
            raise ConfigError(
                f"obs_to_text must return text; got {type(text).__name__}: {text!r:.200}"
            )
        return text

    def wrap_response(self, text: str) -> Messages:
        """Return text of the environment as messages."""
        if self.message_type == "completion":
            return [TextMessage.of({"role": "text", "content": text})]
        return [UserMessage.of({"role": "user", "content": text})]

    # ----------------------------------------------------------------------------------------------- the episode

    async def _play_env(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.run_in_thread and not asyncio.iscoroutinefunction(function):
            return await asyncio.to_thread(function, *args, **kwargs)
        started = time.perf_counter()
        value = function(*args, **kwargs)
        if asyncio.iscoroutine(value):
            return await value
        took_s = time.perf_counter() - started
        if took_s > SLOW_STEP_S and not self._slow_step_reported:
            self._slow_step_reported = True
            logger.warning(
                "%s took %.1f s and blocked all rollouts of this process; pass run_in_thread=True.",
                getattr(function, "__qualname__", function),
                took_s,
            )
        return value

    async def _begin(self, state: State) -> Any:
        game = await self._play_env(self.env_cls, **self.env_kwargs)
        # Before the reset, so that an environment whose reset fails is closed as well.
        state["gym_env"] = game
        state["gym_done"] = state["gym_terminated"] = state["gym_truncated"] = False
        state["gym_steps"] = 0
        await self._play_env(game.reset, seed=int(state["answer"]))
        return game

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Take the model's action and return the result. The last observation ends the rollout."""
        game = state.get("gym_env")
        if game is None:
            game = await self._begin(state)
        turn = state.trajectory[-1]
        try:
            action = self.action_parser(self._answer_text(messages))
        except Exception as error:  # noqa: BLE001 - an answer that cannot be read is the model's failure
            turn["reward"] = 0.0
            state["gym_done"] = state["gym_terminated"] = True
            return self._last_word(state, f"Action Parsing Error: {error}")
        step = normalize_step(await self._play_env(game.step, action))
        state["gym_steps"] += 1
        turn["reward"] = step.reward
        turn["extras"]["gym_info"] = step.info
        state["gym_terminated"] = step.terminated
        state["gym_truncated"] = step.truncated or (
            not step.terminated and 0 < self.max_turns <= state["gym_steps"]
        )
        state["gym_done"] = state["gym_terminated"] or state["gym_truncated"]
        text = self.obs_to_text(step.observation)
        return self._last_word(state, text) if state["gym_done"] else self.wrap_response(text)

    def _answer_text(self, messages: Messages) -> str:
        parsed = self.parser.parse_answer(messages)
        if parsed is not None:
            return parsed
        return self.parser.last_model_text(messages) or ""

    def _last_word(self, state: State, text: str) -> Messages:
        said = self.wrap_response(text)
        state.final_env_response = said
        return said

    # --------------------------------------------------------------------------------------------------- the end

    @stop(priority=10)
    async def is_done(self, state: State) -> bool:
        """Stop when the episode is over."""
        return bool(dict.get(state, "gym_done"))

    @stop
    async def max_turns_reached(self, state: State) -> bool:
        """Never stop here. The last action counts, too, so the limit applies after that action."""
        return False

    @cleanup
    async def cleanup_env(self, state: State) -> None:
        """Close the environment of the rollout, if it has a `close` method."""
        game = state.pop("gym_env", None)
        if (close := getattr(game, "close", None)) is not None:
            await call_hook(close)


def _same(text: str) -> str:
    return text


def _maker(env_cls: Callable[..., StepResetEnv] | str) -> Callable[..., StepResetEnv]:
    if callable(env_cls):
        return env_cls
    if not isinstance(env_cls, str):
        raise ConfigError(
            f"env_cls must be a class or a Gymnasium id; got {type(env_cls).__name__}: {env_cls!r:.200}"
        )
    env_id = env_cls

    def make(**kwargs: Any) -> Any:
        try:
            import gymnasium
        except ImportError as error:
            raise ConfigError(
                f"{env_id!r} is made by Gymnasium: pip install 'gymnasium>=0.29'."
            ) from error
        try:
            return gymnasium.make(env_id, **kwargs)
        except (gymnasium.error.Error, TypeError) as error:
            raise ConfigError(f"Gymnasium cannot make {env_id!r}: {error}") from error

    return make


__all__ = [
    "EpisodicSumRubric",
    "GymEnv",
    "ResetOut",
    "StepOut",
    "StepResetEnv",
    "normalize_reset",
    "normalize_step",
    "sum_step_rewards",
]
