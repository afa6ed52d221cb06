"""The REPL in a real sandbox: Python and Bash sessions, tools on the command line, slow code, files, clean-up."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rlm_rollouts import code, done, make, opened, play, results, root_and_subs, row

import verifiers as vf
from verifiers.envs.experimental.rlm_env import RLMEnv, RLMExecResult, RLMSetupError, RLMWorkerError
from verifiers.testing import call

BASH_DONE = call("call_bash_repl", code="export ANSWER_CONTENT=42 ANSWER_READY=yes")


def lookup(key: Any, n: int = 2) -> Any:
    """Look a key up."""
    return [key] * n


def say(text: str = "nothing") -> str:
    """Return the text."""
    return text


async def python(*pieces: str, **options: Any) -> tuple[vf.State, list[Any]]:
    """Run pieces of code in one rollout. Return its state and the outputs."""
    info = options.pop("info", {})
    async with opened(make(root_tools=[lookup, say], **options)) as env:
        model = root_and_subs([*code(*pieces), done()], lambda p: "sub:" + p[-1]["content"])
        state, _ = await play(env, model, **info)
    assert state["error"] is None, state["error"]
    assert state["final_answer"] == "42"
    return state, results(state)[:-1]


async def bash(*pieces: str, **options: Any) -> tuple[vf.State, list[Any]]:
    info = options.pop("info", {})
    async with opened(make(root_tools=[lookup, say], repl_language="bash", **options)) as env:
        model = root_and_subs(
            [*code(*pieces, language="bash"), BASH_DONE], lambda p: "sub:" + p[-1]["content"]
        )
        state, _ = await play(env, model, **info)
    assert state["error"] is None, state["error"]
    assert state["final_answer"] == "42"
    return state, results(state)[:-1]


# ------------------------------------------------------------------------------------------------------- Python


async def test_python_keeps_variables_and_shows_output_values_and_errors():
    state, seen = await python(
        "x = 20\nprint('hi')",
        "import os, sys\nos.system('echo from a program; echo problem >&2')\nx + 22",
        "1 / 0",
        "def broken(",
        "import sys; sys.exit(3)",
        "answer, extra_data, os.getcwd()",
        "import json\n[json.loads(line)['role'] for line in open('.messages')]",
        "open('context.txt').read()",
        "None",
        info={"context": "the data"},
    )
    root = state["rlm_fs_root_remote"]
    assert root == f"/tmp/rlm_{state['rollout_id']}/rlm_fs"
    assert seen[0] == "hi"
    assert seen[1] == "from a program\nstderr:\nproblem\nOut[2]: 42"
    assert seen[2].startswith('Traceback (most recent call last):\n  File "<repl-3>", line 1')
    assert seen[2].endswith("ZeroDivisionError: division by zero")
    assert seen[3].endswith("SyntaxError: '(' was never closed")
    assert seen[4].endswith("SystemExit: 3")
    assert seen[5] == f"Out[6]: ({{'content': '', 'ready': False}}, {root!r}, {root!r})"
    roles = "['user', " + ", ".join(["'assistant'", "'tool'"] * 6) + ", 'assistant']"
    assert seen[6] == f"Out[7]: {roles}"
    assert seen[7:] == ["Out[8]: 'the data'", "(no output)"]
    assert state["sandbox_state"]["ready"] is True
    assert len(state["sandbox_state"]["command_execution_times"]) == 10
    assert state["repl_total_time_seconds"] > 0


async def test_python_code_calls_tools_and_sub_llms():
    _, seen = await python(
        "llm_batch(['a', 'b']), lookup('k', n=1), say()",
        "say(['x'] * 3), lookup(key={'ä': None}, n=1)",
        "lookup()",
        "import threading\ngot = {}\n"
        "def ask(n): got[n] = llm_batch([str(n)])\n"
        "threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()\n"
        "got == {n: [f'sub:{n}'] for n in range(8)}",
        "lookup(object())",
        "say('x' * 300_000) == 'x' * 300_000",
    )
    assert seen[0] == "Out[1]: (['sub:a', 'sub:b'], ['k'], 'nothing')"
    assert seen[1] == "Out[2]: (['x', 'x', 'x'], [{'ä': None}])"
    assert "RuntimeError: lookup() missing 1 required positional argument: 'key'" in seen[2]
    assert seen[3] == "Out[4]: True"
    assert "TypeError: Object of type object is not JSON serializable" in seen[4]
    assert seen[5] == "Out[6]: True"


async def test_code_that_damages_its_process_does_not_damage_the_rollout():
    _, seen = await python(
        "import sys, os, io\nsys.stdout = io.StringIO(); print('lost'); os.close(1); os.close(2)",
        "print('back')",
        "sys.stdout.close(); sys.__stdout__ = None",
        "print('back again')",
        "pid = os.fork()\nif pid == 0: print('child'); x = 1\nelse: os.waitpid(pid, 0); x = 0",
        "x",
        "for _ in range(200_000): print('y' * 80)",
        "answer = None",
        "answer = {'content': None, 'ready': False}; raise KeyboardInterrupt('mine')",
        "os.chdir('/tmp'); os.path.exists(extra_data + '/.messages')",
        "os._exit(4)",
        "print('new'); 'x' in globals()",
        max_output_length=100,
    )
    assert seen[1] == "back"
    assert seen[3] == "back again"
    assert seen[5] == "Out[6]: 0"
    assert seen[6].endswith("\n... [output cut after 100 characters]")
    assert "KeyboardInterrupt: mine"[:20] in seen[8] or "cut after" in seen[8]
    assert seen[9] == "Out[10]: True"
    assert seen[10].startswith("The code ended the REPL (code 4).")
    assert seen[11] == "new\nOut[1]: False"


async def test_files_of_the_data_do_not_replace_modules_of_the_worker(tmp_path: Path):
    for name in ("json", "socket", "threading", "traceback"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('taken')")
    (tmp_path / "mine.py").write_text("value = 7")
    _, seen = await python("import mine\nmine.value", info={"context_dir": str(tmp_path)})
    assert seen == ["Out[1]: 7"]


async def test_code_over_the_time_limit_is_stopped_and_the_repl_is_restarted():
    state, seen = await python(
        "open('kept', 'w').write('x'); y = 1",
        "import time\nwhile True: time.sleep(1)",
        "import os\nprint(os.listdir('.'), 'y' in globals())",
        code_execution_timeout=2,
    )
    assert "longer than 2 seconds" in seen[1]
    assert "'kept'" in seen[2]
    assert seen[2].endswith("False")
    assert state["repl_call_count"] == 4


async def test_the_answer_may_be_any_value():
    async with opened(make()) as env:
        state, _ = await play(env, code("answer.update(content=[4, 2], ready=1)"))
        assert state["final_answer"] == [4, 2]
        state, _ = await play(env, code("answer.update(content={1, 2}, ready=1)"))
        assert state["final_answer"] == "{1, 2}"


# --------------------------------------------------------------------------------------------------------- Bash


async def test_bash_keeps_the_directory_and_the_answer_only():
    state, seen = await bash(
        "echo out; echo err >&2; X=1; export Y=2; mkdir sub; cd sub",
        'pwd; echo "[$X$Y]"; shopt -q login_shell && echo login',
        "exit 3",
        "set -e; ANSWER_CONTENT='a b'; false; echo never",
        'pwd; echo "$ANSWER_CONTENT/$ANSWER_READY"',
        "trap 'echo mine' EXIT; export ANSWER_CONTENT=z",
        'echo "$ANSWER_CONTENT"; cat context.txt 2>/dev/null; cat ../context.txt',
        "if then",
        "(sleep 1000 & ) ; echo started",
        "echo \"$(wc -l < ../.messages) lines\"; read line; echo \"[$line]\"",
        info={"context": "data"},
    )  # fmt: skip
    root = state["rlm_fs_root_remote"]
    assert seen[0] == "out\nerr\n"
    assert seen[1] == f"{root}/sub\n[]\nlogin\n"
    assert seen[2] == seen[3] == "(no output)"
    assert seen[4] == f"{root}/sub\na b/\n"
    assert seen[5] == "mine\n"
    assert seen[6] == "z\ndata"
    assert "syntax error" in seen[7]
    assert seen[8] == "started\n"
    assert seen[9] == "20 lines\n[]\n"


@pytest.mark.parametrize("word", ["1", "TRUE", " on"])
async def test_words_that_mean_ready(word: str):
    pieces = [f"export ANSWER_CONTENT=a ANSWER_READY='{wrong}'" for wrong in ("0", "no", "")]
    pieces.append(f"export ANSWER_READY='{word}'")
    async with opened(make(repl_language="bash")) as env:
        state, _ = await play(env, code(*pieces, "never", language="bash"))
    assert (state["final_answer"], len(results(state))) == ("a", 4)


async def test_tools_on_the_command_line():
    _, seen = await bash(
        "llm_batch 'a b' c; printf 'l1\\n\\nl2' | llm_batch --lines",
        """llm_batch --json '{"prompts": ["x"]}'; llm_batch --json '["y"]'; echo 'plain text' | llm_batch""",
        "lookup 3; lookup text 1; lookup '{\"a\": 1}' 1; say hi",
        """lookup --json '{"args": ["p"], "kwargs": {"n": 1}}'; lookup --json '{"key": "q", "n": 1}'""",
        """lookup --json '["r", 1]'; lookup --json '"s"'; echo '{"key": 5, "n": 1}' | lookup; lookup --json <<< '7'""",
        "say; say 'with text'; say '\"json text\"'; printf 5 | say",
        "type -t lookup; bash -c 'lookup in-child 1'; echo one two | xargs -n1 bash -c 'lookup $0 1'",
        "lookup --json '{}' extra; echo $?; lookup; echo $?; lookup --json '{broken'; echo $?",
        "echo nothing; x=$(lookup $(printf 'k%.0s' {1..3000}) 1); echo ${#x}",
    )
    assert seen[0] == '["sub:a b", "sub:c"]\n["sub:l1", "sub:", "sub:l2"]\n'
    assert seen[1] == '["sub:x"]\n["sub:y"]\n["sub:plain text"]\n'
    assert seen[2] == '[3, 3]\n["text"]\n[{"a": 1}]\nhi\n'
    assert seen[3] == '["p"]\n["q"]\n'
    assert seen[4] == '["r"]\n["s", "s"]\n[5]\n[7, 7]\n'
    assert seen[5] == "nothing\nwith text\njson text\n5\n"
    assert seen[6] == 'function\n["in-child"]\n["one"]\n["two"]\n'
    out, _, err = seen[7].partition("lookup: --json takes one argument")
    assert out == "1\n1\n1\n"
    assert "missing 1 required positional argument" in err
    assert "not valid JSON: {broken" in err
    assert seen[8] == "nothing\n3004\n"


async def test_a_shell_that_is_killed_keeps_the_values_of_before():
    _, seen = await bash(
        "ANSWER_CONTENT=kept; cd /tmp",
        "ANSWER_CONTENT=lost; kill -9 $$",
        'echo "$ANSWER_CONTENT $PWD"',
        "kill -9 $PPID",
        'echo "new $ANSWER_CONTENT"',
    )
    assert seen[2].strip() == "kept /tmp"
    assert seen[3].startswith("The code ended the REPL (code 137).")
    assert seen[4].strip() == "new"


# ------------------------------------------------------------------------------------------------- HTTP, variables


HTTP = """
import json, os, urllib.error, urllib.request
def post(url, body, key=os.environ["OPENAI_API_KEY"]):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Authorization": "Bearer " + key})
    try:
        answer = urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, json.load(answer)
