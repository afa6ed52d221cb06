from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from verifiers import types


def test_messages_know_their_role() -> None:
    assert vf.UserMessage(content="a") == {"role": "user", "content": "a"}
    assert vf.SystemMessage(content="a").role == "system"
    assert vf.AssistantMessage() == {"role": "assistant"}
    assert vf.AssistantMessage().content is None
    assert vf.ToolMessage(tool_call_id="c", content="a")["role"] == "tool"


def test_a_system_message_can_be_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_text("Be brief.\n")
    assert vf.SystemMessage.from_path(tmp_path / "system.txt").content == "Be brief."


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
        ({"endpoint_configs": [{"endpoint_configs": [{}]}]}, "cannot contain endpoint_configs"),
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
