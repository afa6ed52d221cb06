import json
import time

import pytest

from verifiers.errors import ModelError, ToolCallError
from verifiers.runs.output import (
    context_tokens,
    encode_line,
    output_from_state,
)
from verifiers.state import State, StateUsageTracker
from verifiers.types import AssistantMessage, UserMessage

# What the published 0.1.14 writes for a rollout with one tool call, in its order.
KEYS_OF_0_1_14 = [
    "example_id",
    "prompt",
    "completion",
    "answer",
    "info",
    "reward",
    "error",
    "timing",
    "is_completed",
    "is_truncated",
    "stop_condition",
    "metrics",
    "tool_defs",
    "token_usage",
    "ok",
    "num_turns",
    "trajectory",
]


def test_keys_and_their_order_are_those_of_0_1_14_plus_ours(make_state):
    output = output_from_state(make_state(), ["trajectory"])
    ours = {"errors", "rollout_index", "input_key"}
    assert [key for key in output if key not in ours] == KEYS_OF_0_1_14
    assert ours < set(output)


def test_saved_messages_have_the_shape_of_0_1_14(make_state):
    saved = json.loads(encode_line(output_from_state(make_state(), ["trajectory"])))
    assert saved["prompt"] == [{"role": "user", "content": "2+2?"}]
    assert saved["completion"] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": ['{"id": "c0", "name": "add", "arguments": "{\\"a\\": 2}"}'],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "4"},
        {"role": "assistant", "content": "The answer is 4."},
    ]
    # Inside the trajectory calls stay objects, and fields that are None are left out.
    assert saved["trajectory"][0]["completion"] == [
        {"role": "assistant", "tool_calls": [{"id": "c0", "name": "add", "arguments": '{"a": 2}'}]}
    ]
    assert saved["trajectory"][0]["tokens"] is None
    assert saved["trajectory"][1]["response"]["message"] == {
        "role": "assistant",
        "content": "The answer is 4.",
        "finish_reason": "stop",
        "is_truncated": False,
    }
    assert saved["tool_defs"] == [
        {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
    ]


def test_timing_has_the_derived_figures(make_state):
    timing = output_from_state(make_state())["timing"]
    assert list(timing) == [
        "start_time",
        "setup",
        "generation",
        "scoring",
        "model",
        "env",
        "total",
        "overhead",
    ]
    assert timing["model"] == {"spans": [{"start": 101, "end": 104, "duration": 3}], "duration": 3}
    assert (timing["total"], timing["overhead"]) == (6, 1)
    assert timing == make_state().timing.model_dump()


def test_images_and_audio_are_kept(make_state):
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAA", "format": "wav"}},
    ]
    output = output_from_state(make_state(prompt=[UserMessage(content=parts)]))
    assert json.loads(encode_line(output))["prompt"] == [{"role": "user", "content": parts}]


def test_text_prompts_of_completion_environments_stay_text(make_state):
    output = output_from_state(make_state(prompt="once upon", completion=" a time"))
    assert (output["prompt"], output["completion"]) == ("once upon", " a time")


def test_messages_are_shared_and_not_copied(make_state):
    state = make_state()
    output = output_from_state(state)
    assert output["prompt"][0] is state["prompt"][0]
    assert output["completion"][2] is state["completion"][2]


def test_the_state_is_left_as_it_was(make_state):
    state = make_state()
    output_from_state(state, ["trajectory"])
    assert state["completion"][0]["content"] is None
    assert isinstance(state["completion"][0]["tool_calls"][0], dict)


def test_empty_answer_and_info_are_left_out_and_a_task_is_kept(make_state):
    output = output_from_state(make_state(answer="", info={}, task="gsm8k"))
    assert "answer" not in output
    assert "info" not in output
    assert output["task"] == "gsm8k"


def test_a_state_with_nothing_but_a_row_gives_a_complete_output():
    output = output_from_state(State.for_row({"prompt": [], "example_id": 0}))
    assert output == {
        "example_id": 0,
        "prompt": [],
        "completion": None,
        "reward": 0.0,
        "error": None,
        "timing": {},
        "is_completed": False,
        "is_truncated": False,
        "stop_condition": None,
        "metrics": {},
        "tool_defs": None,
        "errors": [],
    }


