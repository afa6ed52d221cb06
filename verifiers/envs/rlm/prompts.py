"""The texts that `RLMEnv` gives to models: the scaffold of the root model, and the system message of sub-LLMs."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any, Literal

from verifiers.errors import ConfigError
from verifiers.types import Tool, UserMessage

ReplLanguage = Literal["bash", "python"]
Verbosity = Literal["light", "medium", "heavy"]

OPENING, CLOSING = "<SCAFFOLDING>", "</SCAFFOLDING>"

PYTHON_BASE = """\
You can run Python code with the tool `call_python_repl`. The data of your task, if there is any, are files in the \
working directory. Variables keep their values between calls.

Your answer is the value of `answer["content"]`; the dict `answer` exists already. When the content is final, \
set `answer["ready"] = True`: this ends the task."""

BASH_BASE = """\
You can run Bash code with the tool `call_bash_repl`. The data of your task, if there is any, are files in the working \
directory. Each call starts a new shell; only the current directory and the two variables of the answer are kept.

Your answer is the value of the variable `ANSWER_CONTENT`. When the content is final, run `export ANSWER_READY=1`: \
this ends the task."""

ROOT_ADVICE: dict[str, str] = {
    "light": "With `llm_batch` your code can give questions to fresh copies of you. Use it where it helps.",
    "medium": (
        "With `llm_batch` your code can give questions to fresh copies of you. Use it where it helps, and put "
        "independent questions into one call, which answers them at the same time."
    ),
    "heavy": """\
## Working with `llm_batch`

With `llm_batch` your code can give questions to fresh copies of you. A copy sees only its prompt: neither this \
conversation, nor your files, nor the other prompts.

- Look at the size and the shape of the data first. Do not print long files; read the parts that you need.
- Cut long data into pieces and ask one question per piece. Put the text of the piece into the prompt.
- Put independent questions into one call, which answers them at the same time.
- State in each prompt what the answer must contain and in which form.
- Check the answers with code, ask again where they disagree, and combine them in a last step.
- Do counting, searching and arithmetic with code; use copies for reading and judging.""",
}
SUB_SYSTEM_MESSAGES: dict[str, str] = {
    "light": "You have {num_turns} turns for your task.",
    "medium": (
        "You have {num_turns} turns for your task. Think before you use a tool, and answer the question itself: your "
        "answer is read by a program."
    ),
    "heavy": """\
You have {num_turns} turns for your task. One turn is one response of yours, with or without tool calls.

- Read the task and decide what you need to know before you use a tool.
- Call tools in parallel where their results do not depend on each other.
- Leave the last turn for the answer. A response without a tool call is your answer.
- Only the answer is passed on. Make it complete, and put it inside \\boxed{{}} if it is short.""",
}
LAST_REQUEST = "No further tool calls are possible. Give your final answer now, from what you know, inside \\boxed{}."
"""The user message that ends the tool loop of a sub-LLM."""


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise ConfigError, a ValueError, unless the value is one of the choices."""
    if value not in choices:
        *others, last = map(repr, choices)
        raise ConfigError(f"Unsupported {name} {value!r}. Expected {', '.join(others)} or {last}.")


