"""Mistakes of an environment that are reported before the first model call, instead of as rewards that mean nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verifiers.envs import stops
from verifiers.envs.early_stop import unbound_functions
from verifiers.errors import MissingAnswer, RewardArgumentError
from verifiers.rollouts.limits import current_limits
from verifiers.rubrics.missing_answers import functions_that_need_answers, stores_answer
from verifiers.rubrics.rubric_group import scores_plainly
from verifiers.state import State

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment

_PACKAGE = __name__.partition(".")[0]
_SETUP_METHODS = frozenset({"setup_state", "init_state", "rollout"})


# ---------------------------------------------------------------------------------------------- rows without answer


def check_rows(env: Environment, rows: Iterable[Mapping[str, Any]]) -> None:
    """Raise MissingAnswer for the first row without an `answer` that a reward function needs.

    An environment that prepares its own states may give the answer there; `check_answer` looks at those.
    """
    row = next((row for row in rows if row.get("answer") is None), None)
    if row is not None and not _prepares_states(env):
        check_answer(env, row)


def check_arguments(
    env: Environment, rows: Sequence[Mapping[str, Any]]
) -> dict[str, RewardArgumentError]:
    """Reward functions that ask for something that no row has, with their error; empty when all can be called.

    Raises the first error that is certain, unless the environment prepares its own states and could add the argument.
    """
    if not env.score_rollouts or not rows:
        return {}
    later = getattr(env, "scoring_arguments", ())  # an environment offers these when it scores
    unbound = unbound_functions(env.rubric, rows)
    found = {name: error for name, error in unbound.items() if error.argument not in later}
    certain = [error for error in found.values() if error.is_certain]
    if certain and not _prepares_states(env):
        raise certain[0]
    return found


def check_answer(env: Environment, row: Mapping[str, Any]) -> None:
    """Raise MissingAnswer when a row, or the state made from it, has no `answer` and a reward function needs one."""
    if row.get("answer") is not None or not env.score_rollouts:
        return
    if not (names := _functions_in_need(env)):
        return
    fields = row.input_fields if isinstance(row, State) else row
    keys = [key for key in fields if key != "prompt"]
    raise MissingAnswer(
        f"Row {row.get('example_id')} has no 'answer', and the reward function {names[0]!r} uses the answer "
        f"(an empty answer is part of every text). The row has {keys}. Give every row an 'answer', or give the "
        f"parameter a default value if {names[0]!r} works without an answer."
    )


def _functions_in_need(env: Environment) -> list[str]:
    calls = env.rubric.reward_calls()
    known = env._answer_needs
    if known is None or known[0] is not calls:
        later = any(
            stores_answer(method)
            for name, method in _author_methods(env)
            if name not in _SETUP_METHODS
        )
        known = (calls, [] if later else functions_that_need_answers(env.rubric))
        env._answer_needs = known
    return known[1]


def _prepares_states(env: Environment) -> bool:
    return bool(env._setup_handlers) or any(
        name in _SETUP_METHODS for name, _ in _author_methods(env)
    )


def _author_methods(env: Environment) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions that the author of an environment wrote: methods outside this package, and tools."""
    for cls in type(env).__mro__:
        if cls.__module__.partition(".")[0] != _PACKAGE:
            for name, value in vars(cls).items():
                if callable(value):
                    yield name, value
    for tool in getattr(env, "tools", None) or []:
        if callable(tool):
            yield getattr(tool, "__name__", ""), tool


# ---------------------------------------------------------------------------------- what is missing from an environment


def warn_once(env: Environment) -> None:
    """Log, once for each environment, that nothing scores its rollouts or that nothing ends them."""
    if env._is_checked:
        return
    env._is_checked = True
    if _is_unscored(env):
        env.logger.warning(
            "%s has no rubric, so every reward is 0.0. Pass rubric=vf.Rubric(funcs=[…]), or rubric=vf.Rubric() "
            "if no reward is wanted.",
            env._shown_name,
        )
    if _is_endless(env):
        env.logger.warning(
            "%s has no max_turns and nothing else that ends a rollout: each rollout goes on until the prompt is too "
            "long. Pass max_turns=…, mark a method with @vf.stop, or set state['final_env_response'].",
            env._shown_name,
        )


def _is_unscored(env: Environment) -> bool:
    rubrics: Sequence[Any] = getattr(env.rubric, "rubrics", [env.rubric])
    return (
        env.score_rollouts
        and any(rubric is env._default_rubric for rubric in rubrics)
        and all(scores_plainly(rubric) for rubric in rubrics)
        and not any(call.weight for call in env.rubric.reward_calls())
    )


def _is_endless(env: Any) -> bool:
    """Whether only a prompt that is too long can end a rollout."""
    if getattr(env, "max_turns", 1) > 0 or env.timeout_seconds or current_limits().are_set:
        return False
    if env.max_total_completion_tokens > 0 or stops.any_of_author(env._stop_conditions):
        return False
    return not any(
        name in ("is_completed", "rollout") or _names_final_response(method)
        for name, method in _author_methods(env)
    )


def _names_final_response(method: Any) -> bool:
    code = getattr(inspect.unwrap(method), "__code__", None)
    return code is not None and "final_env_response" in (*code.co_consts, *code.co_names)