def test_an_error_is_saved_with_its_causes(make_state):
    error = ToolCallError("outer")
    error.__cause__ = ValueError("inner")
    output = output_from_state(make_state(error=error))
    assert output["error"] == {
        "error": "ToolCallError",
        "error_chain_repr": "ToolCallError('outer') -> ValueError('inner')",
        "error_chain_str": "ToolCallError -> ValueError",
        "traceback": output["error"]["traceback"],
    }
    assert "ValueError: inner" in output["error"]["traceback"]
    assert output["error_chain"] == "ToolCallError('outer') -> ValueError('inner')"
    assert output["long_error_chain"] == "ToolCallError -> ValueError"


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ({"error": "E", "error_chain_repr": "r", "error_chain_str": "s"}, "E"),
        ("text", "text"),
        (ModelError("m"), "ModelError"),
    ],
)
def test_errors_that_are_data_already_stay(make_state, error, name):
    assert output_from_state(make_state(error=error))["error"]["error"] == name


def test_reward_errors_of_scoring_are_kept(make_state):
    errors = [{"function": "ok", "type": "ZeroDivisionError", "message": "division by zero"}]
    assert output_from_state(make_state(reward_errors=errors))["errors"] == errors


def test_a_metric_never_overwrites_a_field(make_state):
    output = output_from_state(make_state(metrics={"reward": 5.0, "answer": 9.0, "speed": 2.0}))
    assert (output["reward"], output["answer"], output["speed"]) == (1.0, "4", 2.0)
    assert output["metrics"]["reward"] == 5.0


def test_a_state_column_replaces_the_copy_of_a_metric_of_that_name(make_state):
    state = make_state(solved=True, metrics={"solved": 1.0, "reward": 3.0}, reward=0.5)
    output = output_from_state(state, ["solved", "reward"])
    assert output["solved"] is True
    assert output["metrics"] == {"solved": 1.0, "reward": 3.0}
    assert output["reward"] == 0.5


def test_state_columns_are_added_and_missing_ones_are_none(make_state):
    output = output_from_state(
        make_state(score_sheet=[1, 2]), ["score_sheet", "absent", "client", "info"]
    )
    assert (output["score_sheet"], output["absent"], output["client"]) == ([1, 2], None, None)
    assert output["info"] == {"x": 1}


def test_live_objects_are_never_saved(make_state):
    assert output_from_state(make_state(client=object()), ["client"])["client"] is None


def test_openai_objects_in_a_completion_are_saved_as_messages(make_state):
    from openai.types.chat import ChatCompletionMessage

    message = ChatCompletionMessage(role="assistant", content="hi")
    assert output_from_state(make_state(completion=[message]))["completion"] == [
        {"role": "assistant", "content": "hi"}
    ]


# --- tokens; every expectation was observed from the published 0.1.14


def test_tokens_are_counted_from_the_tracker_and_the_last_context(make_state):
    assert output_from_state(make_state())["token_usage"] == {
        "input_tokens": 48.0,
        "output_tokens": 12.0,
        "final_output_tokens": 12,
        "final_input_tokens": 22,
    }


def test_tokens_are_counted_from_the_trajectory_without_a_tracker(make_state):
    usage = output_from_state(make_state(usage=None))["token_usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (48.0, 12.0)


def test_no_tokens_are_claimed_when_nothing_reported_any(make_state):
    assert "token_usage" not in output_from_state(
        make_state(usage=StateUsageTracker(), trajectory=[])
    )


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([(10, 5), (20, 7)], (12, 15)),
        ([(10, 5), (20, 7), (30, 2)], (14, 18)),
        ([(10, 5), (20, 7), (22, 4)], (16, 10)),
        ([(100, 50), (10, 5)], (55, 0)),
        ([(100, 50), None], (50, 100)),
        ([], (0, 0)),
    ],
)
def test_the_last_context_is_counted_as_0_1_14_counts_it(calls, expected):
    steps = [
        {
            "response": None
            if call is None
            else {"usage": {"prompt_tokens": call[0], "completion_tokens": call[1]}}
        }
        for call in calls
    ]
    found = context_tokens(steps)
    assert (found["final_output_tokens"], found["final_input_tokens"]) == expected


def test_an_output_costs_microseconds(make_state):
    state = make_state(
        completion=[AssistantMessage(content="x" * 300)], trajectory=make_state()["trajectory"][:1]
    )
    best_s = (
        min(_cpu_s(lambda: [output_from_state(state) for _ in range(500)]) for _ in range(5)) / 500
    )
    assert best_s < 60e-6  # 6 us were measured; the budget is 30 us on a quiet machine


def _cpu_s(call):
    started = time.process_time()
    call()
    return time.process_time() - started
