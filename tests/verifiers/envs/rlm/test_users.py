"""Environments of the shapes that public users of `RLMEnv` have, each played in a real sandbox."""

import asyncio
import contextvars
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from rlm_rollouts import SMALL, code, done, opened, play, results, root_and_subs, row

import verifiers as vf
from verifiers.envs.experimental.rlm_env import RLMEnv
from verifiers.envs.stateful_tool_env import filter_signature
from verifiers.testing import ScriptedClient, call, run

# ------------------------------------------------------------------------------------- plain users: data and a rubric


async def test_an_environment_that_only_passes_options():
    def rows() -> list[dict[str, Any]]:
        return [row(context="a needle b")]

    async def is_right(state: vf.State, answer: str) -> float:
        return float(state.get("final_answer", "") == answer)

    env = RLMEnv(
        max_turns=5, sub_llm_max_turns=3, sub_model=None, max_sub_llm_parallelism=2, max_output_length=500,
        code_execution_timeout=30, abort_on_code_timeout=False, max_startup_wait_seconds=60, pip_install_packages="",
        sandbox_docker_image="python:3.11-slim", sandbox_cpu_cores=1, sandbox_gpu_count=0, sandbox_timeout_minutes=10,
        sandbox_labels=["test"], dataset=rows, rubric=vf.Rubric(funcs=[is_right]), env_id="needle",
        **SMALL,
    )  # fmt: skip
    async with opened(env):
        bash = code(
            "grep -o needle context.txt", "export ANSWER_CONTENT=42 ANSWER_READY=1", language="bash"
        )
        (output,) = await run(env, ScriptedClient(bash), state_columns=["final_answer"])
        (lost,) = await run(env, ScriptedClient(["I do not know."]))
    assert (output["reward"], output["final_answer"]) == (1.0, "42")
    assert output["completion"][1]["content"] == "needle\n"
    assert output["prompt"][0]["content"].startswith("<SCAFFOLDING>")
    assert (lost["reward"], lost["stop_condition"]) == (0.0, "no_tools_called")


async def test_many_rollouts_at_once_keep_apart():
    rows = [{**row(context=str(number)), "answer": str(number)} for number in range(6)]

    async def is_right(state: vf.State, answer: str) -> float:
        return float(state.get("final_answer") == f"{answer} {answer}")

    env = RLMEnv(dataset=rows, rubric=vf.Rubric(funcs=[is_right]), repl_language="python", **SMALL)
    piece = (
        "n = open('context.txt').read()\n"
        "answer['content'] = n + ' ' + llm_batch([n])[0]; answer['ready'] = True"
    )

    def reply(prompt: Any) -> Any:
        return prompt[-1]["content"] if prompt[0]["role"] == "system" else code(piece)[0]

    async with opened(env):
        outputs = await run(env, ScriptedClient(reply), n=6, max_concurrent=6)
    assert [output["reward"] for output in outputs] == [1.0] * 6


async def test_overridden_model_calls_see_sub_llms_and_teardown_runs():
    class Retrying(RLMEnv):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.calls: list[tuple[int, Any]] = []
            self.is_closed = False

        async def get_model_response(
            self, state: Any, prompt: Any, *args: Any, **kwargs: Any
        ) -> Any:
            self.calls.append((len(state["trajectory"]), kwargs.get("model")))
            for _ in range(3):
                try:
                    return await super().get_model_response(state, prompt, *args, **kwargs)
                except vf.ModelError as error:
                    last = error
            raise last

        @vf.teardown
        async def close(self) -> None:
            self.is_closed = True

    replies = iter(
        [vf.ModelError("once"), *code("llm_batch(['p'])"), vf.ModelError("again"), "sub", done()]
    )
    env = Retrying(repl_language="python", dataset=[row()], **SMALL)
    async with opened(env):
        state, _ = await play(env, lambda prompt: next(replies))
    assert results(state)[0] == "Out[1]: ['sub']"
    assert env.calls == [(0, None), (0, "root-model"), (1, None)]
    assert env.is_closed


