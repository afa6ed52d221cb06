"""`JudgeRubric`: reward functions may ask a model for its judgement."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from numbers import Real
from typing import Any

from verifiers.clients import resolve_client
from verifiers.errors import AuthenticationError, NoVerdict
from verifiers.messages import content_text
from verifiers.parsers.parser import Parser
from verifiers.rubrics.reward_call import RewardCall
from verifiers.rubrics.rubric import Rubric
from verifiers.state import State
from verifiers.types import RewardFunc, Score, UserMessage

DEFAULT_JUDGE_PROMPT = """\
Compare a response with the ground truth answer to a question, and decide whether the response is correct.

Question:
```
{question}
```

Ground truth answer:
```
{answer}
```

Response:
```
{response}
```

Reply with "yes" or "no", and nothing else."""


_verdicts: ContextVar[list[str] | None] = ContextVar("verdicts", default=None)
"""Replies of the judge to the reward function that is running."""


def _note(verdict: str) -> None:
    verdicts = _verdicts.get()
    if verdicts is not None and verdict not in verdicts:
        verdicts.append(verdict)


def explained(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return an async reward function whose number becomes a `Score` with the judge's replies as its explanation.

    A `Score` of the function keeps its own explanation. Functions that are not async cannot call the judge.
    """
    if not inspect.iscoroutinefunction(inspect.unwrap(func)):
        return func

    @functools.wraps(getattr(func, "__func__", func))
    async def call(*args: Any, **kwargs: Any) -> Any:
        verdicts: list[str] = []
        token = _verdicts.set(verdicts)
        try:
            value = await func(*args, **kwargs)
        finally:
            _verdicts.reset(token)
        if not verdicts or not isinstance(value, Real):
            return value
        if not isinstance(value, Score):
            return Score(float(value), explanation="\n\n".join(verdicts))
        if value.explanation is not None:
            return value
        return Score(
            value,
            answer=value.answer,
            explanation="\n\n".join(verdicts),
            metadata=value.metadata,
        )

    return call