tools, chat = os.environ["RLM_ROOT_TOOL_URL"], os.environ["RLM_INTERCEPTION_URL"]
hi = [{"role": "user", "content": "hi"}]
for url, body in (
    (tools, {"tool_name": "lookup", "args": ["k"]}), (tools, {"tool_name": "nope"}), (tools, b"{"),
    (chat, {"messages": hi}), (os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"messages": hi}),
    (tools.replace("rlm_", "rlm_x"), {}), (tools + "x", {}),
):
    print(post(url, body))
print(post(tools, {}, "wrong")[0], os.environ["RLM_ROOT_TOOL_NAMES"], os.environ["RLM_SUB_LLM_TIMEOUT"],
      os.environ["A"])
"""  # fmt: skip


async def test_other_programs_reach_tools_and_sub_llms_over_http():
    state, seen = await python(HTTP, sandbox_environment_vars={"A": "b", "OPENAI_API_KEY": "own"})
    lines = seen[0].splitlines()
    assert lines[0] == "(200, {'result': ['k', 'k']})"
    assert lines[1].startswith("(404, {'error': \"Tool 'nope' not found\"})")
    assert lines[2].startswith("(400, {'error': 'Invalid JSON")
    for line in lines[3:5]:
        assert line.startswith("(200, {'choices': [{'message': {")
        assert "'content': 'sub:hi'" in line
    assert lines[5].startswith("(404, ")
    assert lines[6].startswith("(404, ")
    assert lines[7] == '401 ["llm_batch", "lookup", "say"] 115 b'
    assert state["root_tool_url"].endswith(f"/rollout/{state['rollout_id']}/v1/rlm/tools")
    assert state["interception_url"].endswith(f"/rollout/{state['rollout_id']}/v1/chat/completions")


# ------------------------------------------------------------------------------------------------------- the end


def names_below(folder: str) -> dict[str, str]:
    root = Path(folder)
    files = [path for path in root.rglob("*") if path.is_file() and path.name != ".messages"]
    return {str(path.relative_to(root)): path.read_text() for path in files}


async def test_the_working_directory_is_kept_on_request():
    env = make(retain_filesystem_after_rollout=True)
    async with opened(env):
        state, _ = await play(
            env,
            [
                *code(
                    "import os\nos.makedirs('out'); open('out/a', 'w').write('made')\n"
                    "os.symlink('/etc/passwd', 'link'); os.remove('context.txt')"
                ),
                done(),
            ],
            context="data",
        )
        assert names_below(state["rlm_fs_root"]) == {"out/a": "made"}
        assert state["rlm_fs_root"].startswith(state["rlm_rollout_dir"])


async def test_a_reply_without_code_leaves_nothing_behind():
    async with opened(make()) as env:
        state, _ = await play(env, ["no code"])
    assert state["stop_condition"] == "no_tools_called"


async def test_a_failed_preparation_leaves_nothing_behind():
    class Failing(RLMEnv):
        async def on_sandbox_ready(self, state: vf.State, sandbox_id: str) -> None:
            result = await self._executor.sandbox_client.execute_command(sandbox_id, "echo here")
            raise KeyError(result.stdout)

    async with opened(make(Failing)) as env:
        state, _ = await play(env, [done()])
    assert isinstance(state["error"], RLMSetupError)
    assert "here" in str(state["error"])

    class Broken(RLMEnv):
        def customize_worker_script(self, script: str, state: vf.State) -> str:
            return "raise RuntimeError('broken script')"

    async with opened(make(Broken)) as env:
        state, _ = await play(env, [done()])
    assert isinstance(state["error"], RLMWorkerError)
    assert "broken script" in str(state["error"])


async def test_missing_packages_are_the_error_of_the_rollout():
    async with opened(make(pip_install_packages="no-such-package")) as env:
        state, _ = await play(env, [done()])
    assert "no-such-package" in str(state["error"])


async def test_installed_packages_can_be_imported():
    _, seen = await python("import packaging\npackaging.__name__", pip_install_packages="packaging")
    assert seen == ["Out[1]: 'packaging'"]


async def test_the_state_may_be_a_plain_dict():
    async with opened(make()) as env:
        state: dict[str, Any] = {
            "info": {"context": "data"},
            "trajectory": [],
            "prompt": row()["prompt"],
        }
        assert await env.setup_state(state) is state  # type: ignore[arg-type]
        assert (await env.get_prompt_messages(state))[0]["content"].startswith("<SCAFFOLDING>")  # type: ignore[arg-type]
        piece = "answer['content'] = open('context.txt').read(); answer['ready'] = True"
        assert await env.call_python_repl(piece, state) == "(no output)"
        assert state["final_answer"] == "data"
        await env.cleanup_rlm_state(state)  # type: ignore[arg-type]
    assert "OPENAI_API_KEY" not in str(state)


async def test_sandboxes_that_share_the_files_of_this_machine_leave_none():
    spec = {"isolation_min": "none"}
    async with opened(make(backend="unsafe-local", sandbox_spec=spec)) as env:
        model = root_and_subs([*code("llm_batch(['a'])"), done()])
        state, _ = await play(env, model, context="data")
    assert results(state)[0] == "Out[1]: ['sub']"
    assert names_below(f"/tmp/rlm_{state['rollout_id']}") == {}


async def test_a_client_without_processes_is_refused_with_a_reason():
    class Client:
        async def create(self, request: Any) -> Any:
            return SimpleNamespace(id="theirs")

        async def wait_for_creation(self, sandbox_id: str, **_: Any) -> None:
            pass

        async def delete(self, sandbox_id: str) -> None:
            self.deleted = sandbox_id

    env = make()
    theirs = Client()
    env.sandbox_client = theirs
    state, _ = await play(env, [done()])
    assert isinstance(state["error"], RLMSetupError)
    assert "Client" in str(state["error"])
    assert theirs.deleted == "theirs"


async def test_the_executor_offers_its_parts_to_authors():
    class Author(RLMEnv):
        async def post_rollout(self, state: vf.State) -> None:
            session = self._executor._get_session(state)
            result = await self._executor._execute_sandbox_command(
                session.sandbox_id, f"cat {session.paths.answer_file}", timeout=20
            )
            state["read"] = json.loads(result.stdout)
            raw = await self._executor.execute({"code": "print(1)", "seq": 99}, state)
            assert isinstance(raw, RLMExecResult)
            state["raw"] = json.loads(raw.stdout)
            state["so_far"] = await self._executor.read_answer(state)

        @vf.cleanup(priority=10)
        async def before_the_end(self, state: vf.State) -> None:
            await self.post_rollout(state)

    async with opened(make(Author)) as env:
        state, _ = await play(env, [done("so")])
    assert state["error"] is None
    assert state["read"] == {"ready": True, "content": "so"}
    assert state["so_far"] == "so"
    assert (state["raw"]["seq"], state["raw"]["stdout"], state["raw"]["execution_count"]) == (
        99,
        "1\n",
        2,
    )
    assert state["raw"]["status"] == "ok"
