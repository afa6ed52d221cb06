"""Tool calls: right, broken, unknown, two at once; hidden arguments; errors of tools."""

from __future__ import annotations

from typing import Any, Literal

from datasets import Dataset

import verifiers as vf
from differential.cases import call, calls, case

ROWS = [{"question": "Use the tools.", "answer": "7"}]


def rows() -> Dataset:
    return Dataset.from_list(ROWS)


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: the first number
        b: the second number

    Returns:
        The sum.
    """
    return a + b


async def look_up(
    name: str,
    kind: Literal["full", "short"] = "short",
    limit: int | None = None,
    tags: list[str] = [],  # noqa: B006
) -> dict[str, Any]:
    """Look a name up."""
    return {"name": name, "kind": kind, "limit": limit, "tags": tags}


def broken(text: str) -> str:
    """Raise an error."""
    raise ValueError(f"no {text}")


def nothing() -> None:
    """Return nothing."""


def picture() -> list[dict[str, Any]]:
    """Return an image."""
    return [
        {"type": "text", "text": "here"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]


ALL = [add, look_up, broken, nothing, picture]


def final(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


@case([calls(call("add", a=3, b=4)), "7"], ["7"], rollouts=2)
def one_tool() -> vf.Environment:
    return vf.ToolEnv(tools=[add], dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([calls(call("add", a=3, b=4), call("look_up", name="x"), text="Both."), "7"])
def two_at_once() -> vf.Environment:
    return vf.ToolEnv(tools=ALL, dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([calls(call("add", '{"a": 3, "b": ')), "7"])
def broken_json() -> vf.Environment:
    return vf.ToolEnv(tools=ALL, dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([calls(call("add", "[1, 2]")), calls(call("add", '"text"')), "7"])
def arguments_that_are_no_object() -> vf.Environment:
    return vf.ToolEnv(tools=ALL, dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([calls(call("add", "")), "7"])
def empty_arguments() -> vf.Environment:
    return vf.ToolEnv(tools=ALL, dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([calls(call("multiply", a=1)), "7"])
def unknown_tool() -> vf.Environment:
    return vf.ToolEnv(tools=ALL, dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([calls(call("add", c=1)), calls(call("add")), "7"])
def wrong_arguments() -> vf.Environment:
    return vf.ToolEnv(tools=ALL, dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([calls(call("broken", text="luck")), calls(call("nothing")), calls(call("picture")), "7"])
def results_of_all_kinds() -> vf.Environment:
    return vf.ToolEnv(tools=ALL, dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([calls(call("broken", text="luck")), "7"])
def own_error_text() -> vf.Environment:
    return vf.ToolEnv(
        tools=ALL,
        dataset=rows(),
        rubric=vf.Rubric(funcs=[final]),
        error_formatter=lambda error: f"failed: {type(error).__name__}",
    )


@case([calls(call("broken", text="luck")), "7"])
def error_that_ends_the_rollout() -> vf.Environment:
    return vf.ToolEnv(
        tools=ALL, dataset=rows(), rubric=vf.Rubric(funcs=[final]), stop_errors=[ValueError]
    )


@case([calls(call("add", a=1))])
def only_tool_calls_until_the_limit() -> vf.Environment:
    return vf.ToolEnv(tools=[add], dataset=rows(), rubric=vf.Rubric(funcs=[final]), max_turns=3)


@case([calls(call("add", a=3, b=4)), "7"])
def tools_added_and_removed() -> vf.Environment:
    env = vf.ToolEnv(tools=[broken], dataset=rows(), rubric=vf.Rubric(funcs=[final]))
    env.add_tool(add)
    env.remove_tool(broken)
    return env


class Secret(vf.StatefulToolEnv):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(tools=[add], **kwargs)
        self.add_tool(self.read, args_to_skip=["session", "state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
        state["session"] = "s1"
        state["reads"] = 0
        return await super().setup_state(state)

    def update_tool_args(
        self,
        tool_name: str,
        tool_args: dict[str, Any],
        messages: vf.Messages,
        state: vf.State,
        **kwargs: Any,
    ) -> dict[str, Any]:
        if tool_name == "read":
            return {**tool_args, "session": state["session"], "state": state}
        return tool_args

    async def read(self, path: str, session: str, state: Any) -> str:
        """Read a file.

        Args:
            path: the path of the file
            session: hidden
            state: hidden
        """
        state["reads"] += 1
        return f"{session}:{path}"


@case(
    [calls(call("read", path="a"), call("add", a=1)), calls(call("read", path="b")), "7"],
    columns=["session", "reads"],
)
def hidden_arguments() -> vf.Environment:
    return Secret(dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([calls(call("read", "{broken")), calls(call("write", path="x")), "7"], columns=["reads"])
def stateful_broken_calls() -> vf.Environment:
    return Secret(dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([calls(call("add", a=3, b=4)), "7"])
def tools_with_stop_and_metrics() -> vf.Environment:
    """A subclass of ToolEnv with its own response and metric."""

    class Counts(vf.ToolEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            responses = await super().env_response(messages, state, **kwargs)
            state["answered"] = state.get("answered", 0) + len(responses)
            return [*responses, vf.UserMessage(content="and now?")]

    def answered(state: Any) -> float:
        return float(state["answered"])

    rubric = vf.Rubric(funcs=[final])
    rubric.add_metric(answered)
    return Counts(tools=[add], dataset=rows(), rubric=rubric, max_turns=4)


@case([calls(call("add", a=3, b=4)), "7"], sampling={"tool_choice": "auto"})
def tools_in_the_row() -> vf.Environment:
    """Tool definitions that the environment gets as `tool_defs`."""
    tool = vf.Tool(
        name="add",
        description="Add.",
        parameters={"type": "object", "properties": {"a": {"type": "integer"}}},
    )

    class Own(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            [tool_call] = messages[-1].tool_calls
            return [vf.ToolMessage(content="7", tool_call_id=tool_call.id)]

        @vf.stop
        async def answered(self, state: Any) -> bool:
            return (
                bool(state["trajectory"])
                and not state["trajectory"][-1]["completion"][-1].tool_calls
            )

    return Own(dataset=rows(), rubric=vf.Rubric(funcs=[final]), tool_defs=[tool], max_turns=4)


def documented(
    first: str,
    second: float = 1.5,
    third: bool = False,
    fourth: list[float] | None = None,
) -> str:
    """Do something long.

    More text over
    two lines.

    Args:
        first: one
            on two lines
        second (float): two
        third: three
    """
    return first


def undocumented(x, y: int = 3):
    return x


@case(["7"])
def schemas() -> vf.Environment:
    return vf.ToolEnv(
        tools=[documented, undocumented, add, look_up],
        dataset=rows(),
        rubric=vf.Rubric(funcs=[final]),
    )


def takes_a_dict(options: dict[str, int]) -> str:
    """Take a dict."""
    return str(options)


@case([calls(call("takes_a_dict", options={"a": 1})), "7"])
def tool_with_a_dict() -> vf.Environment:
    return vf.ToolEnv(tools=[takes_a_dict], dataset=rows(), rubric=vf.Rubric(funcs=[final]))


def gives(kind: str) -> Any:
    """Return a value.

    Args:
        kind: its type
    """
    return {
        "float": 1.5,
        "bool": True,
        "list": [1, "a", None],
        "dict": {"a": {"b": 1}},
        "tuple": (1, 2),
        "empty": "",
        "unicode": "é\n",
    }[kind]


KINDS = ["float", "bool", "list", "dict", "tuple", "empty", "unicode", "unknown"]


@case([calls(*[call("gives", kind=kind) for kind in KINDS]), "7"])
def results_of_other_types() -> vf.Environment:
    return vf.ToolEnv(tools=[gives], dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([calls(call("add", a=3, b=4), text="Let me add."), "7"], opening=1)
def tools_with_few_shot() -> vf.Environment:
    return vf.ToolEnv(
        tools=[add],
        dataset=rows(),
        system_prompt="Use tools.",
        few_shot=[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        rubric=vf.Rubric(funcs=[final]),
    )


@case([calls(call("add", a="three", b=4)), "7"])
def argument_of_another_type() -> vf.Environment:
    return vf.ToolEnv(tools=[add], dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([{"content": "thinking", "tool_calls": [call("add", a=1)], "finish_reason": "length"}, "7"])
def cut_tool_call() -> vf.Environment:
    return vf.ToolEnv(tools=[add], dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([calls(call("shout", text="a")), calls(call("whisper", text="B")), "7"])
def methods_as_tools() -> vf.Environment:
    class Voices:
        def shout(self, text: str) -> str:
            """Shout."""
            return text.upper()

        async def whisper(self, text: str) -> str:
            """Whisper."""
            return text.lower()

    voices = Voices()
    return vf.ToolEnv(
        tools=[voices.shout, voices.whisper], dataset=rows(), rubric=vf.Rubric(funcs=[final])
    )


@case([calls(call("add", a=1)), "7"])
def own_call_tool() -> vf.Environment:
    class Counts(vf.ToolEnv):
        async def call_tool(
            self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str, **kwargs: Any
        ) -> vf.ToolMessage:
            message = await super().call_tool(tool_name, tool_args, tool_call_id, **kwargs)
            return vf.ToolMessage(content=f"<{message.content}>", tool_call_id=tool_call_id)

    return Counts(tools=[add], dataset=rows(), rubric=vf.Rubric(funcs=[final]))


@case([calls(call("add", a=1)), "7"])
def tools_with_a_parser() -> vf.Environment:
    parser = vf.XMLParser(["answer"])
    return vf.ToolEnv(
        tools=[add],
        dataset=rows(),
        parser=parser,
        rubric=vf.Rubric(funcs=[parser.get_format_reward_func()], parser=parser),
    )
