"""`EnvGroup`: several environments as one. Each row is played and scored by the environment that it came from."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any, TypeVar

import orjson

from verifiers.envs.environment import DEFAULT_SAMPLING_ARGS, Environment
from verifiers.envs.options import merged_sampling_args
from verifiers.errors import ConfigError, DatasetError, RewardArgumentError
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.rubric_group import scores_of
from verifiers.rubrics.scoring import RolloutReward
from verifiers.state import State
from verifiers.tasks import Row, TaskSource, is_arrow
from verifiers.types import RewardFunc, SamplingArgs

RowT = TypeVar("RowT", bound=dict[str, Any])

ENV_GROUP_INFO_KEY = "env_id"
"""Key of a row's `info` that names its environment; in groups inside groups, the list of names from the outside in."""
_ROUTING = ("info", "task")
"""Fields of a row that name its environment."""


class EnvGroupRubric(Rubric):
    """Scores each rollout with the rubric of its environment."""

    def __init__(self, env_map: Mapping[str, Environment]) -> None:
        super().__init__()
        self.env_map = dict(env_map)

    def set_scoring_timeout_s(self, scoring_timeout_s: float) -> None:
        """Set the limit in the rubric of every environment."""
        super().set_scoring_timeout_s(scoring_timeout_s)
        for env in self.env_map.values():
            env.rubric.set_scoring_timeout_s(scoring_timeout_s)

    def _get_reward_funcs(self) -> list[RewardFunc]:
        return [f for env in self.env_map.values() for f in env.rubric._get_reward_funcs()]

    def _get_reward_weights(self) -> list[float]:
        return [w for env in self.env_map.values() for w in env.rubric._get_reward_weights()]

    def _get_reward_func_names(self) -> list[str]:
        """Return every name once, sorted, as 0.1.14 does."""
        return sorted(
            {n for env in self.env_map.values() for n in env.rubric._get_reward_func_names()}
        )

    @property
    def all_reward_names(self) -> list[str]:
        """The names of the functions of all environments, sorted."""
        return self._get_reward_func_names()

    @property
    def has_group_rewards(self) -> bool:
        """Whether an environment of the group needs all rollouts of an example."""
        return any(env.rubric.has_group_rewards for env in self.env_map.values())

    @property
    def has_advantages(self) -> bool:
        """Whether an environment of the group computes its own advantages."""
        return any(env.rubric.has_advantages for env in self.env_map.values())

    async def score_rollout(self, state: State, score_sem: Any = None) -> None:
        """Score one rollout, outside a run. It has the metrics of all environments, those of others as 0.0."""
        await super().score_rollout(state, score_sem)
        self._add_absent([state])

    async def score_group(self, states: list[State], score_sem: Any = None, **_: Any) -> None:
        """Score the rollouts of one example, outside a run. They have the metrics of all environments."""
        await super().score_group(states, score_sem)
        self._add_absent(states)

    def _add_absent(self, states: Sequence[State]) -> None:
        absent = dict.fromkeys(self.all_reward_names, 0.0)
        for state in states:
            state["metrics"] = {**absent, **(state.get("metrics") or {})}

    async def score(self, states: Sequence[State]) -> list[RolloutReward]:
        """Score the states with the rubrics of their environments; the order of the states is kept."""
        scores: list[RolloutReward | None] = [None] * len(states)
        for name, indices in positions_by_env(states, self.env_map).items():
            own = [states[i] for i in indices]
            env = self.env_map[name]
            async with _as_its_own(env, own) as inner:
                found = await scores_of(env.rubric, inner)
            for index, score in zip(indices, found, strict=True):
                scores[index] = score
        return [score for score in scores if score is not None]

    async def measure(self, state: State) -> dict[str, float]:
        """Return the metrics of a rollout whose reward is void, by the rubric of its environment."""
        env = self.env_map[routed_name(state, self.env_map)]
        async with _as_its_own(env, [state]) as [inner]:
            return await env.rubric.measure(inner)

    async def advantages(self, states: list[State]) -> list[float]:
        """Return reward minus mean, or the advantages of the rollouts' own environment."""
        advantages = await super().advantages(states)
        for name, indices in positions_by_env(states, self.env_map).items():
            rubric = self.env_map[name].rubric
            if rubric.has_advantages:
                async with _as_its_own(
                    self.env_map[name], [states[index] for index in indices]
                ) as inner:
                    given = await rubric.advantages(inner)
                for index, advantage in zip(indices, given, strict=True):
                    advantages[index] = advantage
        return advantages

    async def cleanup(self, state: State) -> None:
        """Clean up in the rubric of the rollout's own environment."""
        env = self.env_map[routed_name(state, self.env_map)]
        async with _as_its_own(env, [state]) as [inner]:
            await env.rubric.cleanup(inner)


