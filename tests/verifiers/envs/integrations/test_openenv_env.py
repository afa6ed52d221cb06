"""`OpenEnvEnv` against a server in a process of its own.

The server is a small one of the same wire. The long suite runs the same tests against the server of the package
`openenv` itself, in a virtual environment that it makes: openenv's dependencies do not go with ours.
"""

import json
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs.integrations.openenv_env import OpenEnvEnv, parse_action, tool_result
from verifiers.envs.integrations.openenv_server import OpenEnvServerError, project_command
from verifiers.testing import ScriptedClient, call, run

HERE = Path(__file__).parent
PACKAGE = "openenv==0.10.0"
"""Named `openenv-core` up to 0.3."""


@pytest.fixture(scope="session")
def openenv_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with the package `openenv`."""
    folder = tmp_path_factory.mktemp("openenv") / "venv"
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE]
    installed = subprocess.run(command, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    return python


def show(observation: dict[str, Any]) -> list[dict[str, str]]:
    return [{"role": "user", "content": observation.get("text", "use the tools")}]


@pytest.fixture(params=["wire", pytest.param("openenv", marks=pytest.mark.long)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., OpenEnvEnv]]:
    server = [sys.executable, str(HERE / "openenv_wire_server.py")]
    if request.param == "openenv":
        python = request.getfixturevalue("openenv_python")
        server = [python, str(HERE / "openenv_package_server.py")]
    made: list[OpenEnvEnv] = []

    def build(contract: str = "gym", capacity: int = 8, **options: Any) -> OpenEnvEnv:
        command = [*server, "{port}", contract, str(capacity)]
        defaults: dict[str, Any] = {
            "prompt_renderer": show,
            "num_train_examples": 3,
            "num_eval_examples": 4,
            "startup_timeout_seconds": 50,
            "startup_poll_interval_seconds": 0.02,
        }
        made.append(OpenEnvEnv(tmp_path, server_command=command, **{**defaults, **options}))
        return made[-1]

    yield build
    for env in made:
        env.server.stop()


async def test_each_rollout_plays_an_episode_of_its_own(make: Callable[..., OpenEnvEnv]) -> None:
    env = make(num_train_examples=0, seed=3)

    def model(prompt: Any) -> str:
        seed = int(prompt[0]["content"].partition("seed ")[2].rstrip(")"))
        return "9" if len(prompt) == 1 else str(seed % 5)

    outputs = await run(env, ScriptedClient(model), n=-1, rollouts_per_example=2)

    assert [one["info"] for one in outputs] == [{"seed": s} for s in (3, 3, 4, 4, 5, 5, 6, 6)]
    assert all(one["error"] is None and one["reward"] == 1.0 for one in outputs)
    assert outputs[0]["metrics"] == {"sum_step_rewards": 1.0, "num_turns": 2.0}
    assert [m["content"] for m in outputs[0]["completion"]] == ["9", "no", "3", "yes"]
    assert outputs[0]["stop_condition"] == "openenv_done"
    await env.aclose()
    assert env.server._process is None


async def test_seeds_of_training_and_evaluation_never_meet(make: Callable[..., OpenEnvEnv]) -> None:
    env = make()
    train = [row["info"]["seed"] for row in env.source("train").inputs()]
    evaluation = [row["info"]["seed"] for row in env.source("eval").inputs()]
    assert (train, evaluation) == ([0, 1, 2], [3, 4, 5, 6])


async def test_rollouts_wait_when_the_server_has_no_free_session(
    make: Callable[..., OpenEnvEnv],
) -> None:
    env = make(capacity=1, max_turns=1)
    outputs = await run(env, ScriptedClient(then="3"), n=-1, rollouts_per_example=2)
    assert [one["error"] for one in outputs] == [None] * 8
    assert [one["reward"] for one in outputs] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


async def test_tools_of_the_server_are_called_and_their_errors_shown(
    make: Callable[..., OpenEnvEnv],
) -> None:
    env = make("mcp", num_eval_examples=1)
    client = ScriptedClient(
        [
            [call("add", a=1, b=2), call("bad")],
            [call("nope"), vf.ToolCall(id="x", name="add", arguments="{")],
            "3",
        ]
    )
    [output] = await run(env, client)

    results = [m["content"] for m in output["completion"] if m["role"] == "tool"]
    assert results[0] == "3"
    assert results[1].startswith("Error: Error calling tool 'bad'")
    assert "Unknown tool" in results[2]
    assert "not valid JSON" in results[3]
    assert output["stop_condition"] == "mcp_no_tool_calls"
    tools = client.requests[0].tools or []
    assert [tool.name for tool in tools] == ["add", "bad"]
    assert set(tools[0].parameters["properties"]) == {"a", "b"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [('{"msg": "3"}', "message: Field required"), ("[1]", "no")],
)
async def test_an_answer_that_is_no_action_ends_the_episode(
    make: Callable[..., OpenEnvEnv], answer: str, said: str
) -> None:
    env = make(num_eval_examples=1, max_turns=2)
    [output] = await run(env, ScriptedClient(then=answer))
    assert (output["error"], output["reward"]) == (None, 0.0)
    assert said in output["completion"][1]["content"]


async def test_a_failing_environment_is_the_rollouts_error_and_no_other_ones(
    make: Callable[..., OpenEnvEnv],
) -> None:
    env = make(num_eval_examples=2, max_turns=1)
    replies = {"guess (seed 3)": "boom", "guess (seed 4)": "4"}
    outputs = await run(env, ScriptedClient(lambda prompt: replies[prompt[0]["content"]]), n=-1)
    assert outputs[0]["error"] is not None
    assert "boom" in outputs[0]["error"]["error_chain_repr"]
    assert (outputs[1]["error"], outputs[1]["reward"]) == (None, 1.0)


async def test_a_server_that_is_gone_is_started_again_for_the_next_rollout(
    make: Callable[..., OpenEnvEnv],
) -> None:
    env = make(num_eval_examples=1, max_turns=2)
    await run(env, ScriptedClient(then="3"))
    assert env.server._process is not None
    env.server._process.kill()
    env.server._process._process.wait()
    [output] = await run(env, ScriptedClient(then="3"))
    assert (output["error"], output["reward"]) == (None, 1.0)


# ------------------------------------------------------------------------------------------ without a server


async def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    env = OpenEnvEnv(
        tmp_path,
        prompt_renderer=show,
        server_command=[sys.executable, "-c", "raise SystemExit('no such port: {port}')"],
        startup_poll_interval_seconds=0.01,
    )
    with pytest.raises(OpenEnvServerError, match=r"ended before it was ready.*no such port: \d+"):
        await env.server.url()
    env.server.stop()


async def test_a_url_nobody_listens_at_is_said() -> None:
    env = OpenEnvEnv(
        "http://127.0.0.1:1",
        prompt_renderer=show,
        startup_timeout_seconds=0.1,
        startup_poll_interval_seconds=0.01,
    )
    with pytest.raises(OpenEnvServerError, match=r"not healthy at http://127.0.0.1:1 within 0.1 s"):
        await env.server.url()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(vf.ConfigError, match="prompt_renderer"):
        OpenEnvEnv(tmp_path)
    with pytest.raises(vf.ConfigError, match=r"no OpenEnv project at .*/proj"):
        OpenEnvEnv(prompt_renderer=show)
    with pytest.raises(vf.ConfigError, match="num_eval_examples must not be negative"):
        OpenEnvEnv(tmp_path, prompt_renderer=show, num_eval_examples=-1)
    with pytest.raises(vf.ConfigError, match=r"needs .build.json and docker .*server_command"):
        project_command(tmp_path, 80)


MANIFEST = {"image": "org/env:1", "port": 9000, "start_command": "serve it", "contract": "gym"}


@pytest.mark.parametrize("missing", ["image", "start_command", "contract"])
def test_a_wrong_manifest_is_named(tmp_path: Path, missing: str) -> None:
    values = {k: v for k, v in MANIFEST.items() if k != missing}
    (tmp_path / ".build.json").write_text(json.dumps(values))
    with pytest.raises(vf.ConfigError, match=f"{missing!r} must be"):
        OpenEnvEnv(tmp_path, prompt_renderer=show)


def test_a_project_is_started_from_its_image_or_by_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {"docker": "/bin/docker", "uv": "/bin/uv"}
    monkeypatch.setattr("shutil.which", programs.get)
    (tmp_path / "openenv.yaml").write_text("name: x\napp: server.app:app  # ours\n")
    assert project_command(tmp_path, 81) == [
        *("/bin/uv", "run", "--project", str(tmp_path), "uvicorn", "server.app:app"),
        *("--host", "127.0.0.1", "--port", "81"),
    ]
    (tmp_path / ".build.json").write_text(json.dumps(MANIFEST))
    assert project_command(tmp_path, 81) == [
        *("/bin/docker", "run", "--rm", "--init", "-p", "127.0.0.1:81:9000", "org/env:1"),
        *("sh", "-c", "serve it"),
    ]


ONE_TEXT = {"properties": {"message": {"type": "string"}}, "required": ["message"]}
TWO = {"properties": {"x": {"type": "integer"}, "y": {"type": "string"}}, "required": ["x"]}
OPTIONAL = {
    "properties": {"m": {"type": "string"}, "k": {"type": "string", "default": "x"}},
    "required": ["m"],
}


@pytest.mark.parametrize(
    ("text", "schema", "action"),
    [
        ("hello", ONE_TEXT, {"message": "hello"}),
        ('{"message": "hi"}', ONE_TEXT, {"message": "hi"}),
        ('```json\n{"message": "hi"}\n```', ONE_TEXT, {"message": "hi"}),
        ("", ONE_TEXT, {"message": ""}),
        ("[1]", ONE_TEXT, {"message": "[1]"}),
        ('{"x": 3}', TWO, {"x": 3}),
        ("hello", OPTIONAL, {"m": "hello"}),
    ],
)
def test_answers_become_actions_as_in_v0(text: str, schema: Any, action: Any) -> None:
    assert parse_action(text, schema) == action


def test_text_for_an_action_of_several_fields_names_them() -> None:
    with pytest.raises(ValueError, match="JSON object with these fields: x, y"):
        parse_action("3", TWO)


@pytest.mark.parametrize(
    ("observation", "shown"),
    [
        ({"result": {"data": "hey", "structured_content": {"result": "hey"}}}, "hey"),
        ({"result": {"content": [{"type": "text", "text": "hey"}]}}, "hey"),
        ({"result": {"data": {"a": 1}}}, '{"a": 1}'),
        ({"error": {"message": "bad"}, "result": None}, "Error: bad"),
    ],
)
def test_tool_results_are_readable(observation: Any, shown: str) -> None:
    assert tool_result(observation) == shown


def test_a_renderer_is_given_only_what_it_asks_for(tmp_path: Path) -> None:
    seen: list[Any] = []

    def renderer(observation: Any, *, seed: int | None) -> list[dict[str, str]]:
        seen.append((observation, seed))
        return show(observation)

    env = OpenEnvEnv(tmp_path, prompt_renderer=renderer)
    env.render({"text": "x"}, "reset", seed=4, contract="gym")
    assert seen == [({"text": "x"}, 4)]
    broken = OpenEnvEnv(tmp_path, prompt_renderer=lambda observation: "text")  # type: ignore[arg-type,return-value]
    with pytest.raises(vf.ConfigError, match="non-empty list of chat messages; for reset"):
        broken.render({}, "reset")
