from pathlib import Path
from typing import Any, get_args

import pytest

import verifiers as vf
from verifiers import types


def test_messages_know_their_role() -> None:
    assert vf.UserMessage(content="a") == {"role": "user", "content": "a"}
    assert vf.SystemMessage(content="a").role == "system"
    assert vf.AssistantMessage() == {"role": "assistant"}
    assert vf.AssistantMessage().content is None
    assert vf.ToolMessage(tool_call_id="c", content="a")["role"] == "tool"


def test_a_tool_call_reads_in_either_shape() -> None:
    call = vf.ToolCall(id="c", name="f", arguments="{}")
    assert (call.name, call["function"]["name"], call["function"].arguments) == ("f", "f", "{}")
    assert call["type"] == "function"
    assert dict(call) == {"id": "c", "name": "f", "arguments": "{}"}


def test_content_parts_are_records() -> None:
    part = vf.ImageUrlContentPart(image_url={"url": "u"})  # type: ignore[arg-type]
    assert (part.image_url.url, part["type"]) == ("u", "image_url")
    audio = vf.InputAudioContentPart(input_audio={"data": "d", "format": "wav"})  # type: ignore[arg-type]
    assert audio.input_audio.format == "wav"


def results() -> vf.GenerateOutputs:
    outputs = [
        vf.RolloutOutput(prompt="p", completion="c", reward=1.0, metrics={"a": 1.0}, example_id=0),
        vf.RolloutOutput(prompt="p", completion="d", reward=0.0, metrics={"b": 2.0}, example_id=1),
    ]
    return vf.GenerateOutputs(outputs=outputs, metadata={"model": "m"})


def test_results_read_in_the_form_of_either_generation() -> None:
    found = results()
    assert (found["outputs"], found.metadata["model"]) == (found.outputs, "m")
    assert found.reward == found["reward"] == [1.0, 0.0]
    assert found.metrics == {"a": [1.0, 0.0], "b": [0.0, 2.0]}
    assert found.completion == ["c", "d"]
    assert found["outputs"][0].reward == 1.0


def test_results_are_shown_in_one_line() -> None:
    found = results()
    found["outputs"] *= 1000
    found["metadata"]["avg_reward"] = 0.5
    assert repr(found) == "GenerateOutputs(2000 rollouts, model='m', avg_reward=0.5)"


@pytest.mark.parametrize("name", ["rewards", "nothing"])
def test_a_column_that_does_not_exist_is_an_error(name: str) -> None:
    with pytest.raises(KeyError):
        results()[name]
    with pytest.raises(AttributeError):
        getattr(results(), name)


@pytest.mark.parametrize("name", ["ClientConfig", "EvalConfig", "ChatCompletion", "ModelResponse"])
def test_names_of_heavy_packages_are_resolved_when_used(name: str) -> None:
    assert getattr(types, name) is not None


def test_an_unknown_name_of_the_module_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = types.Nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"api_base_ur": "x"}, "no key 'api_base_ur'. Did you mean 'api_base_url'"),
        ({"timeout": 0}, "greater than 0"),
        ({"extra_headers": {"X": "a\r\nb"}}, "not a valid header"),
        ({"endpoint_configs": [{"endpoint_configs": [{}]}]}, "cannot include endpoint_configs"),
    ],
)
def test_a_wrong_client_configuration_says_what_is_wrong(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vf.ClientConfig(**config)


def test_a_response_reads_in_the_openai_shape_of_generation_a() -> None:
    message = vf.ResponseMessage(content="4", finish_reason="stop")
    response = vf.Response(id="r", created=1, model="m", message=message)
    assert response.choices[0].message.content == "4"
    assert response.choices[0]["finish_reason"] == "stop"
    assert response.choices[0].text == "4"
    assert response.choices[0].logprobs is None
    assert "choices" not in response  # a way of reading it: nothing more is stored


def test_an_endpoint_may_have_an_empty_list_of_endpoints() -> None:
    nested = {"api_base_url": "http://a", "endpoint_configs": []}
    [endpoint] = vf.ClientConfig(endpoint_configs=[nested]).endpoint_configs
    assert (endpoint.api_base_url, "endpoint_configs" in nested) == ("http://a", True)
    assert vf.ClientConfig(endpoint_configs=[]).endpoint_configs == []
    with pytest.raises(ValueError, match="cannot include endpoint_configs"):
        vf.ClientConfig(endpoint_configs=[{**nested, "endpoint_configs": [endpoint]}])


def test_a_system_message_from_a_file_is_verbatim(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("  Über dir.\n\n", encoding="utf-8")
    assert vf.SystemMessage.from_path(tmp_path / "prompt.txt").content == "  Über dir.\n\n"


def test_the_oldest_names_of_inputs_and_messages_work() -> None:
    """The forms in which public environments use them."""
    from verifiers.utils.message_utils import ChatCompletionMessage

    message = ChatCompletionMessage.model_validate({"role": "assistant", "content": "4"})
    assert message.content == "4"
    inputs = types.GenerateInputs(prompt=[[{"role": "user", "content": "2+2"}]], answer=["4"])
    assert inputs.model_dump(exclude_none=True).keys() == {"prompt", "answer"}
    assert types.ProcessedOutputs(prompt_ids=[[1]]).completion_ids == []
    assert get_args(types.FunctionParameters) == (str, object)
    assert vf.ChatMessage is vf.ChatCompletionMessageParam
    assert vf.ChatMessages == types.ChatMessages == list[dict[str, Any]]


def test_timing_of_generation_a_is_taken_and_reads_back() -> None:
    timing = vf.RolloutTiming(generation_ms=100.0, scoring_ms=50.0, total_ms=160.0)
    for read in (timing.__getitem__, lambda name: getattr(timing, name)):
        values = [read(name) for name in ("generation_ms", "scoring_ms", "total_ms")]
        assert values == pytest.approx([100.0, 50.0, 160.0], abs=1e-2)
    assert vf.RolloutTiming(generation_ms=100.0)["total_ms"] == pytest.approx(100.0, abs=1e-2)
    assert vf.RolloutTiming(total_ms=7.0)["total_ms"] == pytest.approx(7.0, abs=1e-2)


def test_results_contain_the_columns_of_generation_a() -> None:
    results = vf.GenerateOutputs(
        outputs=[vf.RolloutOutput(completion=[], reward=1.0, metrics={"m": 2.0})], metadata={}
    )
    for name in ("outputs", "metadata", "completion", "reward", "metrics", "state", "answer"):
        assert name in results
        assert results.get(name) == results[name]
    assert "nothing" not in results
    assert results.get("nothing", 3) == 3
    assert list(results) == ["outputs", "metadata"]


def test_parallel_lists_are_printed_and_made_into_a_dataset(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from verifiers.utils.eval_utils import make_dataset, print_results

    prompt = [{"role": "user", "content": "q"}]
    columns = {
        "prompt": [prompt, prompt],
        "completion": [[{"role": "assistant", "content": "a"}]] * 2,
        "reward": [1.0, 0.5],
        "metrics": {"m": [1.0, 3.0]},
        "example_id": [0, 1],
        "metadata": {"model": "m"},
    }
    assert make_dataset(columns)["reward"][:] == [1.0, 0.5]
    print_results(columns)
    assert "0.75" in capsys.readouterr().out
