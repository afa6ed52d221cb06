"""`CliAgentEnv`: a real program in a real sandbox without network, whose model calls are the rollout's turns."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs.experimental.cli_agent_env import AgentError, CliAgentEnv
from verifiers.errors import ModelError, OverlongPromptError, SandboxError, TunnelError
from verifiers.rollouts.retries import is_retryable
from verifiers.sandboxes import SandboxImageError
from verifiers.testing import Reply, ScriptedClient, call

AGENT = Path(__file__).with_name("agent_program.py").read_text()
ROW = {"prompt": [{"role": "user", "content": "The row's own."}], "answer": "a", "example_id": 0}
SMALL: dict[str, Any] = {"memory_gb": 0.25, "disk_size_gb": 0.05, "dataset": [ROW]}


class Agent(CliAgentEnv):
    """Uploads the agent, as an author would."""

    async def post_sandbox_setup(self, state: vf.State) -> None:
        await self.upload_content(state["sandbox_id"], AGENT, "/box/agent.py")


Make = Callable[..., Agent]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:
        made: list[Agent] = []

        def build(behaviour: str, cls: type[Agent] = Agent, **options: Any) -> Agent:
            made.append(cls(f"python3 agent.py {behaviour}", **{**SMALL, **options}))
            return made[-1]

        yield build
        for env in made:
            await stack.enter_async_context(env)


async def play(env: Agent, client: ScriptedClient) -> vf.State:
    async with asyncio.timeout(60):
        return await env.rollout(ROW, client, "model-1", {"temperature": 0.7})


# -------------------------------------------------------------------------------------------------------- turns


async def test_each_request_is_a_turn_with_its_tools_and_streams(make: Make):
    env = make("tools")
    client = ScriptedClient([call("add", a=1), "It is 3.", "Bye."])
    state = await play(env, client)
    assert state["error"] is None
    assert state["stop_condition"] == "agent_completed"
    assert [message["role"] for message in state["prompt"]] == ["system", "user"]
    roles = [message["role"] for message in state["completion"]]
    assert roles == ["assistant", "tool", "assistant", "user", "assistant"]
    assert len(state["trajectory"]) == 3
    assert [tool.name for tool in state["tool_defs"]] == ["add"]
    assert [tool.name for tool in client.requests[0].tools or []] == ["add"]
    assert client.requests[2].tools is None
    assert all(request.sampling_args == {"temperature": 0.7} for request in client.requests)
    assert all(request.model == "model-1" for request in client.requests)
    assert state["agent_stdout"] == "streamed: Bye. [DONE]\n"
    assert (state["agent_exit_code"], state["agent_stderr"]) == (0, "")
    assert state["usage"]["output_tokens"] > 0
    assert env.active_sandboxes == set()


async def test_anthropics_messages_are_turns_too(make: Make):
    state = await play(make("anthropic"), ScriptedClient(["Hello."]))
    assert state["agent_stdout"] == "['Hello.']\nmessage_stop\n"
    assert state["prompt"] == [{"role": "user", "content": "Hi."}]
    assert state["completion"][0]["content"] == "Hello."


async def test_requests_at_once_are_turns_one_after_the_other(make: Make):
    state = await play(make("parallel"), ScriptedClient(lambda prompt: "Yes."))
    asked = sorted(step["prompt"][0]["content"] for step in state["trajectory"])
    assert asked == ["a", "b", "c"]


async def test_max_turns_ends_the_agent(make: Make):
    state = await play(make("parallel", max_turns=2), ScriptedClient(lambda prompt: "Yes."))
    assert (state["stop_condition"], len(state["trajectory"])) == ("max_turns_reached", 2)


async def test_many_rollouts_share_a_server_and_nothing_else(make: Make):
    env = make("tools", rubric=vf.Rubric(funcs=[lambda completion: float(len(completion))]))

    def answer(prompt: Any) -> Any:
        return "It is 3." if len(prompt) > 2 else call("add", a=1)

    rows = [{**ROW, "example_id": number} for number in range(6)]
    async with asyncio.timeout(100):
        results = await env.generate(rows, ScriptedClient(answer), "model-1")
    assert [output["error"] for output in results["outputs"]] == [None] * 6
    assert [output["reward"] for output in results["outputs"]] == [5.0] * 6
    assert results["outputs"][0]["metrics"]["agent_error"] == 0.0
    assert env.active_sandboxes == set()
    json.dumps(results["outputs"])


async def test_hooks_see_every_request_and_answer(make: Make):
    class Hooked(Agent):
        async def normalize_intercepted_messages(self, intercepted_messages: object) -> Any:
            messages = await super().normalize_intercepted_messages(intercepted_messages)
            return [*messages, vf.UserMessage(content="(seen)")]

        async def normalize_response(self, response: vf.Response) -> vf.Response:
            response.message.content = "kept"
            return response

    state = await play(make("errors", Hooked), ScriptedClient(["told"]))
    assert state["prompt"][-1]["content"] == "(seen)"
    assert state["completion"][0]["content"] == "kept"


async def test_the_environment_says_where_the_model_is_and_authors_add_to_it(make: Make):
    class More(Agent):
        async def build_env_vars(self, state: vf.State) -> dict[str, str]:
            return {**await super().build_env_vars(state), "MINE": state["answer"]}

    given = {"OPENAI_MODEL": "not this", "MINE": "nor this"}
    state = await play(make("show_environment", More, environment_vars=given), ScriptedClient())
    shown = json.loads(state["agent_stdout"])
    assert shown["OPENAI_BASE_URL"] == state["interception_base_url"]
    assert shown["OPENAI_BASE_URL"].startswith("http://127.0.0.1:8765/rollout/rollout_")
    assert shown["ANTHROPIC_BASE_URL"] + "/v1" == shown["OPENAI_BASE_URL"]
    assert (shown["OPENAI_MODEL"], shown["OPENAI_TIMEOUT"]) == ("model-1", "3600")
    assert shown["MINE"] == "a"


# ----------------------------------------------------------------------------------------------------- failures


async def test_an_agent_that_crashes_before_any_call_is_an_error(make: Make):
    state = await play(make("crash"), ScriptedClient())
    assert isinstance(state["error"], AgentError)
    assert "before any LLM call (exit_code=1): no configuration" in str(state["error"])
    assert f"rollout_id={state['rollout_id']}" in str(state["error"])
    assert is_retryable(state["error"])
    assert state["stop_condition"] == "has_error"
    assert (state["agent_exit_code"], state["trajectory"]) == (1, [])


async def test_an_agent_that_crashes_later_keeps_its_turns(make: Make):
    state = await play(make("crash_after_a_turn"), ScriptedClient(["Hello."]))
    assert "after 1 turn(s) (exit_code=3)" in str(state["error"])
    assert state["completion"][0]["content"] == "Hello."


async def test_an_agent_that_never_calls_ends_the_rollout(make: Make):
    state = await play(make("show_environment"), ScriptedClient())
    assert (state["error"], state["trajectory"]) == (None, [])
    assert state["stop_condition"] == "agent_completed"
    assert state["prompt"][0]["content"] == "The row's own."


async def test_what_an_agent_printed_before_it_was_ended_is_kept(make: Make):
    state = await play(make("hang", max_turns=2), ScriptedClient(["Hello.", "Hello again."]))
    assert state["stop_condition"] == "max_turns_reached"
    assert (state["agent_exit_code"], state["agent_stdout"]) == (None, "waiting\n")
    assert (state["error"], state["agent_completed"]) == (None, True)


async def test_a_cancelled_rollout_leaves_nothing_behind(make: Make):
    asked = asyncio.Event()
    never = asyncio.Event()

    async def answer(prompt: Any) -> str:
        asked.set()
        await never.wait()
        return "never"

    env = make("hang")
    playing = asyncio.create_task(play(env, ScriptedClient(answer)))
    await asked.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert env.active_sandboxes == set()
    assert env._require_interception_server().intercepts == {}


async def test_the_time_limit_scores_what_there_is(make: Make):
    never = asyncio.Event()
    script = ScriptedClient(["Hello."], then=Reply("never", after=never))

    class Slow(Agent):
        async def post_rollout(self, state: vf.State) -> None:
            state["files"] = (
                await self.sandbox_client.execute_command(state["sandbox_id"], "ls /box")
            ).stdout

    env = make("hang", Slow, timeout_seconds=2)
    state = await play(env, script)
    assert (state["stop_condition"], state["timed_out"]) == ("timeout_reached", True)
    assert state["error"] is None
    assert "files" in state
    await env.rubric.score_rollout(state)
    assert state["metrics"]["agent_timeout"] == 1.0


async def test_garbage_is_refused_and_the_agent_goes_on(make: Make):
    state = await play(make("garbage"), ScriptedClient(["Hello."]))
    assert state["agent_stdout"].split() == ["400", "400", "404", "200"]
    assert (state["error"], len(state["trajectory"])) == (None, 1)


async def test_an_error_of_the_model_is_the_rollouts_and_reaches_the_agent(make: Make):
    class Patient(Agent):
        async def cleanup_interception_context(self, state: vf.State) -> None:
            await asyncio.wait([state["completion_wait_task"]])
            await super().cleanup_interception_context(state)

        cleanup_interception_context.cleanup = True  # type: ignore[attr-defined]  # the mark of @vf.cleanup

    state = await play(make("errors", Patient), ScriptedClient([ModelError("it broke")]))
    assert isinstance(state["error"], ModelError)
    assert "500" in state["agent_stdout"]
    assert "it broke" in state["agent_stdout"]


async def test_a_prompt_that_is_too_long_is_a_truncation(make: Make):
    state = await play(make("errors"), ScriptedClient([OverlongPromptError("too long")]))
    assert (state["error"], state["is_truncated"]) == (None, True)
    assert state["stop_condition"] == "prompt_too_long"


async def test_a_sandbox_that_runs_out_of_memory_says_so(make: Make):
    state = await play(make("eat_memory", memory_gb=0.0625), ScriptedClient())
    assert isinstance(state["error"], AgentError | SandboxError)
    assert state["agent_completed"]
    assert state["sandbox_oom"]


async def test_a_setup_that_fails_fails_the_rollout(make: Make):
    class Broken(Agent):
        async def post_sandbox_setup(self, state: vf.State) -> None:
            raise OSError("no such agent")

    state = await play(make("tools", Broken), ScriptedClient())
    assert "setup failed: no such agent" in str(state["error"])
    assert "agent_exit_code" not in state


async def test_an_image_that_this_back_end_lacks_is_named(make: Make):
    state = await play(make("tools", docker_image="ubuntu:24.04"), ScriptedClient())
    assert isinstance(state["error"], SandboxImageError)
    assert "ubuntu:24.04" in str(state["error"])


async def test_what_the_agent_left_running_is_gone_before_scoring_looks(make: Make):
    class Looking(Agent):
        async def post_rollout(self, state: vf.State) -> None:
            size = "stat -c %s /box/alive"
            command = f"{size}; for i in 1 2 3 4 5 6 7 8 9; do python3 -c ''; done; {size}"
            done = await self.sandbox_client.execute_command(state["sandbox_id"], command)
            state["sizes"] = done.stdout.split()

    state = await play(make("daemon", Looking, max_turns=2), ScriptedClient(["a", "b"]))
    before, after = state["sizes"]
    assert before == after
    assert int(before) > 0


# ------------------------------------------------------------------------------------------ sandboxes and servers


async def test_a_reward_function_may_look_into_the_sandbox(make: Make):
    async def has_agent(sandbox: Any) -> float:
        return float((await sandbox.exec("test -f agent.py")).ok)

    env = make("show_environment", rubric=vf.Rubric(funcs=[has_agent]))
    results = await env.generate([ROW], ScriptedClient(), "m")
    assert results["outputs"][0]["reward"] == 1.0
    assert env.active_sandboxes == set()


async def test_teardown_ends_what_is_left(make: Make):
    env = make("hang", keep_sandbox_for_scoring=True)
    state = vf.State(input=dict(ROW))
    first = await env.create_sandbox(state, _request())
    second = await env.create_sandbox(vf.State(input=dict(ROW)), _request())
    assert env.active_sandboxes == {first, second}
    await env.aclose()
    assert env.active_sandboxes == set()
    assert not env.sandbox_client.has(first)
    assert not env.sandbox_client.has(second)


def _request() -> Any:
    from verifiers.envs.sandbox_env import CreateSandboxRequest

    return CreateSandboxRequest(memory_gb=0.125, disk_size_gb=0.03)


def test_several_event_loops_may_use_one_environment():
    env = Agent("python3 agent.py errors", **SMALL)
    for _ in range(2):
        results = env.generate_sync([ROW], ScriptedClient(["Hello."]), "m")
        assert results["outputs"][0]["error"] is None
    asyncio.run(env.aclose())


async def test_an_agent_may_reach_the_server_by_a_url_instead(make: Make):
    # Without isolation the agent shares this machine's loopback: a URL of the host works there.
    options = {"backend": "unsafe-local", "sandbox_spec": {"isolation_min": "none"}}
    port = await _free_port()
    env = make(
        "errors", interception_url=f"http://127.0.0.1:{port}", interception_port=port, **options
    )
    script = (
        "import json,os,urllib.request as u;"
        "r=u.Request(os.environ['OPENAI_BASE_URL']+'/chat/completions',json.dumps({'messages':[{'role':'user',"
        "'content':'Hi.'}]}).encode(),{'Authorization':'Bearer '+os.environ['OPENAI_API_KEY']});"
        "print(u.urlopen(r).status)"
    )
    env.run_command = f'python3 -c "{script}"'
    env.post_sandbox_setup = _nothing  # type: ignore[method-assign]
    state = await play(env, ScriptedClient(["Hello."]))
    assert state["error"] is None, state["error"]
    assert state["agent_stdout"] == "200\n"
    assert state["interception_base_url"].startswith(f"http://127.0.0.1:{port}/rollout/")


async def _nothing(state: vf.State) -> None:
    pass


async def _free_port() -> int:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def test_without_isolation_each_rollout_has_a_port_of_its_own(make: Make):
    class There(CliAgentEnv):
        pass

    options = {"backend": "unsafe-local", "sandbox_spec": {"isolation_min": "none"}}
    env = There("echo $OPENAI_BASE_URL", **SMALL, **options)
    results = await env.generate([ROW, {**ROW, "example_id": 1}], ScriptedClient(), "m")
    assert [output["error"] for output in results["outputs"]] == [None, None]
    await env.aclose()


async def test_there_is_no_tunnel_to_ask_for(make: Make):
    with pytest.raises(TunnelError, match="interception_url"):
        await make("tools").get_tunnel_url()
    env = make("tools", interception_url="https://mine.example")
    assert await env.get_tunnel_url() == "https://mine.example"


def test_tools_are_read_as_v0_reads_them():
    env = Agent("true", **SMALL)
    function = {"name": "f", "description": "d", "parameters": {}, "strict": True}
    [tool] = env.normalize_intercepted_tools([{"type": "function", "function": function}]) or []
    assert (tool.name, tool.strict) == ("f", True)
    assert env.normalize_intercepted_tools([]) == []
    for wrong in (None, "x", ["x"]):
        with pytest.raises(TypeError):
            env.normalize_intercepted_tools(wrong)