class RLMPromptBuilder:
    """Builds the texts from the options of an `RLMEnv`."""

    PYTHON_BASE_PROMPT = PYTHON_BASE
    BASH_BASE_PROMPT = BASH_BASE
    SUB_LLM_ROOT_INSTRUCTION_STORE = ROOT_ADVICE
    SUB_LLM_SYSTEM_PROMPT_STORE = SUB_SYSTEM_MESSAGES

    def __init__(
        self,
        *,
        repl_language: ReplLanguage,
        root_prompt_verbosity: Verbosity,
        sub_prompt_verbosity: Verbosity,
        custom_system_prompt: str | None,
        pip_install_packages: str,
        root_max_completion_tokens: int | None,
        sub_max_completion_tokens: int | None,
        sub_llm_max_turns: int,
        root_tool_defs: list[Tool],
        sub_tool_defs: list[Tool],
        enable_sub_llms: bool = True,
        enable_summarization: bool = False,
        min_turns_in_context: int = 3,
        max_turns_in_context: int | None = None,
    ) -> None:
        check_choice("repl_language", repl_language, ("bash", "python"))
        check_choice("root_prompt_verbosity", root_prompt_verbosity, tuple(ROOT_ADVICE))
        check_choice("sub_prompt_verbosity", sub_prompt_verbosity, tuple(SUB_SYSTEM_MESSAGES))
        self.repl_language = repl_language
        self.root_prompt_verbosity = root_prompt_verbosity
        self.sub_prompt_verbosity = sub_prompt_verbosity
        self.custom_system_prompt = custom_system_prompt
        self.pip_install_packages = pip_install_packages
        self.root_max_completion_tokens = root_max_completion_tokens
        self.sub_max_completion_tokens = sub_max_completion_tokens
        self.sub_llm_max_turns = sub_llm_max_turns
        self.root_tool_defs = root_tool_defs
        self.sub_tool_defs = sub_tool_defs
        self.enable_sub_llms = enable_sub_llms
        self.enable_summarization = enable_summarization
        self.min_turns_in_context = min_turns_in_context
        self.max_turns_in_context = max_turns_in_context

    def build_system_prompt(self) -> str:
        """Return the scaffold: all parts that apply, between the two marks."""
        parts = [
            self.build_base_system_prompt(),
            self.build_packages_documentation(),
            self.build_sub_llm_documentation(),
            self.build_root_tools_documentation(),
            self.build_sub_tools_documentation(),
            self.build_root_budget_note(),
            self.build_sub_budget_note(),
            self.build_messages_note(),
            self.build_turn_limit_note(),
        ]
        text = "\n\n".join(part.strip("\n") for part in parts if part)
        return f"{OPENING}\n{text}\n{CLOSING}\n\n"

    def build_base_system_prompt(self) -> str:
        """Return the author's text, or how the REPL and the answer work."""
        if self.custom_system_prompt is not None:
            return self.custom_system_prompt
        is_bash = self.repl_language == "bash"
        return self.BASH_BASE_PROMPT if is_bash else self.PYTHON_BASE_PROMPT

    def build_packages_documentation(self) -> str:
        """Return the list of installed packages, for Python only."""
        packages = [word for word in self.pip_install_packages.split() if not word.startswith("-")]
        if self.repl_language != "python" or not packages:
            return ""
        lines = "\n".join(f"- `{package}`" for package in packages)
        return (
            f"## Packages\n\nThese packages are installed beside the standard library:\n\n{lines}"
        )

    def build_sub_llm_documentation(self) -> str:
        """Return advice on `llm_batch`."""
        if not self.enable_sub_llms:
            return ""
        return self.SUB_LLM_ROOT_INSTRUCTION_STORE[self.root_prompt_verbosity]

    def build_root_tools_documentation(self) -> str:
        """Return the tools that code can call."""
        if not self.root_tool_defs:
            return ""
        is_bash = self.repl_language == "bash"
        kind = "commands of the shell" if is_bash else "functions in the REPL"
        lines = [
            "## Tools of the REPL",
            "",
            f"These tools are {kind}. They run outside the sandbox.",
        ]
        self._format_tool_docs_into(lines, self.root_tool_defs)
        if is_bash:
            lines += [
                "",
                "Arguments are read as JSON where they are valid JSON: `tool 3 text`. For lists, objects and named "
                'arguments: `tool --json \'{"args": […], "kwargs": {…}}\'`, or the same JSON on stdin.',
            ]
            if self.enable_sub_llms:
                lines.append(
                    "`llm_batch` takes its prompts as arguments, as lines of stdin (`llm_batch --lines < file`), or "
                    'as `llm_batch --json \'{"prompts": ["…"]}\'`. It prints a JSON list.'
                )
        return "\n".join(lines)

    def build_sub_tools_documentation(self) -> str:
        """Return the tools that sub-LLMs have."""
        if not self.enable_sub_llms or not self.sub_tool_defs:
            return ""
        lines = [
            "## Tools of the copies",
            "",
            "The copies behind `llm_batch` call these tools by themselves. Describe the task; you cannot call them.",
        ]
        self._format_tool_docs_into(lines, self.sub_tool_defs)
        return "\n".join(lines)

    def build_root_budget_note(self) -> str:
        """Return the token budget of the root model."""
        if self.root_max_completion_tokens is None:
            return ""
        return f"You may write {self.root_max_completion_tokens} tokens in total. The task ends when they are used."

    def build_sub_budget_note(self) -> str:
        """Return the token budget of all sub-LLMs."""
        if self.sub_max_completion_tokens is None or not self.enable_sub_llms:
            return ""
        return (
            f"All calls of `llm_batch` together may write {self.sub_max_completion_tokens} tokens."
        )

    def build_messages_note(self) -> str:
        """Return where code finds the conversation."""
        example = (
            "tail -n 1 .messages"
            if self.repl_language == "bash"
            else "[json.loads(line) for line in open('.messages')]"
        )
        return (
            "The file `.messages` in the first working directory holds this conversation as JSONL, one message per "
            f"line (`{example}`). It is written again before each call."
        )

    def build_turn_limit_note(self) -> str:
        """Return the maximum number of turns in the context, and how to drop turns."""
        notes = []
        if (limit := self.max_turns_in_context) is not None:
            notes.append(
                f"The task ends when {limit} turns are in your context. A turn is one response of yours with its "
                "tool results."
            )
        if self.enable_summarization:
            notes.append(
                "`summarize_turns` replaces the oldest turns by a summary; the last "
                f"{self.min_turns_in_context} turns always stay."
            )
        return " ".join(notes)

    def build_sub_llm_system_prompt(self) -> str:
        """Return the system message of a sub-LLM."""
        text = self.SUB_LLM_SYSTEM_PROMPT_STORE[self.sub_prompt_verbosity]
        return text.format(num_turns=self.sub_llm_max_turns)

    @staticmethod
    def _format_tool_docs_into(lines: list[str], tool_defs: list[Tool]) -> None:
        for tool in tool_defs:
            lines += ["", f"### `{tool.name}`"]
            if tool.description:
                lines.append(tool.description)
            properties: Any = tool.parameters.get("properties") or {}
            if properties:
                lines += ["", "Parameters:"]
            for name, schema in properties.items():
                about = f": {schema['description']}" if schema.get("description") else ""
                lines.append(f"- `{name}` ({_type_of(schema)}){about}")

    @staticmethod
    def inject_scaffolding_into_messages(messages: MutableSequence[Any], scaffold: str) -> None:
        """Put the scaffold before the text of the first user message, in place. Has no effect a second time."""
        first = next((m for m in messages if m.get("role") == "user"), None)
        if first is None:
            messages.append(UserMessage.of({"role": "user", "content": scaffold}))
            return
        content = first.get("content") or ""
        if isinstance(content, str):
            if not content.startswith(OPENING):
                first["content"] = scaffold + content
            return
        begins = content[0].get("text") if content else None
        if not str(begins or "").startswith(OPENING):
            first["content"] = [{"type": "text", "text": scaffold}, *content]


def _type_of(schema: Any) -> str:
    options = schema.get("anyOf") or [schema]
    return " or ".join(str(option.get("type", "any")) for option in options)


__all__ = ["LAST_REQUEST", "RLMPromptBuilder", "ReplLanguage", "Verbosity", "check_choice"]