class JudgeRubric(Rubric):
    """A rubric whose reward functions may name `judge`, and call `await judge(prompt, completion, answer, state)`.

    `await verdict(prompt, completion, answer, state)` returns the value of a decision instead of the text, and asks
    again if the reply contains no decision.

    `judge_prompt` is a template with `{question}`, `{answer}` and `{response}`. Within one rollout, equal questions are
    sent once. If the judge cannot be reached, the call raises: the error of the reward function is recorded, and the
    rollout does not count as wrong. The replies are saved as the explanation of the function.
    """

    def __init__(
        self,
        parser: Parser | None = None,
        parallelize_scoring: bool = False,
        judge_client: Any = None,
        judge_model: str = "gpt-4.1-nano",
        judge_sampling_args: Mapping[str, Any] | None = None,
        judge_prompt: str = DEFAULT_JUDGE_PROMPT,
        **kwargs: Any,
    ) -> None:
        super().__init__(parser=parser, **kwargs)
        self._judge_client = judge_client
        self.judge_model = judge_model
        self.judge_prompt = judge_prompt
        self.judge_sampling_args = dict(judge_sampling_args or {})
        self.class_objects.update(
            judge=self.judge,
            verdict=self.verdict,
            judge_model=self.judge_model,
            judge_prompt=self.judge_prompt,
            judge_sampling_args=self.judge_sampling_args,
        )
        self.add_score_object_provider(self._judge_objects)

    def _judge_objects(self, _: State) -> dict[str, Any]:
        # A client needs a key, but loading an environment must not need one.
        wanted = any("judge_client" in call.wants or call.wants_all for call in self.reward_calls())
        return {"judge_client": self.judge_client} if wanted else {}

    _judge_objects.provides = frozenset({"judge_client"})  # type: ignore[attr-defined]  # read by `early_stop`

    def _bind(self, func: RewardFunc, weight: float, taken: Sequence[str] = ()) -> RewardCall:
        call = super()._bind(func, weight, taken)
        return call if call.per_group else replace(call, func=explained(call.func))

    @property
    def judge_client(self) -> Any:
        """The OpenAI client of the judge. Without one, it is made on first use from the usual OpenAI variables."""
        if self._judge_client is None:
            from openai import AsyncOpenAI, OpenAIError

            try:
                self._judge_client = AsyncOpenAI()
            except OpenAIError as error:
                raise AuthenticationError(
                    f"The judge {self.judge_model!r} needs a key: set OPENAI_API_KEY, or pass a client as "
                    "JudgeRubric(judge_client=…)."
                ) from error
        return self._judge_client

    @judge_client.setter
    def judge_client(self, client: Any) -> None:
        self._judge_client = client

    async def judge(
        self, prompt: Any, completion: Any, answer: Any, state: State | None = None, **_: Any
    ) -> str:
        """Return the judge's reply to a completion, as text."""
        return await self._reply(self._filled(prompt, completion, answer), state)

    async def verdict(
        self,
        prompt: Any,
        completion: Any,
        answer: Any,
        state: State | None = None,
        choices: Mapping[str, float] | None = None,
        attempts: int = 3,
        **_: Any,
    ) -> Score:
        """Return the value of the choice that the judge's reply names, with the reply as the explanation.

        `choices` maps words to values; by default `yes` is 1.0 and `no` 0.0. The last line of the reply that names a
        choice decides. A reply whose line names several choices, or that names none, decides nothing: the judge is
        asked again, `attempts` times in all. Then NoVerdict is raised, which makes the reward of the rollout void: a
        judge that does not decide never counts as a wrong answer.
        """
        values = {"yes": 1.0, "no": 0.0} if choices is None else dict(choices)
        filled = self._filled(prompt, completion, answer)
        reply = ""
        for attempt in range(attempts):
            reply = await self._reply(filled, state, is_fresh=attempt > 0)
            if (choice := choice_in(reply, values)) is not None:
                return Score(values[choice], answer=choice, explanation=reply)
        raise NoVerdict(
            f"The judge {self.judge_model!r} gave no verdict in {attempts} attempts: its last reply, {reply[-200:]!r}, "
            f"names none or several of {', '.join(values)}."
        )

    def _filled(self, prompt: Any, completion: Any, answer: Any) -> str:
        return self.judge_prompt.format(
            question=question_of(prompt), answer=answer, response=self._response_of(completion)
        )

    async def _reply(self, filled: str, state: State | None, *, is_fresh: bool = False) -> str:
        """Return the judge's reply to a filled prompt. An equal prompt of the rollout has the same reply, unless
        `is_fresh`.
        """
        asked = self._key_of(filled, state)
        known = state.get("judge_response") if state is not None else None
        if not is_fresh and isinstance(known, dict) and (cached := known.get(asked)) is not None:
            _note(cached)
            return cached
        client = resolve_client(self.judge_client)
        arguments = {
            name: value for name, value in self.judge_sampling_args.items() if value is not None
        }
        message = UserMessage.of({"role": "user", "content": filled})
        response = await client.get_response([message], self.judge_model, arguments)
        reply = content_text(response.message.content)
        if state is not None:
            state["judge_response"] = {**(known if isinstance(known, dict) else {}), asked: reply}
        _note(reply)
        return reply

    def _key_of(self, filled: str, state: State | None) -> str:
        """Return the key of a reply in `state["judge_response"]`: the judge's prompt, as in 0.1.14.

        If another model has received the same prompt, the name of the model is in front.
        """
        if state is None:
            return filled
        first_asked = state.setdefault("judge_models", {}).setdefault(filled, self.judge_model)
        return filled if first_asked == self.judge_model else f"{self.judge_model}: {filled}"

    def _response_of(self, completion: Any) -> Any:
        return self.parser.parse_answer(completion)


def choice_in(reply: str, choices: Iterable[str]) -> str | None:
    """Return the choice that the last line with a choice names; None if no line names one, or that line several.

    Choices are whole words (or several), in any case.
    """
    patterns = {
        choice: re.compile(rf"(?<!\w){re.escape(choice)}(?!\w)", re.IGNORECASE)
        for choice in choices
    }
    for line in reversed(reply.splitlines()):
        found = [choice for choice, pattern in patterns.items() if pattern.search(line)]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def question_of(prompt: Any) -> str:
    """Return the question: the text of the last message of a prompt."""
    if isinstance(prompt, str):
        return prompt
    return content_text(prompt[-1].get("content")) if prompt else ""
