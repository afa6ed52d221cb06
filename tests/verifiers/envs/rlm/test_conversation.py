"""Scaffold texts, and `summarize_turns`: which turns leave the context, and what stays of them."""

from typing import Any

import pytest
from rlm_rollouts import OK, code, done, make, play, results, with_worker

import verifiers as vf
from verifiers.envs.experimental.rlm_env import RLMPromptBuilder
from verifiers.testing import call

SCAFFOLD = "<SCAFFOLDING>\nS\n</SCAFFOLDING>\n\n"


def lookup(key: str, n: int = 3) -> str:
    """Look a key up.

    Args:
        key: The key.
        n: How many.
    """
    return key * n


def shout(q: str) -> str:
    """Say it louder."""
    return q


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([("user", "a"), ("user", "b")], [("user", SCAFFOLD + "a"), ("user", "b")]),
        ([("system", "s")], [("system", "s"), ("user", SCAFFOLD)]),
        ([], [("user", SCAFFOLD)]),
        ([("user", SCAFFOLD + "a")], [("user", SCAFFOLD + "a")]),
        (
            [("user", [{"type": "text", "text": "t"}])],
            [("user", [{"type": "text", "text": SCAFFOLD}, {"type": "text", "text": "t"}])],
        ),
    ],
)
def test_where_the_scaffold_is_put(messages: Any, expected: Any):
    own: list[Any] = [{"role": role, "content": content} for role, content in messages]
    RLMPromptBuilder.inject_scaffolding_into_messages(own, SCAFFOLD)
    assert [(m["role"], m["content"]) for m in own] == expected
    RLMPromptBuilder.inject_scaffolding_into_messages(own, SCAFFOLD)
    assert [(m["role"], m["content"]) for m in own] == expected


def positions(text: str, *parts: str) -> list[int]:
    found = [text.find(part) for part in parts]
    assert -1 not in found, parts[found.index(-1)]
    return found


@pytest.mark.parametrize("language", ["bash", "python"])
def test_the_scaffold_has_its_parts_in_order(language: Any):
    env = make(
        repl_language=language,
        root_tools=[lookup],
        sub_tools=[shout],
        enable_summarization=True,
        root_max_completion_tokens=100,
        sub_max_completion_tokens=200,
        max_turns_in_context=9,
    )
    text = env.prompt_builder.build_system_prompt()
    base = "ANSWER_READY=1" if language == "bash" else 'answer["ready"] = True'
    parts = [
        "<SCAFFOLDING>\n", base, "`llm_batch`", "### `lookup`", "`key` (string): The key.", "### `shout`",
        "100 tokens", "200 tokens", ".messages", "9 turns", "summarize_turns", "\n</SCAFFOLDING>",
    ]  # fmt: skip
    found = positions(text, *parts)
    assert found == sorted(found)
    assert ("--json" in text) is (language == "bash")


def test_packages_are_listed_for_python_only():
    for language, is_listed in (("python", True), ("bash", False)):
        env = make(repl_language=language, pip_install_packages="pytest -q")
        text = env.prompt_builder.build_system_prompt()
        assert ("- `pytest`" in text) is is_listed
        assert "`-q`" not in text


def test_verbosity_changes_the_advice_and_the_system_message():
    builders = [
        make(root_prompt_verbosity=one, sub_prompt_verbosity=one).prompt_builder
        for one in ("light", "medium", "heavy")
    ]
    lengths = [len(builder.build_system_prompt()) for builder in builders]
    assert lengths == sorted(set(lengths))
    systems = [builder.build_sub_llm_system_prompt() for builder in builders]
    assert [len(text) for text in systems] == sorted({len(text) for text in systems})
    assert all("5 turns" in text for text in systems)


def test_without_sub_llms_the_scaffold_is_silent_about_them():
    env = make(enable_sub_llms=False, sub_tools=[shout], sub_max_completion_tokens=7)
    text = env.prompt_builder.build_system_prompt()
    assert "llm_batch" not in text
    assert "shout" not in text


# ----------------------------------------------------------------------------------------------------- summaries