async def test_three_kinds_of_tools_and_the_rollout_behind_a_root_tool():
    class Stop(Exception):
        pass

    def note(text: str) -> str:
        """Store a note."""
        state = env._root_tool_context_var.get()["state"]
        state.setdefault("notes", []).append(text)
        return "stored"

    async def search(query: str) -> str:
        """Search."""
        if query == "stop":
            raise Stop
        return f"found {query}"

    env: Any = RLMEnv(
        repl_language="python", dataset=[row()], tools=[search], root_tools=[note], sub_tools=[search],
        stop_errors=[Stop], **SMALL,
    )  # fmt: skip
    sub_turns = iter([call("search", query="x"), "\\boxed{done}"])
    async with opened(env):
        root = [call("search", query="direct"), *code("note('n'), llm_batch(['p'])"), done()]
        state, _ = await play(env, root_and_subs(root, lambda _: next(sub_turns)))
        assert results(state)[:2] == ["found direct", "Out[1]: ('stored', ['done'])"]
        assert state["notes"] == ["n"]
        assert state["sub_llm_total_tool_calls"] == 1
        state, _ = await play(
            env,
            root_and_subs(
                [*code("llm_batch(['p'])"), done()], lambda _: call("search", query="stop")
            ),
        )
    assert isinstance(state["error"].__cause__, Stop)


# --------------------------------------------------------------------------------------------- like rlm_secrets


async def test_an_author_uses_the_return_value_of_setup_state_and_sets_a_variable_for_sub_tools():
    current: contextvars.ContextVar[str] = contextvars.ContextVar("current", default="nobody")

    def whoami() -> str:
        """Return the current rollout."""
        return current.get()

    def read_file(name: str) -> str:
        """Return a file of the rollout, on this side."""
        state = env._root_tool_context_var.get()["state"]
        return (Path(state["info"]["context_dir"]) / name).read_text()

    class Secrets(RLMEnv):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
            folder = await asyncio.to_thread(tempfile.mkdtemp)
            await asyncio.to_thread((Path(folder) / "secret.txt").write_text, "xyzzy")
            state["info"]["context_dir"] = folder
            state = await super().setup_state(state, **kwargs)
            state["prepared"] = True
            return state

        async def _run_sub_llm(self, state: Any, client: Any, model: str, messages: Any) -> Any:
            token = current.set(state["rollout_id"])
            try:
                return await super()._run_sub_llm(state, client, model, messages)
            finally:
                current.reset(token)

        @vf.cleanup
        async def remove(self, state: vf.State) -> None:
            await asyncio.to_thread(shutil.rmtree, state["info"]["context_dir"])

    env: Any = Secrets(
        repl_language="python", dataset=[row()], sub_tools=[whoami], root_tools=[read_file],
        retain_filesystem_after_rollout=True, **SMALL,
    )  # fmt: skip
    seen: list[str] = []

    def sub(prompt: Any) -> Any:
        if prompt[-1]["role"] == "tool":
            seen.append(prompt[-1]["content"])
            return "ok"
        return call("whoami")

    async with opened(env):
        pieces = code("open('secret.txt').read(), read_file('secret.txt'), llm_batch(['p'])")
        state, _ = await play(env, root_and_subs([*pieces, done()], sub))
    assert results(state)[0] == "Out[1]: ('xyzzy', 'xyzzy', ['ok'])"
    assert state["prepared"]
    assert seen == [state["rollout_id"]]
    assert env._root_tool_context_var.get() is None
    shutil.rmtree(state["rlm_rollout_dir"])


# ---------------------------------------------------------------------------------- like mini_swe_agent_plus


