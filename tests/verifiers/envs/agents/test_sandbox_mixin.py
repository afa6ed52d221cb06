"""`SandboxMixin`: what published environments call and override, over real sandboxes."""

import asyncio
import logging
import tarfile
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verifiers as vf
from verifiers.envs.experimental.sandbox_mixin import (
    CreateSandboxRequest,
    SandboxCreationError,
    SandboxMixin,
    SandboxNotReadyError,
    SandboxSetupError,
    SandboxTimeouts,
    ThreadedAsyncSandboxClient,
    is_retryable_sandbox_api_error,
    is_retryable_sandbox_read_error,
)
from verifiers.envs.sandbox_client import CommandTimeoutError
from verifiers.errors import ConfigError, SandboxError
from verifiers.sandboxes import SandboxDead, SandboxRateLimited, SandboxUnresponsive
from verifiers.testing import ScriptedClient

ROW = {"prompt": [{"role": "user", "content": "Hi."}], "answer": "", "example_id": 0}
REQUEST = CreateSandboxRequest(memory_gb=0.125, disk_size_gb=0.03)


class Boxed(SandboxMixin, vf.SingleTurnEnv):
    """As the documentation of v0 shows it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(dataset=[ROW], rubric=vf.Rubric(funcs=[lambda: 1.0]), **kwargs)
        self.init_sandbox_client(max_retries=2, base_delay=0.001)

    async def setup_state(self, state: vf.State) -> None:
        await self.create_sandbox(state, REQUEST)
        await super().setup_state(state)


@pytest.fixture
async def env():
    async with Boxed() as env:
        yield env


@pytest.fixture
async def box(env: Boxed) -> str:
    return await env.create_sandbox(vf.State(input=dict(ROW)), REQUEST)


async def test_a_rollout_has_a_sandbox_that_ends_with_it(env: Boxed):
    seen: list[str] = []

    async def look(state: vf.State) -> None:
        seen.append(await env.read_file(state["sandbox_id"], "/etc/hostname") or "")

    env.post_sandbox_setup = look  # type: ignore[method-assign]
    results = await env.generate([ROW] * 3, ScriptedClient(lambda prompt: "Hello."), "m")
    assert [output["error"] for output in results["outputs"]] == [None] * 3
    assert seen == ["sandbox\n"] * 3
    assert env.active_sandboxes == set()


async def test_files_go_in_and_come_out(env: Boxed, box: str, tmp_path: Any):
    local = tmp_path / "local.txt"
    local.write_text("from outside")
    await env.upload_file(box, "/box/one.txt", str(local))
    await env.upload_content(box, "ünïcode", "/box/deep/two.txt")
    await env.upload_bundle(box, {"a/b.py": "print(1)", "c.txt": "c"}, "/box/bundle")
    assert await env.read_file(box, "/box/one.txt") == "from outside"
    assert await env.read_file(box, "/box/deep/two.txt") == "ünïcode"
    assert await env.read_file(box, "/box/bundle/a/b.py", timeout=3) == "print(1)"
    assert await env.read_file(box, "/box/nothing") is None


class Provider:
    """The client of a provider, as far as a bundle needs it."""

    def __init__(self, exit_code: int = 0) -> None:
        self.exit_code = exit_code
        self.uploads: list[tuple[str, str, dict[str, str]]] = []
        self.commands: list[tuple[str, str, dict[str, Any]]] = []

    async def upload_file(self, sandbox_id: str, remote_path: str, local_path: str) -> None:
        with tarfile.open(local_path) as archive:
            files = {name: archive.extractfile(name) for name in archive.getnames()}
            texts = {name: file.read().decode() for name, file in files.items() if file}
        self.uploads.append((sandbox_id, remote_path, texts))

    async def execute_command(self, sandbox_id: str, command: str, **options: Any) -> Any:
        self.commands.append((sandbox_id, command, options))
        return SimpleNamespace(exit_code=self.exit_code, stdout="", stderr="disk full")

    def teardown(self) -> None: ...


async def test_a_bundle_reaches_the_client_of_a_provider_as_one_archive():
    env = Boxed()
    env.sandbox_client = provider = Provider()
    await env.upload_bundle("s1", {"a/b.py": "print(1)", "c.txt": "c"}, "/my box")
    [(sandbox_id, archive, files)] = provider.uploads
    assert (sandbox_id, files) == ("s1", {"a/b.py": "print(1)", "c.txt": "c"})
    [(sandbox_id, command, options)] = provider.commands
    assert (sandbox_id, options) == ("s1", {"timeout": 60})
    assert f"tar -xzf '{archive}' -C '/my box'" in command


async def test_an_archive_that_cannot_be_unpacked_is_an_error_of_the_sandbox():
    env = Boxed()
    env.sandbox_client = Provider(exit_code=1)
    with pytest.raises(SandboxError, match=r"exit code 1.*disk full"):
        await env.upload_bundle("s1", {"a": ""}, "/box")


CLASSES = "verifiers.envs.experimental.sandbox_mixin"


def test_sandboxes_that_are_left_are_deleted_in_batches_by_the_providers_client(caplog: Any):
    env = Boxed()
    env.active_sandboxes = {f"s{number}" for number in range(250)}
    with mock.patch(f"{CLASSES}.APIClient") as api, mock.patch(f"{CLASSES}.SandboxClient") as made:
        delete = made.return_value.bulk_delete
        delete.side_effect = [None, RuntimeError("no answer"), None]
        env.teardown_sandboxes()
        made.assert_called_once_with(api.return_value)
        batches = [call.kwargs["sandbox_ids"] for call in delete.call_args_list]
        assert [len(batch) for batch in batches] == [100, 100, 50]
        assert env.active_sandboxes == set(batches[1])
        assert "Failed to bulk delete 100 sandboxes: RuntimeError('no answer')" in caplog.text
        delete.side_effect = None
        env.teardown_sandboxes()
        env.teardown_sandboxes()
    assert (env.active_sandboxes, made.call_count) == (set(), 2)


def test_a_missing_provider_is_reported_and_the_sandboxes_stay_registered(caplog: Any):
    env = Boxed()
    env.active_sandboxes = {"s1"}
    with mock.patch(f"{CLASSES}.APIClient", side_effect=ConfigError("no key")):
        env.teardown_sandboxes()
    assert env.active_sandboxes == {"s1"}
    assert "['s1'] could not be deleted: no key" in caplog.text
    env.active_sandboxes = set()


@pytest.mark.parametrize("kind", ["mixin", "SandboxEnv"])
async def test_a_bulk_deletion_is_logged_and_what_failed_stays_registered(kind: str, caplog: Any):
    rows = [{"question": "q", "answer": "a"}]
    env: Any = Boxed() if kind == "mixin" else vf.SandboxEnv(dataset=rows, max_retries=1)
    env.sandbox_client = mock.Mock(bulk_delete=mock.AsyncMock(side_effect=[None, OSError("x")] * 9))
    env.with_retry = lambda function: function
    env.active_sandboxes = {"a", "b"}
    with caplog.at_level(logging.DEBUG):
        await env.bulk_delete_sandboxes(["a"])
        await env.bulk_delete_sandboxes(["b"])
    assert env.active_sandboxes == {"b"}
    assert [(r.levelname, r.getMessage()) for r in caplog.records if "ulk delete" in r.message] == [
        ("DEBUG", "Bulk deleted sandboxes: ['a']"),
        ("ERROR", "Failed to bulk delete sandboxes ['b']: OSError('x')"),
    ]
    env.active_sandboxes = set()


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
async def test_a_bundle_stays_in_its_folder(env: Boxed, box: str, name: str):
    with pytest.raises(ConfigError, match="must be relative"):
        await env.upload_bundle(box, {name: ""}, "/box")


async def test_a_background_job_runs_to_its_end(env: Boxed, box: str):
    state = {"sandbox_id": box}
    done = await env.run_background_job(state, "echo out; echo err >&2; exit 3", timeout=20)
    assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")
    with pytest.raises(CommandTimeoutError):
        await env.run_background_job(state, "sleep 100", timeout=1)


async def test_a_job_can_be_watched_and_ended(env: Boxed, box: str):
    client = env.sandbox_client
    ended = await client.start_background_job(box, "echo done; head -c 3000000 /dev/zero")
    status = await client.wait_for_background_job(box, ended)
    assert (status.completed, status.exit_code) == (True, 0)
    assert status.stdout.startswith("done\n")
    assert "bytes dropped" in status.stdout
    assert await client.end_background_job(box, ended) == status
    endless = await client.start_background_job(box, "echo $$ > /box/pid; exec sleep 1000")
    assert not (await client.get_background_job(box, endless)).completed
    # The job is running for certain once its shell has written its number.
    await client.execute_command(box, "until [ -s /box/pid ]; do :; done", timeout=30)
    status = await client.end_background_job(box, endless)
    assert (status.completed, status.exit_code) == (False, None)
    alive = await client.execute_command(box, "kill -0 $(cat /box/pid)")
    assert alive.exit_code != 0


@pytest.mark.parametrize(
    ("reason", "key"), [("oom", "sandbox_oom"), ("ttl", "sandbox_timeout"), ("crashed", None)]
)
async def test_the_state_says_what_befell_the_sandbox(env: Boxed, reason: Any, key: str | None):
    async def lost(**_: Any) -> None:
        raise SandboxDead("gone", reason)

    env.sandbox_client.run_background_job = lost
    state: dict[str, Any] = {"sandbox_id": "x"}
    with pytest.raises(SandboxError):
        await env.run_background_job(state, "true", 1)
    assert [name for name in ("sandbox_oom", "sandbox_timeout") if state.get(name)] == [
        *([key] if key else [])
    ]


async def test_what_fails_before_the_rollout_has_its_own_error(env: Boxed):
    attempts: list[int] = []

    async def bad(*_: Any, **__: Any) -> None:
        attempts.append(1)
        raise RuntimeError("bad")

    state: dict[str, Any] = {}
    create = env.sandbox_client.create
    env.sandbox_client.create = bad
    with pytest.raises(SandboxCreationError, match="Failed to create sandbox: bad"):
        await env.create_sandbox(state, REQUEST)
    assert (len(attempts), state) == (3, {})  # max_retries=2: the first attempt and two more
    env.sandbox_client.create = create
    wait = env.sandbox_client.wait_for_creation
    env.sandbox_client.wait_for_creation = bad
    with pytest.raises(SandboxNotReadyError, match="failed to become ready: bad"):
        await env.create_sandbox(state, REQUEST)
    assert state["sandbox_id"] in env.active_sandboxes
    env.sandbox_client.wait_for_creation = wait
    env.post_sandbox_setup = bad  # type: ignore[method-assign]
    with pytest.raises(SandboxSetupError, match="setup failed: bad"):
        await env.create_sandbox(state, REQUEST)


async def test_sandboxes_are_ended_one_by_one_in_bulk_and_with_the_environment(env: Boxed):
    boxes = [await env.create_sandbox(vf.State(input=dict(ROW)), REQUEST) for _ in range(4)]
    await env.delete_sandbox(boxes[0])
    await env.bulk_delete_sandboxes(boxes[1:3])
    assert env.active_sandboxes == {boxes[3]}
    sandbox = env.sandbox_client.sandbox(boxes[3])
    await env.aclose()
    assert env.active_sandboxes == set()
    with pytest.raises(SandboxDead):
        await sandbox.exec("true")


async def test_one_that_cannot_be_deleted_is_tried_again_at_the_end(env: Boxed, box: str):
    delete = env.sandbox_client.delete

    async def bad(*_: Any) -> None:
        raise RuntimeError("bad")

    env.sandbox_client.delete = bad
    await env.delete_sandbox(box)
    assert env.active_sandboxes == {box}
    env.sandbox_client.delete = delete


async def test_v0s_client_takes_the_sizes_of_a_remote_one():
    client = ThreadedAsyncSandboxClient(max_workers=3, max_connections=4, api_key="x")
    created = await client.create(REQUEST)
    assert (await client.execute_command(created.id, "echo hi")).stdout == "hi\n"
    await client.aclose()


@given(st.none() | st.floats(0.001, 1e7), st.none() | st.integers(1, 9999))
def test_a_sandbox_outlives_its_rollout_by_an_hour_but_not_a_day(
    timeout_seconds: float | None, own: int | None
):
    class Sized(SandboxMixin):
        def __init__(self) -> None:
            self.timeout_seconds = timeout_seconds
            self.sandbox_timeout_minutes = own

    minutes = Sized().compute_sandbox_timeout_minutes()
    if own is not None:
        assert minutes == own
    elif timeout_seconds is None:
        assert minutes == 1440
    else:
        assert minutes <= 1440
        assert minutes == 1440 or minutes * 60 - 3600 >= timeout_seconds


def test_the_time_limits_of_single_steps_are_v0s():
    assert SandboxTimeouts() == SandboxTimeouts(read_file=10, extract=60, poll=60, mkdir=10)


def test_what_may_be_tried_again():
    slow = CommandTimeoutError("s", "c", 1.0)
    assert is_retryable_sandbox_read_error(slow)
    assert not is_retryable_sandbox_api_error(slow)
    assert is_retryable_sandbox_read_error(SandboxUnresponsive("x"))
    assert is_retryable_sandbox_api_error(SandboxRateLimited("x"))
    assert is_retryable_sandbox_read_error(SandboxRateLimited("x"))
    for error in (ValueError("HTTP 503"), SandboxDead("x"), asyncio.CancelledError()):
        assert not is_retryable_sandbox_api_error(error)
        assert not is_retryable_sandbox_read_error(error)


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("HTTP 502: bad", True),
        ("HTTP 503", True),
        ("Request failed: ConnectError", True),
        ("HTTP 500: x", False),
        ("HTTP 429: slow", False),
    ],
)
def test_a_providers_own_errors_are_understood(text: str, may: bool):
    sdk = pytest.importorskip("prime_sandboxes")
    assert is_retryable_sandbox_api_error(sdk.APIError(text)) is may


async def test_a_decorated_teardown_runs_once():
    ended: list[str] = []

    class Mine(Boxed):
        @vf.teardown
        async def teardown_sandboxes(self) -> None:
            ended.append("sandboxes")
            await self.bulk_delete_sandboxes(sorted(self.active_sandboxes))

    async with Mine() as env:
        await env.create_sandbox(vf.State(input=dict(ROW)), REQUEST)
    assert ended == ["sandboxes"]
    assert not env.active_sandboxes


def test_both_import_paths_have_one_monitor_rubric_which_reports_what_it_is_asked_for():
    from verifiers.envs.experimental import sandbox_mixin
    from verifiers.envs.sandbox_env import SandboxMonitorRubric

    assert sandbox_mixin.SandboxMonitorRubric is SandboxMonitorRubric
    times = ["sandbox_ready_wait_time", "sandbox_command_execution_time"]
    assert SandboxMonitorRubric(metrics=times)._get_reward_func_names() == times
    failures = ["sandbox_oom", "sandbox_timeout"]
    assert SandboxMonitorRubric()._get_reward_func_names() == [*times, *failures]
