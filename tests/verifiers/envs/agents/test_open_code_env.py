"""`OpenCodeEnv` and `OpenCodeQAEnv`: a program that does what OpenCode does, in a real sandbox without network."""

import json
import subprocess
from types import SimpleNamespace
from typing import Any
from unittest import mock

import datasets
import pytest
from open_code_sandbox import ROWS, SMALL, WithProgram

import verifiers as vf
from verifiers.envs.experimental.opencode_env import (
    OPENCODE_TOOLS,
    OpenCodeEnv,
    OpenCodeMonitorRubric,
)
from verifiers.envs.experimental.opencode_qa_env import OpenCodeQAEnv
from verifiers.testing import ScriptedClient, call


class Played(WithProgram, OpenCodeEnv):
    async def post_rollout(self, state: vf.State) -> None:
        await super().post_rollout(state)
        state["written"] = await self.read_file(state["sandbox_id"], "/app/answer.txt")


def config_of(run_command: str, **variables: str) -> dict[str, Any]:
    """The configuration as the shell of a sandbox writes it, without the other effects of the command."""
    head, _, rest = run_command.partition("export XDG_CONFIG_HOME")
    _, _, rest = rest.partition("opencode.json << EOFCONFIG\n")
    text, _, _ = rest.partition("\nEOFCONFIG\n")
    names = head[head.rindex('case "$OPENAI_MODEL"') :]
    env = {"PATH": "/usr/bin:/bin", "OPENAI_BASE_URL": "http://host/v1", **variables}
    done = subprocess.run(
        ["sh", "-c", f"{names}\ncat << EOFCONFIG\n{text}\nEOFCONFIG\n"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


# ---------------------------------------------------------------------------------------------------- whole rollouts


async def test_opencode_works_on_a_row_and_its_model_calls_are_the_turns() -> None:
    def is_written(state: vf.State, answer: str) -> float:
        return float(state["written"].strip() == answer)

    client = ScriptedClient([call("Bash", command="echo 42 > answer.txt; ls"), "Done."])
    async with Played(
        ROWS,
        system_prompt="Be brief.",
        task_system_prompt="Be right.",
        include_task_system_prompt=True,
        rubric=vf.Rubric(funcs=[is_written]),
        environment_vars={"OPENAI_API_KEY": "intercepted"},
        **SMALL,
    ) as env:
        results = await env.evaluate(
            client, "model-1", state_columns=["agent_logs", "trajectory", "_last_request_headers"]
        )

    [output] = results["outputs"]
    assert (output["error"], output["stop_condition"]) == (None, "agent_completed")
    assert output["reward"] == 1.0
    assert output["agent_logs"] == "offers bash\nsays Done."
    roles = [(message["role"], message["content"]) for message in output["prompt"]]
    assert roles == [("system", "Be brief.\nBe right."), ("user", ROWS[0]["question"])]
    assert [message["role"] for message in output["completion"]] == [
        "assistant",
        "tool",
        "assistant",
    ]
    metrics = output["metrics"]
    assert (metrics["total_tool_calls"], metrics["bash_calls"], metrics["edit_calls"]) == (1, 1, 0)
    assert (metrics["unique_tools_used"], metrics["has_tool_calls"]) == (1.0, 1.0)
    # Each turn continues the one before: the stored response is what OpenCode sends back.
    first, second = output["trajectory"]
    assert second["prompt"][: len(first["prompt"]) + 1] == [*first["prompt"], *first["completion"]]
    assert [tool.name for tool in client.requests[0].tools or []] == ["bash"]
    assert [request.model for request in client.requests] == ["model-1"] * 2


async def test_a_sandbox_without_opencode_and_network_is_an_error_that_says_so() -> None:
    async with OpenCodeEnv(ROWS, install_command="false", **SMALL) as env:
        env.run_command = env.run_command.replace("sleep 2", "true")
        results = await env.evaluate(ScriptedClient(), "m")
    [output] = results["outputs"]
    assert output["error"]["error"] == "AgentError"
    assert "OpenCode could not be installed" in output["error"]["error_chain_repr"]


class DeepDive(WithProgram, OpenCodeQAEnv):
    """Overrides as the public environment of this class does."""

    def __init__(self, **kwargs: Any) -> None:
        self.request_timeout_ms = 7_000
        super().__init__(**kwargs)

    def build_opencode_config(self, *args: Any, **kwargs: Any) -> str:
        config = json.loads(super().build_opencode_config(*args, **kwargs))
        [provider] = config["provider"]
        config["provider"][provider]["options"]["timeout"] = self.request_timeout_ms
        return json.dumps(config)

    async def build_env_vars(self, state: vf.State) -> dict[str, str]:
        return {**await super().build_env_vars(state), "OPENAI_MODEL": f"own/{state['model']}"}

    async def post_rollout(self, state: vf.State) -> None:
        await super().post_rollout(state)
        state["final_answer"] = await self.read_file(state["sandbox_id"], "/box/answer.txt")


async def test_questions_of_a_public_data_set_are_answered_in_a_file() -> None:
    def is_right(state: vf.State, answer: str) -> float:
        return float(state["final_answer"] == answer)

    public = datasets.Dataset.from_list(
        [
            {"problem": "6 times 7", "solution": "42", "solved": 0.5},
            {"problem": "1 + 1", "solution": "2", "solved": 0.99},
        ]
    )
    client = ScriptedClient([call("bash", command="printf 42 > answer.txt"), "Written."])
    with mock.patch("datasets.load_dataset", return_value=public) as load:
        async with DeepDive(
            rubric=vf.Rubric(funcs=[is_right]),
            dataset_name="org/sums",
            dataset_subset=None,
            dataset_split="train",
            question_key="problem",
            answer_key="solution",
            instruction_prompt="Answer in answer.txt. ",
            instruction_prompt_post=" = ?",
            difficulty_key="solved",
            max_avg_reward=0.9,
            asset_dir="/box/assets",
            agent_workdir="/box",
            **SMALL,
        ) as env:
            load.assert_not_called()  # the data set is loaded on first use
            results = await env.evaluate(client, "model-1", state_columns=["agent_logs"])
    load.assert_called_once_with("org/sums", None, split="train")
    [output] = results["outputs"]
    assert (output["error"], output["reward"]) == (None, 1.0)
    assert output["prompt"][-1]["content"] == "Answer in answer.txt. 6 times 7 = ?"
    assert config_of(env.run_command, OPENAI_MODEL="own/m")["provider"]["own"]["options"] == {
        "baseURL": "http://host/v1",
        "apiKey": "intercepted",
        "timeout": 7_000,
    }


# ------------------------------------------------------------------------------------------------ construction


@pytest.mark.parametrize("missing", ["question_key", "answer_key"])
def test_a_column_that_the_data_set_lacks_is_named(missing: str) -> None:
    public = datasets.Dataset.from_list([{"question": "q", "answer": "a"}])
    keys: Any = {missing: "nothing"}
    env = OpenCodeQAEnv(vf.Rubric(), "org/name", None, "train", **keys)
    with (
        mock.patch("datasets.load_dataset", return_value=public),
        pytest.raises(ValueError, match="'nothing' not found in dataset org/name"),
    ):
        env.get_dataset()


def test_a_difficulty_that_is_not_a_column_leaves_all_rows() -> None:
    public = datasets.Dataset.from_list([{"question": "q", "answer": "a", "more": 1}])
    env = OpenCodeQAEnv(vf.Rubric(), "n", "s", "t", difficulty_key="nothing", system_prompt=None)
    with mock.patch("datasets.load_dataset", return_value=public):
        [row] = env.get_dataset()
    assert (row["question"], row["answer"], row["more"]) == ("q", "a", 1)


def test_the_command_expands_to_the_configuration_of_the_options() -> None:
    env = OpenCodeEnv(
        ROWS,
        disabled_tools=["webfetch"],
        disable_compaction=False,
        enable_interleaved=False,
        provider_timeout_ms=5,
    )
    config = config_of(env.run_command, OPENAI_MODEL="qwen", OPENAI_API_KEY="se'cret")
    [(name, provider)] = config["provider"].items()
    assert (name, provider["options"]["timeout"]) == ("vllm", 5)
    assert provider["options"]["apiKey"] == "se'cret"
    assert provider["models"]["qwen"]["interleaved"] is False
    assert "compaction" not in config
    assert config["agent"]["build"] == {
        "prompt": "{file:/opencode/system.txt}",
        "tools": {"webfetch": False},
    }


def test_a_template_of_the_caller_receives_all_values() -> None:
    template = "{config_json}|{agent_workdir}|{prompt_path}|{logs_path}|{install_command}|${{X}}"
    env = OpenCodeEnv(
        ROWS,
        asset_dir="/as",
        agent_workdir="/wd",
        install_command="INSTALL",
        run_command_template=template,
        system_prompt=None,
    )
    config, *values = env.run_command.split("|")
    assert values == ["/wd", "/as/prompt.txt", "/as/logs.txt", "INSTALL", "${X}"]
    assert "prompt" not in json.loads(config)["agent"].get("build", {})
    assert env.remote_system_prompt_path == "/as/system.txt"
    assert [message["role"] for message in env.get_dataset()[0]["prompt"]] == ["user"]


def test_the_defaults_are_also_attributes_of_the_class() -> None:
    env = OpenCodeEnv(ROWS)
    assert (env.asset_dir, env.agent_workdir) == ("/opencode", "/app")
    assert env.disabled_tools == OpenCodeEnv.DEFAULT_DISABLED_TOOLS == ["question", "task"]
    assert env.provider_timeout_ms == OpenCodeEnv.DEFAULT_PROVIDER_TIMEOUT_MS == 3_600_000
    assert env.system_prompt == OpenCodeEnv.DEFAULT_SYSTEM_PROMPT
    assert env.get_dataset()[0]["prompt"][0]["content"] == env.system_prompt
    assert OpenCodeEnv.DEFAULT_INSTALL_COMMAND in env.run_command
    names = env.rubric._get_reward_func_names()
    own = ["total_tool_calls", "unique_tools_used", "has_tool_calls"]
    assert names[-16:] == [*own, *(f"{name}_calls" for name in OPENCODE_TOOLS)]


# ------------------------------------------------------------------------------------- hooks with plain values


async def test_web_search_is_enabled_unless_it_is_disabled() -> None:
    state = {"interception_base_url": "http://x/v1", "model": "m"}
    assert (await OpenCodeEnv(ROWS).build_env_vars(state))["OPENCODE_ENABLE_EXA"] == "1"  # type: ignore[arg-type]
    env = OpenCodeEnv(ROWS, disabled_tools=["websearch"])
    assert "OPENCODE_ENABLE_EXA" not in await env.build_env_vars(state)  # type: ignore[arg-type]


class Provider:
    """A caller's client of sandboxes, with the methods that the hooks use."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.commands: list[str] = []
        self.files: dict[str, str] = {}

    async def execute_command(
        self, sandbox_id: str, command: str, working_dir: str | None = None
    ) -> Any:
        self.commands.append(command)
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(exit_code=0, stdout="log\n", stderr="")

    async def upload_file(self, sandbox_id: str, remote_path: str, local_path: str) -> None:
        with open(local_path) as file:  # noqa: ASYNC230 - a small file
            self.files[remote_path] = file.read()


async def test_prompts_are_uploaded_and_logs_kept_with_any_client_and_a_plain_state() -> None:
    env = OpenCodeEnv(ROWS, system_prompt="Be brief.")
    env.sandbox_client = provider = Provider()
    state: Any = {"sandbox_id": "s1", "prompt": [{"role": "user", "content": "Do it."}]}
    await env.post_sandbox_setup(state)
    assert provider.commands == ["mkdir -p /opencode /app"]
    assert provider.files == {"/opencode/prompt.txt": "Do it.", "/opencode/system.txt": "Be brief."}
    await env.post_rollout(state)
    assert state["agent_logs"] == "log"


async def test_logs_that_cannot_be_read_do_not_fail_the_rollout(caplog: Any) -> None:
    env = OpenCodeEnv(ROWS)
    env.sandbox_client = Provider(RuntimeError("gone"))
    for state in ({"sandbox_id": "s1"}, {}):
        await env.post_rollout(state)  # type: ignore[arg-type]
        assert "agent_logs" not in state
    assert "could not be read: RuntimeError('gone')" in caplog.text


def response(**message: Any) -> vf.Response:
    return vf.Response(id="r", created=0, model="m", message=vf.ResponseMessage(**message))


async def test_a_response_is_stored_as_opencode_sends_it_back() -> None:
    calls = [
        vf.ToolCall(id="1", name="Bash", arguments='{"a": 1,  "ü": [1, 2]}'),
        vf.ToolCall(id="2", name="READ", arguments="{nope"),
    ]
    original = response(content=None, reasoning_content="", tool_calls=calls, finish_reason="stop")
    normalized = await OpenCodeEnv(ROWS).normalize_response(original)
    message = normalized.message
    assert [(c.name, c.arguments) for c in message.tool_calls or []] == [
        ("bash", '{"a":1,"ü":[1,2]}'),
        ("read", "{nope"),
    ]
    assert (message.content, message.reasoning_content, message.finish_reason) == ("", None, "stop")
    assert original.message.content is None  # the agent receives the original
    assert (original.message.tool_calls or [])[0].name == "Bash"


async def test_tool_metrics_count_dicts_and_typed_messages() -> None:
    rubric = OpenCodeMonitorRubric()
    calls = [{"id": "1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]
    typed = vf.AssistantMessage(tool_calls=[vf.ToolCall(id="2", name="other", arguments="{}")])
    completion = [{"role": "assistant", "content": "", "tool_calls": calls}, typed]
    assert await rubric.unique_tools_used(completion) == 2.0
    assert await rubric.has_tool_calls([]) == 0.0