class MiniSwe(RLMEnv):
    """Overrides what the public environment overrides."""

    def __init__(self, **kwargs: Any) -> None:
        self.seen: list[str] = []
        self.sub_requests: list[dict[str, Any]] = []
        super().__init__(**kwargs)

        async def upload(sandbox_id: str, local_dir: str, remote_dir: str) -> None:
            self.seen.append(f"upload to {remote_dir}")

        self._executor._upload_directory = upload  # type: ignore[method-assign]
        self.add_tool(filter_signature(self.edit_file, ["state"]))

    async def edit_file(self, path: str, text: str, state: Any) -> str:
        """Write a file."""
        await self._executor.sandbox_client.upload_bytes(
            state["sandbox_id"], path, text.encode(), path
        )
        return "written"

    def get_sandbox_request(self, state: Any) -> Any:
        request = super().get_sandbox_request(state)
        return request.model_copy(update={"environment_vars": {"REPO": state["info"]["repo"]}})

    async def setup_state(self, state: Any, **kwargs: Any) -> Any:
        state["rlm_fs_root_remote"] = "/tmp/testbed"
        return await super().setup_state(state, **kwargs)

    async def on_sandbox_ready(self, state: Any, sandbox_id: str) -> None:
        client = self._executor.sandbox_client
        command = "mkdir -p /tmp/testbed && echo $REPO > /tmp/testbed/repo.txt"
        result = await client.execute_command(sandbox_id, command, timeout=30)
        self.seen.append(f"ready {result.exit_code}")

    def customize_worker_script(self, script: str, state: Any) -> str:
        self.seen.append("script")
        return "from __future__ import annotations\n" + script

    def _build_worker_env_vars(self, state: Any) -> dict[str, str]:
        return {
            **super()._build_worker_env_vars(state),
            "EXTRA": "yes",
            "OPENAI_API_KEY": "intercepted",
        }

    def update_tool_args(
        self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kw: Any
    ) -> Any:
        args = super().update_tool_args(tool_name, tool_args, messages, state, **kw)
        return {**args, "state": state} if tool_name == "edit_file" else args

    async def _run_sub_llm_request(self, **kwargs: Any) -> Any:
        self.sub_requests.append(kwargs)
        return await super()._run_sub_llm_request(**kwargs)

    async def _call_sub_tool(
        self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str
    ) -> Any:
        self.seen.append(f"sub tool {tool_name}")
        return await super()._call_sub_tool(tool_name, tool_args, tool_call_id)

    async def _recover_from_code_timeout(self, state: Any) -> bool:
        self.seen.append("recover")
        return await super()._recover_from_code_timeout(state)

    @vf.cleanup(priority=20)
    async def read_patch(self, state: Any) -> None:
        sandbox = state["sandbox_id"]
        client = self._executor.sandbox_client
        command = "cat repo.txt new.txt"
        result = await client.execute_command(sandbox, command, working_dir="/tmp/testbed")
        state["patch"] = result.stdout

    @vf.cleanup(priority=10)
    async def run_tests(self, state: Any) -> None:
        command = f"cd {state['rlm_fs_root_remote']} && ls"
        result = await self._executor._execute_sandbox_command(state["sandbox_id"], command)
        state["tests"] = result.stdout.split()


async def test_an_author_that_overrides_nearly_everything():
    def shout(text: str) -> str:
        """Say it louder."""
        return text.upper()

    env = MiniSwe(
        dataset=[row()], sub_tools=[shout], code_execution_timeout=2, repl_language="bash", **SMALL
    )
    sub_turns = iter([call("shout", text="x"), "sub answer"])
    root = [
        *code(
            'echo "$REPO $EXTRA"; pwd; ls; llm_batch hi; [ "$OPENAI_API_KEY" = intercepted ] || echo ours',
            language="bash",
        ),
        call("edit_file", path="/tmp/testbed/new.txt", text="new"),
        *code("sleep 60", "export ANSWER_CONTENT=42 ANSWER_READY=1", language="bash"),
    ]  # fmt: skip
    async with opened(env):
        state, _ = await play(
            env, root_and_subs(root, lambda _: next(sub_turns)), repo="r", context="x"
        )
    assert state["error"] is None
    assert results(state)[0] == 'r yes\n/tmp/testbed\nrepo.txt\n["sub answer"]\nours\n'
    assert results(state)[1] == "written"
    assert "longer than 2 seconds" in results(state)[2]
    assert env.seen == ["ready 0", "upload to /tmp/testbed", "script", "sub tool shout", "recover"]
    (request,) = env.sub_requests
    assert request["state_ref"] is state
    assert set(request) == {
        "state_ref", "client", "sub_model", "messages", "batch_id", "request_id", "parent_turn",
    }  # fmt: skip
    assert state["patch"] == "r\nnew"
    assert state["tests"] == ["new.txt", "repo.txt"]
    properties = next(tool for tool in env.tool_defs or [] if tool.name == "edit_file").parameters[
        "properties"
    ]
    assert set(properties) == {"path", "text"}  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------- like tau3