async def summarised(*replies: Any, **options: Any) -> tuple[vf.State, Any]:
    """Play a rollout in which execution n prints `o<n>`."""
    env = make(**{"enable_summarization": True, "min_turns_in_context": 1, **options})
    outputs = [{**OK, "stdout": f"o{n}"} for n in range(9)]
    executed = sum(reply.name == "call_python_repl" for reply in replies)
    with_worker(env, *outputs[: executed - 1], {**OK, "answer": {"ready": True, "content": "42"}})
    return await play(env, list(replies))


def drop(n: int, summary: str) -> Any:
    return call("summarize_turns", n_turns=n, summary=summary)


def shown(prompt: Any) -> list[str]:
    return [m.get("content") or "-" for m in prompt[1:]]


async def test_a_summary_replaces_the_oldest_turns_in_the_next_prompt():
    state, client = await summarised(
        *code("0", "1"), drop(1, "first"), *code("2"), drop(-1, "more"), done()
    )
    assert shown(client.prompts[2]) == ["-", "o0", "-", "o1"]
    one = "[Turns 1-1] first"
    assert shown(client.prompts[3]) == [f"<SUMMARY>\n{one}\n</SUMMARY>\n\n", "o1", "-", one]
    both = f"{one}\n[Turns 2-4] more"
    assert shown(client.prompts[5]) == [f"<SUMMARY>\n{both}\n</SUMMARY>\n\n", both]
    assert client.prompts[5][1]["tool_calls"][0]["name"] == "summarize_turns"
    assert results(state) == ["o0", "o1", one, "o2", both, "(no output)"]
    assert [m["role"] for m in state["completion"]] == ["assistant", "tool"] * 6
    assert (state["completion"][2].get("content") or "") == ""
    assert state["summarize_count"] == 2
    assert state["summarize_total_turns_dropped"] == 4
    assert state["summarize_mean_turns_per_call"] == 2.0
    assert state["summarize_mean_remaining_turns"] == 1.5
    assert state["summarize_mean_turns_between"] == 2.0
    assert state["summarize_summary_length_chars"] == len(both)
    chars = len("o0" + "o1" + "o2" + one) + len(f"<SUMMARY>\n{one}\n</SUMMARY>\n\n")
    assert state["summarize_total_chars_dropped"] == chars
    assert state["summarize_char_compression_ratio"] == len(both) / chars


@pytest.mark.parametrize("n", [0, -2, 3, 50])
async def test_impossible_summaries_are_refused(n: int):
    state, client = await summarised(*code("0", "1"), drop(n, "x"), done())
    assert results(state)[2].startswith(f"No turns were dropped: n_turns={n}.")
    assert "at most 2" in results(state)[2]
    assert (state["summarize_rejected_count"], state["summarize_count"]) == (1, 0)
    assert len(client.prompts[3]) == 7


async def test_the_minimum_of_turns_stays():
    state, _ = await summarised(*code("0", "1"), drop(-1, "x"), done(), min_turns_in_context=3)
    assert state["summarize_rejected_count"] == 1
    state, client = await summarised(*code("0", "1"), drop(-1, "x"), done(), min_turns_in_context=2)
    assert results(state)[2] == "[Turns 1-1] x"
    assert len(client.prompts[3]) == 5


async def test_summaries_keep_a_rollout_below_the_limit_of_turns():
    replies = [*code("0", "1"), drop(2, "x"), *code("2"), done()]
    state, _ = await summarised(*replies, max_turns_in_context=4)
    assert (state["final_answer"], state["max_turns_in_context_stopped"]) == ("42", False)
    state, _ = await summarised(*code("0", "1", "2", "3"), done(), max_turns_in_context=4)
    assert (state["final_answer"], state["max_turns_in_context_stopped"]) == ("so far", True)


async def test_the_history_keeps_dropped_turns():
    env = make(enable_summarization=True, min_turns_in_context=1)
    with_worker(env, {**OK, "stdout": "o0"}, {**OK, "answer": {"ready": True, "content": "1"}})
    state, _ = await play(env, [*code("0"), drop(1, "x"), done()])
    history = env._build_message_history(state)
    assert [m["role"] for m in history] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert history[2]["content"] == "o0"
