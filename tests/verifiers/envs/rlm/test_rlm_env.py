"""`RLMEnv` with a worker whose replies are written down: prompts, results, ends, limits, and state keys."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from rlm_rollouts import OK, QUESTION, READY, code, done, make, play, results, row, with_worker

import verifiers as vf
from verifiers.envs.experimental.rlm_env import (
    RLMCodeExecutionTimeout,
    RLMEnv,
    RLMSessionError,
    RLMWorkerError,
    RLMWorkerRecoveryError,
)
from verifiers.errors import ConfigError, OverlongPromptError
from verifiers.testing import ScriptedClient, call


def lookup(key: str, n: int = 3) -> str:
    """Look a key up.

    Args:
        key: The key.
        n: How many.
    """
    return key * n


# -------------------------------------------------------------------------------------------------- construction


@pytest.mark.parametrize("language", ["bash", "python"])
def test_the_model_has_its_tools_and_one_repl_tool(language: Any):
    env = make(repl_language=language, tools=[lookup], enable_summarization=True)
    names = ["lookup", f"call_{language}_repl", "summarize_turns"]
    assert [tool.name for tool in env.tool_defs or []] == names
    repl = (env.tool_defs or [])[1]
    assert repl.parameters["properties"] == {"code": {"title": "Code", "type": "string"}}
    assert repl.parameters["required"] == ["code"]
    assert [tool.__name__ for tool in env.standard_tools] == names


def test_bash_is_the_default_and_defaults_are_those_of_v0():
    env = RLMEnv(dataset=[row()])
    expected = {
        "repl_language": "bash",
        "max_turns": 50,
        "sub_llm_max_turns": 5,
        "max_output_length": 8192,
        "max_sub_llm_parallelism": 5,
        "context_warning_threshold": 0.8,
        "max_startup_wait_seconds": 120,
        "code_execution_timeout": 120,
        "sub_llm_timeout": 115,
        "min_turns_in_context": 3,
        "sandbox_docker_image": "python:3.11-slim",
        "sandbox_transfer_max_retries": 3,
        "custom_system_prompt": None,
        "system_prompt": None,
        "sub_model": None,
        "root_tool_names": ["llm_batch"],
        "active_rollouts": {},
    }
    assert {name: getattr(env, name) for name in expected} == expected
    assert make(code_execution_timeout=3).sub_llm_timeout == 1
    assert make(system_prompt="Do it.").custom_system_prompt == "Do it."


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repl_language": "ruby"}, "Unsupported repl_language 'ruby'"),
        ({"root_prompt_verbosity": "x"}, "Unsupported root_prompt_verbosity 'x'"),
        ({"sub_prompt_verbosity": "y"}, "Unsupported sub_prompt_verbosity 'y'"),
    ],
)
def test_unknown_choices_are_value_errors(options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        make(**options)


def test_two_functions_of_one_name_are_refused_and_one_function_counts_once():
    def other() -> str:
        return ""

    other.__name__ = "lookup"
    for option in ("tools", "root_tools", "sub_tools"):
        with pytest.raises(ValueError, match=r"collision in .*'lookup' is defined by both"):
            make(**{option: [lookup, other]})
    env = make(tools=[lookup, lookup], root_tools=[lookup, lookup], sub_tools=[lookup, lookup])
    assert env.root_tool_names == ["llm_batch", "lookup"]
    assert env.sub_tool_names == ["lookup"]
    assert [tool.name for tool in env.tool_defs or []] == ["lookup", "call_python_repl"]


def test_llm_batch_is_reserved_while_there_are_sub_llms():
    def llm_batch(prompts: list[str]) -> list[str]:
        return prompts

    with pytest.raises(ValueError, match="'llm_batch' is reserved"):
        make(root_tools=[llm_batch])
    assert make(root_tools=[llm_batch], enable_sub_llms=False).root_tool_names == ["llm_batch"]
    assert make(enable_sub_llms=False).root_tool_names == []


def test_options_without_effect_are_reported(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        make(max_turns=3, max_turns_in_context=5)
        make(enable_sub_llms=False, sub_model="small", sub_tools=[lookup])
    text = caplog.text
    assert "max_turns_in_context=5 has no effect" in text
    assert "sub_model has no effect" in text
    assert "sub_tools has no effect" in text


def test_old_names_are_mapped_with_a_warning_and_dead_ones_are_ignored():
    renamed = {
        "max_iterations": ("max_turns", 7),
        "sub_tool_max_turns": ("sub_llm_max_turns", 2),
        "docker_image": ("sandbox_docker_image", "python:3.12"),
        "cpu_cores": ("sandbox_cpu_cores", 2),
        "memory_gb": ("sandbox_memory_gb", 3),
        "disk_size_gb": ("sandbox_disk_size_gb", 4),
        "gpu_count": ("sandbox_gpu_count", 0),
        "timeout_minutes": ("sandbox_timeout_minutes", 9),
    }
    dead = {
        "execution_backend": "sandbox",
        "interception_url": "http://x",
        "interception_port": 1,
        "sub_llm_stagger_ms": 5,
        "expose_message_history": True,
        "filesystem_copy_max_bytes": 1,
        "context_dtype": "text",
    }
    with pytest.warns(DeprecationWarning, match="is called") as seen:
        env = RLMEnv(dataset=[row()], **{old: value for old, (_, value) in renamed.items()}, **dead)
    assert len(seen) == len(renamed)
    assert seen[0].filename == __file__
    for new, value in renamed.values():
        assert getattr(env, new) == value
    assert not hasattr(env, "execution_backend")


def test_missing_packages_fail_rollouts_and_not_the_construction(
    caplog: pytest.LogCaptureFixture,
):
    env = make(pip_install_packages="no-such-package-at-all")
    assert "no-such-package-at-all" in caplog.text
    assert "no-such-package-at-all" in env.prompt_builder.build_system_prompt()


# -------------------------------------------------------------------------------------------------------- prompts


async def test_the_scaffold_stands_before_the_first_user_message():
    env = make(system_prompt="Use the REPL.")
    with_worker(env, OK, READY)
    state, client = await play(env, code("1", "2"))
    first = client.prompts[0][0]["content"]
    assert first.startswith("<SCAFFOLDING>\nUse the REPL.\n")
    assert first.endswith(f"</SCAFFOLDING>\n\n{QUESTION}")
    assert state["raw_prompt"] == [{"role": "user", "content": QUESTION}]
    assert state["prompt"] == client.prompts[0]
    assert client.prompts[1][0] == client.prompts[0][0]
    assert state["input"]["prompt"] == state["prompt"]
    assert state["rlm_system_prompt"] in first


async def test_system_messages_of_the_row_stay():
    env = make()
    with_worker(env, READY)
    prompt = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    client = ScriptedClient([done()])
    state = await env.rollout({"prompt": prompt, "example_id": 0, "answer": ""}, client, "m")
    assert state["prompt"][0]["content"] == "S"
    assert state["prompt"][1]["content"].endswith("</SCAFFOLDING>\n\nQ")


async def test_the_rollout_ends_with_the_answer_and_its_tool_messages():
    env = make()
    payloads = with_worker(env, {**OK, "stdout": "hi\n", "stderr": "warn\n", "result": "7"}, READY)
    state, _ = await play(env, code("a", "b"))
    assert (state["stop_condition"], state["final_answer"]) == ("answer_ready", "42")
    assert results(state) == ["hi\nstderr:\nwarn\nOut[1]: 7", "(no output)"]
    assert [m["role"] for m in state["completion"]] == ["assistant", "tool"] * 2
    assert payloads == [{"code": "a", "seq": 1}, {"code": "b", "seq": 2}]
    assert len(state["final_env_response"]) == 1


async def test_all_calls_of_the_last_turn_are_answered():
    env = make()
    with_worker(env, {**OK, "stdout": "1"}, READY, {**OK, "stdout": "3"})
    state, _ = await play(env, [code("1", "2", "3")])
    assert results(state) == ["1", "(no output)", "3"]
    assert state["final_answer"] == "42"


async def test_an_empty_or_missing_content_is_an_empty_answer():
    for answer in ({"ready": True}, {"ready": True, "content": ""}):
        env = make()
        with_worker(env, {**OK, "answer": answer})
        assert (await play(env, code("1")))[0]["final_answer"] == ""


# -------------------------------------------------------------------------------------------------------- outputs


@pytest.mark.parametrize(
    ("language", "reply", "seen"),
    [
        ("python", {**OK, "stdout": "  a \n", "result": "1"}, "  a\nOut[1]: 1"),
        ("python", {**OK, "status": "error", "stdout": "o\n", "stderr": "e\n", "result": "T\n"}, "o\nstderr:\ne\nT"),
        ("python", OK, "(no output)"),
        ("python", "no json", "no json\nThe reply of the worker could not be read"),
        ("python", "", "The worker returned no output."),
        ("python", {**OK, "seq": 77}, "stale reply"),
        ("bash", {**OK, "stdout": "o\n", "stderr": "e\n"}, "o\ne\n"),
        ("bash", {**OK, "status": "error", "stdout": "o", "stderr": "e", "result": "T"}, "oe"),
        ("bash", {**OK, "stdout": "  x"}, "  x"),
        ("bash", OK, "(no output)"),
        ("bash", "no json", "no json"),
        ("bash", "", "The worker returned no output."),
        ("bash", {**OK, "seq": 77}, "stale reply"),
    ],
)  # fmt: skip
async def test_what_the_model_sees_of_a_reply(language: Any, reply: Any, seen: str):
    env = make(repl_language=language)
    with_worker(env, reply, READY)
    state, _ = await play(env, code("1", "2", language=language))
    first = results(state)[0]
    assert first == seen or (len(seen) > 10 and seen in first)
    assert state["error"] is None


async def test_long_output_is_cut_with_a_line_about_it():
    env = make(max_output_length=10)
    with_worker(env, {**OK, "stdout": "x" * 30 + "END"}, READY)
    state, _ = await play(env, code("1", "2"))
    assert results(state)[0] == "x" * 10 + "\n... [output cut after 10 characters]"


async def test_one_warning_when_the_context_is_nearly_full():
    for language, how in (("python", 'answer["ready"] = True'), ("bash", "export ANSWER_READY=1")):
        env = make(repl_language=language, max_seq_len=10)
        with_worker(env, OK, OK, READY)
        state, _ = await play(env, code("1", "2", "3", language=language))
        first, second, third = results(state)
        assert first.startswith("(no output)\n\n[CONTEXT LIMIT WARNING] ")
        assert how in first
        assert second == third == "(no output)"
        assert state["context_warning_sent"]


# --------------------------------------------------------------------------------------------------- other ends


async def test_a_reply_without_a_tool_call_leaves_no_final_answer():
    env = make()
    with_worker(env)
    state, _ = await play(env, ["The answer is 42."])
    assert state["stop_condition"] == "no_tools_called"
    assert "final_answer" not in state
    await env.post_rollout(state)
    assert state["final_answer"] == "so far"


async def test_max_turns_leaves_no_final_answer():
    env = make(max_turns=1)
    assert with_worker(env, OK) == []
    state, _ = await play(env, code("1", "2"))
    assert state["stop_condition"] == "max_turns_reached"
    assert "final_answer" not in state


async def test_the_root_budget_ends_the_rollout_with_the_answer_so_far():
    env = make(root_max_completion_tokens=5)
    with_worker(env, OK, OK)
    state, _ = await play(env, code("1", "2"))
    assert (state["final_answer"], state["stop_condition"]) == ("so far", "answer_ready")
    assert len(results(state)) == len(state["trajectory"]) == 1


async def test_the_limit_of_turns_in_context_ends_the_rollout():
    env = make(max_turns_in_context=2)
    with_worker(env, OK, OK, OK)
    state, _ = await play(env, code("1", "2", "3"))
    assert state["final_answer"] == "so far"
    assert len(results(state)) == 2
    assert state["max_turns_in_context_stopped"] is True


async def test_an_overlong_prompt_ends_the_rollout_with_the_answer_so_far():
    env = make()
    with_worker(env, OK)
    state, _ = await play(env, [*code("1"), OverlongPromptError("too long")])
    assert (state["stop_condition"], state["final_answer"]) == ("prompt_too_long", "so far")
    assert results(state) == ["(no output)"]


# ------------------------------------------------------------------------------------------------ slow code, failures


async def test_slow_code_restarts_the_repl_and_tells_the_model():
    env = make(code_execution_timeout=9)
    with_worker(env, RLMCodeExecutionTimeout("slow"), READY)

    async def recover(state: Any) -> bool:
        state["recovered"] = True
        return True

    env._recover_from_code_timeout = recover  # type: ignore[method-assign]
    state, _ = await play(env, code("1", "2"))
    assert state["recovered"]
    assert "longer than 9 seconds" in results(state)[0]
    assert "state is lost" in results(state)[0]
    assert state["repl_call_count"] == 2


async def test_a_repl_that_cannot_be_restarted_is_an_error_of_the_tool():
    async def recover(state: Any) -> bool:
        return False

    for options, is_over in (({}, False), ({"stop_errors": [RLMWorkerRecoveryError]}, True)):
        env = make(**options)
        with_worker(env, RLMCodeExecutionTimeout("slow"), READY)
        env._recover_from_code_timeout = recover  # type: ignore[method-assign]
        state, _ = await play(env, code("1", "2"))
        assert (state["error"] is not None) is is_over
        if is_over:
            assert isinstance(state["error"].__cause__, RLMWorkerRecoveryError)
        else:
            assert "could not be restarted" in results(state)[0]
            assert state["repl_call_count"] == 1


async def test_abort_on_code_timeout_raises_a_tool_error():
    env = make(abort_on_code_timeout=True)
    with_worker(env, RLMCodeExecutionTimeout("slow"), READY)
    state, _ = await play(env, code("1", "2"))
    assert results(state)[0] == "slow"
    env = make(abort_on_code_timeout=True, stop_errors=[vf.ToolCallError])
    with_worker(env, RLMCodeExecutionTimeout("slow"), READY)
    state, _ = await play(env, code("1", "2"))
    assert isinstance(state["error"], RLMCodeExecutionTimeout)
    assert "final_answer" not in state


@pytest.mark.parametrize(
    "error", [RLMWorkerError("dead"), RLMSessionError("dead"), RuntimeError("dead")]
)
async def test_other_errors_of_the_worker_are_results(error: Exception):
    env = make()
    with_worker(env, error, READY)
    state, _ = await play(env, code("1", "2"))
    assert results(state) == ["dead", "(no output)"]


def test_errors_have_the_classes_of_v0():
    from verifiers.envs.experimental import rlm_env

    for name in ("RLMSessionError", "RLMSetupError", "RLMWorkerError", "RLMSandboxCommandTimeout"):
        assert issubclass(getattr(rlm_env, name), vf.SandboxError)
    assert issubclass(RLMWorkerRecoveryError, RLMWorkerError)
    assert issubclass(RLMCodeExecutionTimeout, vf.ToolCallError)
    assert issubclass(rlm_env.SubLLMEmptyModelResponseError, vf.EmptyModelResponseError)
    assert rlm_env.RLMExecResult("x") == rlm_env.RLMExecResult("x", None, None)


# ----------------------------------------------------------------------------------------------------------- data


def contents(root: Path) -> dict[str, str]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_text() for path in files}


def folder_is_gone(state: Any) -> bool:
    return not Path(state["rlm_rollout_dir"]).exists()


async def files_of(env: RLMEnv, **info: Any) -> tuple[vf.State, dict[str, str]]:
    """The data of a rollout before they are uploaded."""
    with_worker(env, READY)
    found: dict[str, str] = {}

    async def look(state: Any) -> None:
        root = Path(state["rlm_fs_root"])
        found.update(contents(root))

    env._executor.prepare_filesystem = look  # type: ignore[method-assign]
    state, _ = await play(env, [done()], **info)
    return state, found


async def test_context_is_a_file_and_a_directory_is_copied_whole(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "sub" / "b").write_text("y")
    state, found = await files_of(make(), context_dir=str(tmp_path), context="unused")
    assert found == {"a.txt": "x", "sub/b": "y"}
    assert (state["rlm_fs_source"], state["rlm_fs_has_data"]) == (str(tmp_path), True)
    assert (await files_of(make(), context="text"))[1] == {"context.txt": "text"}
    assert (await files_of(make(), context=""))[1] == {"context.txt": ""}
    found = (await files_of(make(), context={"ä": [1]}))[1]
    assert json.loads(found["context.json"]) == {"ä": [1]}
    state, found = await files_of(make())
    assert (found, state["rlm_fs_source"], state["rlm_fs_has_data"]) == ({}, None, False)
    assert folder_is_gone(state)
    assert (await files_of(make(context_key="data"), data="d"))[1] == {"context.txt": "d"}
    found = (await files_of(make(context_dir_key="folder"), folder=str(tmp_path / "sub")))[1]
    assert found == {"b": "y"}


async def test_data_that_cannot_be_used_fails_the_rollout(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "link").symlink_to("/etc/passwd")
    (tmp_path / "file").write_text("x")
    for info, words in (
        ({"context_dir": str(tmp_path)}, "symlink"),
        ({"context_dir": str(tmp_path / "file")}, "must be a directory"),
        ({"context_dir": str(tmp_path / "missing")}, "must be a directory"),
        ({"context": object()}, "must be text or JSON"),
    ):
        state, _ = await files_of(make(), **info)
        assert isinstance(state["error"], ValueError)
        assert words in str(state["error"])
        assert folder_is_gone(state)


async def test_a_directory_that_is_too_large_fails_the_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("verifiers.envs.rlm.files.MAX_BYTES", 3)
    (tmp_path / "file").write_text("four")
    state, _ = await files_of(make(), context_dir=str(tmp_path))
    assert "4 bytes" in str(state["error"])


# --------------------------------------------------------------------------------------------------------- history


async def test_the_worker_receives_the_conversation_before_each_execution():
    env = make()
    with_worker(env, {**OK, "stdout": "one"}, READY)
    sent: list[list[dict[str, Any]]] = []

    async def write(state: Any, text: str) -> None:
        sent.append([json.loads(line) for line in text.splitlines()])

    env._executor.write_history = write  # type: ignore[method-assign]
    state, _ = await play(env, code("1", "2"))
    assert [m["role"] for m in sent[0]] == ["user", "assistant"]
    assert [m["role"] for m in sent[1]] == ["user", "assistant", "tool", "assistant"]
    assert sent[1][2]["content"] == "one"
    assert sent[0][1]["tool_calls"][0]["name"] == "call_python_repl"
    assert sent[0][0]["content"] == state["prompt"][0]["content"]


async def test_a_conversation_that_cannot_be_written_is_only_logged(
    caplog: pytest.LogCaptureFixture,
):
    env = make()
    with_worker(env, READY)

    async def write(state: Any, text: str) -> None:
        raise OSError("full")

    env._executor.write_history = write  # type: ignore[method-assign]
    state, _ = await play(env, [done()])
    assert state["final_answer"] == "42"
    assert "full" in caplog.text


# ------------------------------------------------------------------------------------------------------ plain dicts


async def test_hooks_take_any_mapping_as_the_state():
    env = make(sandbox_labels=["l"], sandbox_environment_vars={"A": "b"})
    request = env.get_sandbox_request({"rollout_id": "rlm_x"})
    assert (request.name, request.labels, request.environment_vars) == ("rlm_x", ["l"], {"A": "b"})
    variables = env._build_worker_env_vars({})
    assert variables == {
        "RLM_INTERCEPTION_URL": "",
        "RLM_ROOT_TOOL_URL": "",
        "RLM_ROOT_TOOL_NAMES": '["llm_batch"]',
        "RLM_SUB_LLM_TIMEOUT": "115",
    }
    state = {"a": 1}
    assert env.update_tool_args("call_python_repl", {"code": "1"}, [], state) == {  # type: ignore[arg-type]
        "code": "1",
        "state": state,
    }
    assert env.update_tool_args("other", {"x": 1}, [], state) == {"x": 1}  # type: ignore[arg-type]
    assert env.customize_worker_script("script", state) == "script"  # type: ignore[arg-type]
    assert env._last_main_trajectory_step({}) is None
    with_worker(env, READY)
    plain: dict[str, Any] = {"rollout_id": "x"}
    assert await env.call_python_repl("1", plain) == "(no output)"
    assert plain["final_answer"] == "42"


async def test_a_mistake_in_the_hook_of_the_script_is_reported():
    class Wrong(RLMEnv):
        def customize_worker_script(self, script: str, state: Any) -> Any:
            return None

    env = make(Wrong)
    async with env:
        state, _ = await play(env, [done()])
    assert isinstance(state["error"], ConfigError)
    assert "customize_worker_script" in str(state["error"])


async def test_a_tool_of_the_model_is_called_like_in_any_tool_environment():
    env = make(tools=[lookup])
    with_worker(env, READY)
    state, _ = await play(env, [call("lookup", key="ab", n=2), done()])
    assert results(state) == ["abab", "(no output)"]
