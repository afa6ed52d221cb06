import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from verifiers.errors import ConfigError, InfraError, MCPServerError
from verifiers.runs.resume import failed_by_infrastructure
from verifiers.runs.summary import summarize
from verifiers.testing import ScriptedClient, call, run
from verifiers.tools.mcp import (
    MCPServerConfig,
    MCPTool,
    MCPToolConfig,
    offered_names,
    server_configs,
)

SERVER = Path(__file__).parent / "tool_server.py"
PLAIN_SERVER = Path(__file__).parent / "plain_tool_server.py"
ROWS = [{"question": f"question {index}", "answer": ""} for index in range(600)]


@pytest.fixture(autouse=True, scope="module")
def _mcp() -> None:
    pytest.importorskip("mcp")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def stdio(folder: Path, **settings: Any) -> dict[str, Any]:
    return {
        "name": "tools",
        "command": sys.executable,
        "args": [str(SERVER), str(folder)],
        **settings,
    }


def plain(folder: Path, **settings: Any) -> dict[str, Any]:
    """The server without the package: what matters is its process."""
    return {**stdio(folder, **settings), "args": [str(PLAIN_SERVER), str(folder)]}


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


async def until(happened: Callable[[], Any]) -> None:
    """Other processes tell nobody what they have done: their traces are looked for."""
    async with asyncio.timeout(20):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def gone(pid: int) -> None:
    await until(lambda: not is_running(pid))


def results(output: Any) -> list[Any]:
    return [m["content"] for m in output["completion"] if m["role"] == "tool"]


@contextlib.asynccontextmanager
async def env_with(*servers: Any, **options: Any):
    env = vf.MCPEnv(mcp_servers=list(servers), dataset=ROWS, rubric=vf.Rubric(), **options)
    try:
        yield env
    finally:
        await env.aclose()


# --------------------------------------------------------------------------------------------- results


async def test_results_reach_the_model_as_text_images_and_error_texts(folder: Path):
    calls = [
        call("add", a=1, b=5),
        call("several"),
        call("nothing"),
        call("picture"),
        call("fail"),
        call("add", a="x"),
        call("unknown"),
    ]
    async with env_with(stdio(folder)) as env:
        [output] = await run(env, ScriptedClient([calls, "done"]))
    added, several, nothing, picture, failed, misused, unknown = results(output)
    assert (added, several, nothing) == ("6", "x\ny", "No result returned from tool")
    assert picture == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
    ]
    assert failed.startswith("Error executing tool fail")
    assert "valid integer" in misused
    assert unknown.startswith("Error: There is no tool 'unknown'")
    assert output["metrics"]["total_tool_calls"] == 7
    assert output["metrics"]["add_calls"] == 2
    assert output["error"] is None


async def test_definitions_are_the_servers_own_and_known_after_connect(folder: Path):
    async with env_with(stdio(folder)) as env:
        assert env.tool_defs is None
        await env.connect()
        added = next(tool for tool in env.tool_defs if tool.name == "add")
        assert added.description == "Add two numbers."
        assert added.parameters["required"] == ["a"]
        client = ScriptedClient(["done"])
        await run(env, client)
        assert {tool.name for tool in client.requests[0].tools} == set(env.tool_map)


async def test_python_tools_stand_beside_the_servers(folder: Path):
    def shout(text: str) -> str:
        """Say it loudly."""
        return text.upper()

    async with env_with(plain(folder), tools=[shout]) as env:
        client = ScriptedClient([[call("shout", text="a"), call("add", a=1)], "done"])
        [output] = await run(env, client)
    assert results(output) == ["A", "3"]


# ---------------------------------------------------------------------------------------- one process


async def test_one_server_serves_all_rollouts_and_ends_with_aclose(folder: Path):
    async with env_with(plain(folder)) as env:
        client = ScriptedClient(
            lambda prompt: "done" if prompt[-1]["role"] == "tool" else [call("process_id")]
        )
        outputs = await run(env, client, n=24, max_concurrent=24)
        [pid] = {int(results(output)[0]) for output in outputs}
        assert lines(folder / "starts") == [str(pid)]
        assert is_running(pid)
    await gone(pid)


async def test_512_rollouts_share_one_connection_without_losing_calls(folder: Path):
    async with env_with(stdio(folder, max_concurrent_calls=32)) as env:

        def answer(prompt: Any) -> Any:
            if prompt[-1]["role"] == "tool":
                return "done"
            return [call("add", a=int(prompt[-1]["content"].split()[1]), b=1)]

        outputs = await run(env, ScriptedClient(answer), n=512, max_concurrent=512)
    assert [results(output) for output in outputs] == [[str(i + 1)] for i in range(512)]