def env_route(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in `info["env_id"]`, from the outside in; empty if the row has none."""
    info = row.get("info")
    if isinstance(info, str):  # JSON text, as in 0.1.14
        try:
            info = orjson.loads(info)
        except orjson.JSONDecodeError:
            return ()
    names = info.get(ENV_GROUP_INFO_KEY) if isinstance(info, Mapping) else None
    if isinstance(names, str):
        return (names,)
    route = tuple(names) if isinstance(names, Sequence) else ()
    return route if all(isinstance(name, str) for name in route) else ()


def routed_name(row: Mapping[str, Any], env_map: Mapping[str, Environment]) -> str:
    """Return the name of a row's environment: the first of `info["env_id"]`, or a plain string `task`.

    Raises DatasetError if the group has no environment of this name.
    """
    route = env_route(row)
    for name in (*route[:1], row.get("task")):
        if isinstance(name, str) and name in env_map:
            return name
    raise DatasetError(
        f"No environment found for info['env_id']={list(route) or None!r} (task={row.get('task')!r}); "
        f"the group has {sorted(env_map)}."
    )


def positions_by_env(
    states: Sequence[State], env_map: Mapping[str, Environment]
) -> dict[str, list[int]]:
    """Return the positions of the states of each environment."""
    positions: dict[str, list[int]] = {}
    for index, state in enumerate(states):
        positions.setdefault(routed_name(state, env_map), []).append(index)
    return positions


class EnvGroup(Environment):
    """The rows of several environments, each played and scored by its own environment."""

    _needs_dataset = False

    def __init__(
        self,
        envs: Sequence[Environment],
        env_names: Sequence[str] | None = None,
        map_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not envs:
            raise ConfigError("EnvGroup requires at least one environment")
        names = list(env_names) if env_names else [f"env_{index}" for index in range(len(envs))]
        if len(names) != len(envs):
            raise ConfigError(
                "Number of env_names must match number of envs: there are "
                f"{len(names)} names and {len(envs)} environments."
            )
        if len(set(names)) != len(names):
            raise ConfigError(f"env_names must differ from each other; got {names}.")
        self.envs = list(envs)
        self.env_names = names
        self.env_map = dict(zip(names, envs, strict=True))
        if any(env._sources["train"] is not None for env in envs):
            kwargs.setdefault("dataset", lambda: self._joined("train"))
        if any(env._sources["eval"] is not None for env in envs):
            kwargs.setdefault("eval_dataset", lambda: self._joined("eval"))
        kwargs.setdefault("rubric", EnvGroupRubric(self.env_map))
        kwargs.setdefault("message_type", envs[0].message_type)
        super().__init__(map_kwargs=map_kwargs, **kwargs)

    def _joined(self, split: str) -> Any:
        """Return the rows of all environments, each with the name of its environment."""
        parts: list[tuple[str, TaskSource]] = []
        for name, env in self.env_map.items():
            source = env._sources[split]
            if source is None and split == "eval":
                source = env._sources["train"]
            if source is not None:
                parts.append((name, source))
        if not parts:
            raise ConfigError(f"No environment of the group has a {split} dataset.")
        if any(source.is_endless for _, source in parts):
            return _interleaved(parts)
        rows = [_named(row, name) for name, source in parts for row in source.inputs()]
        for index, row in enumerate(rows):
            row["example_id"] = index
        if all(is_arrow(source.raw) for _, source in parts) and _have_equal_keys(rows):
            from datasets import Dataset

            return Dataset.from_list(rows)
        return rows

    def _input_env_route(self, input: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of a row's environments, from the outside in. Raises DatasetError if the row has none."""
        route = env_route(input)
        if not route:
            raise DatasetError(
                "A row of an EnvGroup is missing info['env_id']. Take rows from get_dataset() or get_eval_dataset(), "
                "or set that value."
            )
        return route

    def get_env_for_name(self, name: str) -> Environment:
        """Return the environment of this name. Raises DatasetError if there is none."""
        return self.env_map[routed_name({"info": {"env_id": name}}, self.env_map)]

    def get_env_for_task(self, task: str) -> Environment:
        """Generation (a)'s name for `get_env_for_name`."""
        return self.get_env_for_name(task)

    def _check_before_run(
        self, rows: Sequence[Mapping[str, Any]]
    ) -> dict[str, RewardArgumentError]:
        """Run the checks of every environment on its own rows."""
        found: dict[str, RewardArgumentError] = {}
        for name, env in self.env_map.items():
            own = [row for row in rows if routed_name(row, self.env_map) == name]
            found |= env._check_before_run(
                [inner_row(dict(row)) for row in own] if isinstance(env, EnvGroup) else own
            )
        return found

    async def rollout(
        self,
        input: Mapping[str, Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> State:
        """Play one rollout in the row's environment."""
        env = self.env_map[routed_name(input, self.env_map)]
        own = inner_row(dict(input)) if isinstance(env, EnvGroup) else input
        if env.sampling_args != DEFAULT_SAMPLING_ARGS:
            sampling_args = self._with_those_of(env, sampling_args)
        client = self._client_resolver()(client)
        state = await env.rollout(own, client, model, sampling_args)
        if own is not input:
            state.update({key: deepcopy(input[key]) for key in _ROUTING if key in input})
        return state

    def _with_those_of(self, env: Environment, sampling_args: SamplingArgs | None) -> SamplingArgs:
        """Merge sampling arguments: the caller's over those of the environment over those of the group."""
        asked = {
            key: value
            for key, value in (sampling_args or {}).items()
            if key not in self.sampling_args or self.sampling_args[key] != value
        }
        own = merged_sampling_args(self.sampling_args, env.sampling_args)
        return merged_sampling_args(own, asked)

    async def _score(self, states: list[State], *, alone: bool) -> None:
        """Score rollouts of a run: they have the metrics of one environment, so that means exclude the others."""
        if type(self.rubric) is not EnvGroupRubric:
            await super()._score(states, alone=alone)
        elif alone:
            await Rubric.score_rollout(self.rubric, states[0])
        else:
            await Rubric.score_group(self.rubric, states)

    @property
    def has_update_handlers(self) -> bool:
        """Whether an environment of the group has `@vf.update` handlers."""
        return any(env.has_update_handlers for env in self.envs)

    async def _update_before_scoring(self, states: list[State]) -> None:
        """Run the `@vf.update` handlers of the environment that each rollout belongs to."""
        for name, indices in positions_by_env(states, self.env_map).items():
            env = self.env_map[name]
            async with _as_its_own(env, [states[index] for index in indices]) as inner:
                await env._update_before_scoring(inner)

    def set_max_seq_len(self, max_seq_len: int | None) -> None:
        """Set the length in every environment."""
        super().set_max_seq_len(max_seq_len)
        for env in self.envs:
            env.set_max_seq_len(max_seq_len)

    def set_score_rollouts(self, score_rollouts: bool) -> None:
        """Set the option in every environment."""
        super().set_score_rollouts(score_rollouts)
        for env in self.envs:
            env.set_score_rollouts(score_rollouts)

    def set_concurrency(self, concurrency: int) -> None:
        """Set the concurrency in every environment."""
        super().set_concurrency(concurrency)
        for env in self.envs:
            env.set_concurrency(concurrency)

    async def aclose(self) -> None:
        """Close every environment, then the group."""
        for env in self.envs:
            await env.aclose()
        await super().aclose()


def _have_equal_keys(rows: Sequence[Row]) -> bool:
    """Whether all rows have equal keys, so that Arrow adds no empty fields."""
    return len({(frozenset(row), frozenset(row["info"])) for row in rows}) == 1


def _named(row: Row, name: str) -> Row:
    """Return the row with the name of its environment, in the fields of both generations."""
    info = row.get("info")
    own = dict(info) if isinstance(info, Mapping) else ({} if info is None else {"info": info})
    inner = env_route(row)
    named = {**row, "info": {**own, ENV_GROUP_INFO_KEY: [name, *inner] if inner else name}}
    if not isinstance(row.get("task"), Mapping):
        named["task"] = name
    return named


def inner_row(row: RowT) -> RowT:
    """Return a copy of a row for a group inside this group: its route is one step shorter."""
    inner = row.copy()
    route = env_route(row)[1:]
    if route:
        inner["info"] = {
            **inner["info"],
            ENV_GROUP_INFO_KEY: route[0] if len(route) == 1 else list(route),
        }
        if not isinstance(inner.get("task"), Mapping):
            inner["task"] = route[0]
    return inner  # type: ignore[return-value]  # `State.copy` is a State, `dict.copy` a dict


@asynccontextmanager
async def _as_its_own(env: Environment, states: list[State]) -> AsyncIterator[list[State]]:
    """Yield the states in the form of an environment of the group, and copy its changes back."""
    if not isinstance(env, EnvGroup):
        yield states
        return
    inner = [inner_row(state) for state in states]
    yield inner
    for state, written in zip(states, inner, strict=True):
        state.update({key: value for key, value in written.items() if key not in _ROUTING})


def _interleaved(parts: Sequence[tuple[str, TaskSource]]) -> Any:
    """Yield rows of all sources in turn, until every source has ended."""

    def rows() -> Any:
        drawn = 0
        for position in itertools.count():
            alive = False
            for name, source in parts:
                found = source.inputs(position + 1)
                if len(found) > position:
                    alive = True
                    yield {**_named(found[position], name), "example_id": drawn}
                    drawn += 1
            if not alive:
                return

    return rows