class Tau(RLMEnv):
    """Replaces the REPL call and the script, and plays a user inside `env_response`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sub_tool_defs = [vf.Tool(name="own", description="", parameters={"type": "object"})]

    def customize_worker_script(self, script: str, state: Any) -> str:
        wanted = "extra_data = fs_root"
        assert script.splitlines().count(wanted) == 1
        own = 'with open(os.path.join(fs_root, "context.json")) as file:\n    extra_data = json.load(file)'
        return script.replace(wanted, own)

    async def _call_repl(
        self, code: str, state: Any, *, ready_instruction: str, append_execution_time: bool
    ) -> str:
        output = await super()._call_repl(
            code,
            state,
            ready_instruction=ready_instruction,
            append_execution_time=append_execution_time,
        )
        return f"[{output}]"

    async def get_prompt_messages(self, state: Any) -> Any:
        messages = await super().get_prompt_messages(state)
        return [*messages, {"role": "user", "content": "hurry"}] if len(messages) == 1 else messages

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        last = self._last_main_trajectory_step(state)
        assert last is not None
        if not last["completion"][-1].get("tool_calls"):
            return [{"role": "user", "content": "Use your tools."}]
        return await super().env_response(messages, state, **kwargs)

    @vf.stop
    async def no_tools_called(self, state: Any) -> bool:
        return False

    @vf.stop
    async def answer_ready(self, state: Any) -> bool:
        return "final_answer" in state

    @vf.stop
    async def has_final_env_response(self, state: Any) -> bool:
        return bool(state.get("final_env_response"))

    @vf.cleanup(priority=10)
    async def look_at_the_end(self, state: Any) -> None:
        session = self._executor._get_session(state)
        command = f"cat {session.paths.answer_file}"
        result = await self._executor._execute_sandbox_command(
            session.sandbox_id, command, timeout=20
        )
        state["answer_file"] = result.stdout
        reply = await self._executor.execute({"code": "print(extra_data)", "seq": -1}, state)
        state["own_execution"] = reply.stdout


async def test_an_author_that_replaces_the_repl_call_and_the_script():
    env = Tau(dataset=[row()], repl_language="python", **SMALL)
    root = ["Hello!", *code("extra_data, llm_batch(['p'])"), done("fin")]
    async with opened(env):
        state, client = await play(env, root_and_subs(root), context={"a": 1})
    assert state["error"] is None
    first, last = results(state)
    assert first.startswith("[Out[1]: ({'a': 1}, ['sub'])\nExecution time: ")
    assert last.startswith("[(no output)\nExecution time: ")
    assert client.prompts[0][1]["content"] == "hurry"
    assert client.prompts[1][-1]["content"] == "Use your tools."
    assert [tool.name for tool in client.requests[2].tools or []] == ["own"]
    assert state["answer_file"] == '{"ready": true, "content": "fin"}'
    assert "{'a': 1}" in state["own_execution"]


# ----------------------------------------------------------------------------------------------- old names, imports


async def test_an_author_of_0_1_10():
    class Old(RLMEnv):
        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            results = await super().generate(*args, **kwargs)
            self.generated = len(results["outputs"])
            return results

    async def turns(state: vf.State) -> float:
        return float(state.get("main_rlm_turns", 0))

    with pytest.warns(DeprecationWarning, match="'max_iterations' is called 'max_turns' now"):
        env = Old(
            dataset=[row(data="old data")], rubric=vf.Rubric(funcs=[turns]), repl_language="python",
            max_iterations=3, execution_backend="sandbox", context_key="data", interception_host="127.0.0.1", **SMALL,
        )  # fmt: skip
    async with opened(env):
        piece = "answer['content'] = open('context.txt').read(); answer['ready'] = True"
        (output,) = await run(env, ScriptedClient(code("1", piece)), state_columns=["final_answer"])
    assert (output["reward"], output["final_answer"], env.generated) == (2.0, "old data", 1)