def test_every_event_loop_has_its_own_server_and_leaves_none(folder: Path):
    env = vf.MCPEnv(mcp_servers=[plain(folder)], dataset=ROWS, rubric=vf.Rubric())
    for _ in range(2):
        client = ScriptedClient([[call("process_id")], "done"])
        [output] = env.evaluate_sync(client, "scripted", num_examples=1).outputs
        assert not is_running(int(results(output)[0]))
    assert len(lines(folder / "starts")) == 2
    asyncio.run(env.aclose())


async def test_a_cancelled_run_keeps_the_server_for_the_next_and_aclose_ends_it(folder: Path):
    async with env_with(plain(folder)) as env:
        client = ScriptedClient([[call("touch", mark="a"), call("hang")]])
        running = asyncio.create_task(run(env, client))
        await until(lambda: lines(folder / "touched"))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        [output] = await run(env, ScriptedClient([[call("add", a=1)], "done"]))
        assert results(output) == ["3"]
        [pid] = lines(folder / "starts")
    await gone(int(pid))


async def test_rollouts_cancelled_while_the_server_starts_leave_no_process(folder: Path):
    (folder / "silent").touch()
    env = vf.MCPEnv(
        mcp_servers=[plain(folder, connect_timeout_s=3.0)], dataset=ROWS, rubric=vf.Rubric()
    )
    running = asyncio.create_task(run(env, ScriptedClient(["done"])))
    await until(lambda: lines(folder / "starts"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await env.aclose()
    await gone(int(lines(folder / "starts")[0]))


def test_the_server_ends_when_the_program_is_interrupted(folder: Path):
    program = (
        "import verifiers as vf\n"
        "from verifiers.testing import ScriptedClient, call\n"
        f"env = vf.MCPEnv(mcp_servers=[{stdio(folder)!r}], dataset=[{{'question': 'q'}}])\n"
        "client = ScriptedClient([[call('touch', mark='a'), call('hang')]])\n"
        "env.evaluate_sync(client, 'scripted')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 30
    while not lines(folder / "touched") and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.wait(20)
    [pid] = lines(folder / "starts")
    asyncio.run(gone(int(pid)))


async def test_an_environment_that_was_closed_can_be_used_and_closed_again(folder: Path):
    async with env_with(plain(folder)) as env:
        await run(env, ScriptedClient([[call("add", a=1)], "done"]))
        await env.aclose()
        [output] = await run(env, ScriptedClient([[call("add", a=2)], "done"]))
        assert results(output) == ["4"]
    for pid in lines(folder / "starts"):
        await gone(int(pid))


async def test_servers_of_a_group_are_closed_with_it(folder: Path):
    member = vf.MCPEnv(mcp_servers=[plain(folder)], dataset=ROWS[:1], rubric=vf.Rubric())
    async with vf.EnvGroup([member], ["notes"]) as group:
        [output] = await run(group, ScriptedClient([[call("add", a=1)], "done"]))
        assert results(output) == ["3"]
    await gone(int(lines(folder / "starts")[0]))


# --------------------------------------------------------------------------------- failing servers


async def test_a_call_lost_with_its_server_is_told_to_the_model_if_asked_and_never_sent_again(
    folder: Path,
):
    client = ScriptedClient([[call("touch_and_die", mark="x")], [call("add", a=1)], "done"])
    async with env_with(plain(folder), fail_on_server_error=False) as env:
        [output] = await run(env, client)
    lost, added = results(output)
    assert "was lost while it ran 'touch_and_die'" in lost
    assert added == "3"  # by a new server
    assert lines(folder / "touched") == ["x"]
    assert len(lines(folder / "starts")) == 2
    assert output["error"] is None


async def test_a_server_lost_during_a_call_is_an_error_of_the_rollout_and_of_the_summary(
    folder: Path,
):
    client = ScriptedClient([[call("fail")], [call("touch_and_die", mark="x")], "done"])
    async with env_with(stdio(folder)) as env:
        state = await env.rollout(env.source("eval").inputs(1)[0], client, "scripted")
        outputs = await run(
            env, ScriptedClient([[call("fail"), call("touch_and_die", mark="y")], "done"])
        )
    assert isinstance(state.error, InfraError)
    assert isinstance(state.error, MCPServerError)
    assert state.stop_condition == "has_error"
    assert "Error executing tool fail" in str(state.trajectory[-1]["prompt"])  # that was shown
    assert lines(folder / "touched") == ["x", "y"]
    found = summarize(outputs)
    assert (found.error_count, found.errors.keys()) == (1, {"MCPAnswerLost"})
    assert failed_by_infrastructure(outputs[0])


async def test_closing_waits_for_connections_that_were_lost_before(folder: Path):
    async with env_with(plain(folder)) as env:
        await env.connect()
        [server] = env.servers
        lost = await server.connection()
        lost.close_soon()  # its process is still there, and takes its time to end
        assert await server.connection() is not lost
        await env.aclose()
        assert lost.is_closed


async def test_a_rollout_whose_server_was_lost_is_played_again_as_a_whole_with_retries(
    folder: Path,
):
    replies = [[call("touch_and_die", mark="x")], [call("add", a=1)], "done"]
    async with env_with(plain(folder)) as env:
        [output] = await run(env, ScriptedClient(replies), max_retries=1)
    assert output["error"] is None
    assert results(output) == ["3"]
    assert lines(folder / "touched") == ["x"]


async def test_a_server_whose_command_has_gone_is_an_error_of_the_rollout(folder: Path):
    starter = folder / "start"
    starter.write_text(f"#!/bin/sh\nexec {sys.executable} {PLAIN_SERVER} {folder}\n")
    starter.chmod(0o755)
    server = {"name": "gone", "command": str(starter)}
    async with env_with(server) as env:
        await env.connect()
        starter.unlink()
        await env.aclose()
        state = await env.rollout(
            env.source("eval").inputs(1)[0], ScriptedClient([[call("add", a=1)]]), "scripted"
        )
    assert isinstance(state.error, MCPServerError)
    assert "cannot be started" in str(state.error)


async def test_a_server_that_died_before_a_call_is_started_again_for_it(folder: Path):
    async with env_with(plain(folder)) as env:
        [output] = await run(env, ScriptedClient([[call("process_id")], "done"]))
        connection = await env.servers[0].connection()
        os.kill(int(results(output)[0]), signal.SIGKILL)
        await until(lambda: connection.is_over)
        [output] = await run(env, ScriptedClient([[call("touch", mark="once")], "done"]))
    assert results(output) == ["ok"]
    assert lines(folder / "touched") == ["once"]
    assert len(lines(folder / "starts")) == 2


@pytest.mark.parametrize("tool", ["hang", "block"])
async def test_a_tool_that_never_answers_ends_at_its_time_limit(folder: Path, tool: str):
    async with env_with(plain(folder, call_timeout_s=0.3)) as env:
        [output] = await run(env, ScriptedClient([[call(tool)], "done"]))
        [pid] = lines(folder / "starts")
    assert "did not answer within 0.3 s" in results(output)[0]
    await gone(int(pid))


async def test_a_missing_command_ends_the_run_with_its_name():
    async with env_with({"name": "tools", "command": "no-such-command-here"}) as env:
        with pytest.raises(ConfigError, match="no-such-command-here"):
            await run(env, ScriptedClient(["done"]))


async def test_a_server_that_cannot_start_shows_its_last_words():
    failing = {"name": "bad", "command": sys.executable, "args": ["-c", "import no_such_module"]}
    async with env_with(failing) as env:
        with pytest.raises(MCPServerError, match="No module named 'no_such_module'"):
            await run(env, ScriptedClient(["done"]))


async def test_a_silent_server_is_given_up_after_its_time_limit():
    silent = {
        "name": "silent",
        "command": sys.executable,
        "args": ["-c", "import time; time.sleep(3600)"],
        "connect_timeout_s": 0.5,
    }
    async with env_with(silent) as env:
        with pytest.raises(MCPServerError, match=r"did not answer within 0\.5 s"):
            await run(env, ScriptedClient(["done"]))


async def test_a_server_that_cannot_start_is_a_retryable_failure_of_one_rollout():
    failing = {"name": "bad", "command": sys.executable, "args": ["-c", "raise SystemExit(1)"]}
    async with env_with(failing) as env:
        row = env.source("eval").inputs(1)[0]
        state = await env.rollout(row, ScriptedClient(["done"]), "scripted")
    assert isinstance(state.error, InfraError)


# ------------------------------------------------------------------------------------------------ HTTP


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def http_server(folder: Path, port: int):
    process = subprocess.Popen([sys.executable, str(SERVER), str(folder), "--http", str(port)])
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def http(port: int, **settings: Any) -> dict[str, Any]:
    return {"name": "tools", "url": f"http://127.0.0.1:{port}/mcp", **settings}


async def test_a_server_over_http_serves_many_rollouts(folder: Path):
    port = free_port()
    with http_server(folder, port):
        async with env_with(http(port, max_concurrent_calls=16)) as env:

            def answer(prompt: Any) -> Any:
                if prompt[-1]["role"] == "tool":
                    return "done"
                return [call("add", a=int(prompt[-1]["content"].split()[1]), b=1)]

            outputs = await run(env, ScriptedClient(answer), n=100, max_concurrent=100)
    assert [results(output) for output in outputs] == [[str(i + 1)] for i in range(100)]


async def test_a_server_restarted_over_http_gets_the_call_once(folder: Path):
    port = free_port()
    async with env_with(http(port)) as env:
        with http_server(folder, port):
            await run(env, ScriptedClient([[call("add", a=1)], "done"]))
        with http_server(folder, port):
            [output] = await run(env, ScriptedClient([[call("touch", mark="once")], "done"]))
            assert results(output) == ["ok"]
            await env.aclose()
    assert lines(folder / "touched") == ["once"]


async def test_a_call_lost_over_http_ends_the_rollout_and_is_not_repeated(folder: Path):
    port = free_port()
    async with env_with(http(port, call_timeout_s=5.0)) as env:
        with http_server(folder, port):
            client = ScriptedClient([[call("touch_and_die", mark="x")], "done"])
            [output] = await run(env, client)
            await env.aclose()
    assert output["error"]["error"] == "MCPAnswerLost"
    assert lines(folder / "touched") == ["x"]


async def test_an_unreachable_server_over_http_is_named():
    async with env_with(http(free_port())) as env:
        with pytest.raises(MCPServerError, match=r"MCP server 'tools' \(http://127\.0\.0\.1:"):
            await run(env, ScriptedClient(["done"]))


# ----------------------------------------------------------------------------------------------- names


async def test_equal_tool_names_of_two_servers_are_told_apart(folder: Path, tmp_path: Path):
    (other := tmp_path / "other").mkdir()
    async with env_with(plain(folder), plain(other, name="more")) as env:
        await env.connect()
        assert {"tools_add", "more_add"} <= set(env.tool_map)
        assert "add" not in env.tool_map
        client = ScriptedClient([[call("more_touch", mark="here")], "done"])
        await run(env, client)
    assert lines(other / "touched") == ["here"]
    assert not lines(folder / "touched")


def test_names_clash_only_where_they_must():
    names = offered_names({"a": ["x", "y"], "b": ["x", "files.read"]}, taken=["y"])
    assert list(names.values()) == ["a_x", "a_y", "b_x", "files_read"]
    with pytest.raises(ConfigError, match="another name"):
        offered_names({"a": ["b_c"], "a_b": ["c"]}, taken=["b_c", "c"])


# ----------------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"name": "a", "comand": "x"}], "Did you mean 'command'"),
        ([{"name": "a"}], "either a command"),
        ([{"name": "a", "command": "x", "url": "http://h"}], "either a command"),
        ([{"command": "x"}], "needs a 'name'"),
        ([{"name": "a", "command": "x"}, {"name": "a", "command": "y"}], "different names"),
        (["x"], "MCPServerConfig or a dict"),
        ([{"name": "a", "command": "x", "call_timeout_s": 0}], "must be positive"),
    ],
)
def test_wrong_settings_are_refused_with_what_to_write(given: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        vf.MCPEnv(mcp_servers=given, dataset=ROWS)


def test_settings_in_every_form_are_understood():
    config = MCPServerConfig("a", "x", ["1"])
    assert server_configs([config]) == [config]
    assert server_configs([{"name": "a", "command": "x", "args": ["1"]}]) == [config]
    assert server_configs({"mcpServers": {"a": {"command": "x", "args": ["1"]}}}) == [config]
    for tool in (MCPTool("bin/x.py", ["1"]), MCPToolConfig(command="bin/x.py", args=["1"])):
        [made] = server_configs([tool])
        assert (made.name, made.command, made.args) == ("x_0", "bin/x.py", ["1"])
    assert MCPTool.from_mapping({"command": "x", "args": ["1"]}).args == ("1",)


async def test_without_the_mcp_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    async with env_with({"name": "a", "command": "x"}) as env:
        with pytest.raises(ConfigError, match="pip install 'mcp"):
            await run(env, ScriptedClient(["done"]))
