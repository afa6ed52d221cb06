"""Differences between 0.1.14 and this package that are deliberate, each with its row of docs/migrating.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class Explained(NamedTuple):
    """Some lines of `compare.differences`, and the beginning of the row that explains them."""

    row: str
    line: str
    """Pattern of `path: 0.1.14 → here`, without the positions in lists."""
    cases: str = ".*"
    """Pattern of the names of the cases."""


_SAVED = r"(outputs|lines)\[\]\."
_METADATA = r"(saved_)?metadata\."
_SCORES = rf"({_SAVED}(reward|failed|metrics\.failed|one|metrics\.one)|{_METADATA}avg_(reward|metrics\.\w+)): "
_USAGE = rf"({_SAVED}token_usage|{_METADATA}usage)\.\w*input_tokens: "

EXPLAINED = [
    Explained(
        "keys of outputs, result lines and metadata",
        rf"{_SAVED}(errors|input_key|rollout_index|task|score_details|judge_response"
        r"|error\.(traceback|where|voids_reward)): '\(missing\)' → ",
    ),
    Explained(
        "keys of outputs, result lines and metadata",
        rf"{_METADATA}(avg_reward_error_free|format_version|num_\w+|provenance|reward_ci95|reward_stderr|date): "
        r"'\(missing\)' → ",
    ),
    Explained("`pass_at_k` with one rollout", rf"{_METADATA}pass_(at|all)_k\.1: '\(missing\)' → "),
    Explained("fields of messages, tools and content parts", r".*: None → '\(missing\)'"),
    Explained("stop conditions of every environment", r"environment\.stop_conditions: "),
    Explained(
        "exceptions",
        rf"({_SAVED}(error\.error_chain_repr|error\.error_chain_str|error_chain|long_error_chain)|not_built\.text): ",
    ),
    Explained(
        "the class name of a failed model call",
        rf"{_SAVED}error\.error: 'ModelError' → '(EndpointUnavailable|BadRequestError)'",
    ),
    Explained("the time of a failed model call", rf"{_SAVED}timing\.model\.spans: \[\] → "),
    Explained(
        "a `SandboxError`, `TunnelError`, other `InfraError`, or an endpoint",
        _SCORES,
        "endpoint_breaks|sandbox_is_lost|setup_fails|one_of_two_fails",
    ),
    Explained(
        "a `SandboxError`, `TunnelError`, other `InfraError`, or an endpoint",
        r".*",
        "rollout_is_tried_again",
    ),
    Explained(
        "an exception in `env_response` or `setup_state`",
        r"(run_ended|outputs|lines|metadata|saved_metadata): ",
        "environment_crashes",
    ),
    Explained(
        "tool call with broken JSON",
        rf"({_SAVED}completion\[\]\.content|requests\[\]\.messages\[\]\.content): ",
        "broken_json|arguments_that_are_no_object|unknown_tool|stateful_broken_calls",
    ),
    Explained(
        "tool call with broken JSON",
        _USAGE,
        "broken_json|arguments_that_are_no_object|unknown_tool|stateful_broken_calls",
    ),
    Explained(
        "tool call with empty arguments",
        rf"({_SAVED}completion\[\]\.content|requests\[\]\.messages\[\]\.content|{_USAGE[:-2]}): ",
        "empty_arguments",
    ),
    Explained(
        "a tool with a parameter of type `dict`",
        r"(not_built|environment|outputs|lines|metadata|saved_metadata|requests): ",
        "tool_with_a_dict",
    ),
    Explained(
        "the question that a judge receives",
        r"requests\[\]\.messages\[\]\.content: 'Rate:  \|",
        "judge_with_its_own_prompt",
    ),
    Explained(
        "the default prompt of `JudgeRubric`",
        rf"(requests\[\]\.messages\[\]\.content|{_SAVED}judge_response\..*): ",
        "judge|judge_in_a_group",
    ),
    Explained(
        "columns of a dataset with other names", r".*(doubled|extra_column): ", "extra_columns"
    ),
    Explained(
        "`sampling_args` of an environment in an `EnvGroup`",
        r"requests\[\]\.temperature: '\(missing\)' → ",
        "group_with_equal_names",
    ),
    Explained(
        "weights of an `EnvGroup`'s rubric",
        r"environment\.reward_weights: \[\] → ",
        "group_.*|stateful_tools_in_a_group",
    ),
    Explained("two reward functions of one name", r".*\bscore(_2)?: ", "one_name_twice"),
    Explained(
        "a row with a mistake", r"(not_built|environment|run_ended): ", "row_without_question"
    ),
    Explained(
        "a state column with an object that JSON does not have",
        rf"{_SAVED}usage: ",
        "completion_token_limit",
    ),
    Explained('`state["stop_condition"]`', rf"{_SAVED}seen\.stop_condition: ", "state_in_setup"),
    Explained(
        "rewards and advantages with several rubrics",
        r"probe\.advantages\[\]: 0\.0 → ",
        "called_by_a_trainer",
    ),
    Explained(
        "a rollout that an overridden `is_completed` ends",
        rf"{_SAVED}(is_completed: False → True|stop_condition: None → 'is_completed')",
        "own_is_completed",
    ),
    Explained(
        "rows with a plain string `task`",
        r"(run_ended|outputs|lines|metadata|saved_metadata|requests): ",
        "task_as_word",
    ),
    Explained(
        "`XMLParser.parse_answer` of messages, with alternative names",
        r"probe\.alternative\[\]: None → ",
        "xml_parser_with_alternatives",
    ),
]


def explanation_of(case: str, line: str) -> Explained | None:
    """Return the entry that explains a difference of a case, or None."""
    general = re.sub(r"\[\d+\]", "[]", line.partition(": ")[0]) + ": " + line.partition(": ")[2]
    return next(
        (
            one
            for one in EXPLAINED
            if re.fullmatch(one.cases, case) and re.match(one.line, general, re.DOTALL)
        ),
        None,
    )


def rows_of(page: str) -> Iterable[str]:
    """Return the first cells of all tables of a page."""
    return [
        line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line[:2] == "| "
    ]
