"""The right reply to a row, from its author or in the forms that models use, and a client that plays it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verifiers.messages import from_raw_message
from verifiers.tasks import Row
from verifiers.testing import Reply, ScriptedClient, ScriptExhausted
from verifiers.types import Response, ToolCall

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment
    from verifiers.parsers.parser import Parser

Gold = str | ToolCall | Sequence[ToolCall] | Mapping[str, Any]
"""One reply of a gold completion: text, tool calls, or a whole assistant message."""
MAX_SILENT_TURNS = 50
"""An environment that continues longer than this without a reply of the model does not end by itself."""


class Player(ScriptedClient):
    """Plays a rollout's own replies, turn by turn."""

    def __init__(self, replies_for: Callable[[Mapping[str, Any]], Sequence[Gold] | None]) -> None:
        super().__init__()
        self._replies_for = replies_for

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
    ) -> Response:
        """Return the rollout's reply for this turn."""
        state = kwargs["state"]
        reply = _reply(self._replies_for(state), len(state["trajectory"]))
        return await ScriptedClient([reply]).get_native_response(
            prompt, model, sampling_args, tools, **kwargs
        )


def _reply(replies: Sequence[Gold] | None, turn: int) -> Any:
    """Return the reply of a turn. Without a script it is empty, up to the maximum number of turns."""
    if replies is None:
        if turn >= MAX_SILENT_TURNS:
            raise ScriptExhausted(
                f"The rollout did not end after {MAX_SILENT_TURNS} empty replies."
            )
        return ""
    if turn >= len(replies):
        raise ScriptExhausted(
            f"The gold completion has {len(replies)} replies, but the environment asked for number {turn + 1}."
        )
    reply = replies[turn]
    if isinstance(reply, Mapping) and not isinstance(reply, ToolCall):
        message = from_raw_message({"role": "assistant", **reply})
        return Reply(message.get("content") or "", message.get("tool_calls") or ())
    return reply


def wrapped_answers(answer: str, parser: Parser) -> list[str]:
    """Return an answer in the forms that a model might use, likeliest first: the parser's, plain, boxed, with
    thoughts.
    """
    from verifiers.parsers.think_parser import ThinkParser
    from verifiers.parsers.xml_parser import XMLParser

    forms: list[str] = []
    if isinstance(parser, XMLParser):
        others = {name: "…" for name in parser.get_fields() if name != parser.answer_field}
        forms.append(parser.format(**others, **{parser.answer_field: answer}))
    forms += [answer, f"\\boxed{{{answer}}}", f"<answer>{answer}</answer>"]
    thoughtful = [f"<think>\nI know this one.\n</think>\n\n{form}" for form in forms]
    return thoughtful + forms if isinstance(parser, ThinkParser) else forms + thoughtful


def is_single_turn(environment: Environment) -> bool:
    """Return whether a rollout is one question and one answer."""
    from verifiers.envs.multiturn_env import SingleTurnEnv

    return isinstance(environment, SingleTurnEnv)


def environment_of(environment: Environment, row: Row) -> Environment:
    """Return the environment that plays a row: the environment itself, or a member of a group."""
    from verifiers.envs.env_group import EnvGroup, inner_row, routed_name

    while isinstance(environment, EnvGroup):
        environment = environment.env_map[routed_name(row, environment.env_map)]
        if isinstance(environment, EnvGroup):
            row = inner_row(row)
    return environment


def has_judge(environment: Environment) -> bool:
    """Return whether a judge model takes part in the scores."""
    from verifiers.envs.env_group import EnvGroup
    from verifiers.rubrics.judge_rubric import JudgeRubric
    from verifiers.rubrics.rubric_group import RubricGroup

    def rubrics(rubric: Any) -> Iterable[Any]:
        yield rubric
        if isinstance(rubric, RubricGroup):
            for one in rubric.rubrics:
                yield from rubrics(one)

    members = environment.envs if isinstance(environment, EnvGroup) else []
    own = any(isinstance(rubric, JudgeRubric) for rubric in rubrics(environment.rubric))
    return own or any(has_judge(member) for member in members)
