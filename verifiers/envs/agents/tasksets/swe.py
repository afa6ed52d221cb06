"""Software tasks: an issue of a repository that the agent solves, and the tests of the repository that score it.

Their images contain the repository. Choose a back end with images, such as "prime" (`VF_SANDBOX_BACKEND`).
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from verifiers.envs.agents.task_sets import SandboxSpec, SandboxTaskSet, TaskSet
from verifiers.envs.agents.tasksets.common import (
    TaskRubric,
    load_rows,
    rows_from,
    run_checked,
    test_timeout_s,
    unpack,
    write_text,
)
from verifiers.errors import ConfigError

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_SUMMARY = "short test summary info"
_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR)\s+(.*)$")


class _RepositoryTaskSet(SandboxTaskSet):
    """Issues of repositories in images. Subclasses run the tests."""

    default_workdir = "/testbed"

    def __init__(
        self,
        name: str,
        dataset_name: str,
        split: str,
        filter_repos: Sequence[str] | None,
        filter_fn: str | None,
        ds_num_proc: int | None,
        ds_keep_in_memory: bool,
        timeout_minutes: int | None,
        instance_key: str,
        repo_key: str,
    ) -> None:
        self.timeout_minutes = timeout_minutes
        removed = frozenset(filter_repos or ())

        def convert(row: Mapping[str, Any]) -> dict[str, Any]:
            info = {**row, "instance_id": row[instance_key], "repo": row[repo_key]}
            return {"question": row["problem_statement"], "info": info, "answer": ""}

        def load() -> list[dict[str, Any]]:
            rows = load_rows(dataset_name, None, split, ds_num_proc, ds_keep_in_memory)
            converted = rows_from(rows, convert, ("problem_statement", instance_key, repo_key))
            return [row for row in converted if row["info"]["repo"] not in removed]

        super().__init__(load, name=name, filter_fn=filter_fn)

    def get_instruction(self, info: dict[str, Any]) -> str:
        """Return the issue."""
        return info["problem_statement"]

    def get_rubric(self) -> TaskRubric:
        """Return the rubric that runs the tests."""
        return _RepositoryRubric(self)

    async def run_tests(self, state: Any) -> float:
        """Return 1.0 if the tests of the repository accept the change. Store their output as `test_output`."""
        raise NotImplementedError

    async def run_script(self, state: Any, command: str) -> str:
        """Run a command in the repository and store its output."""
        done = await state["sandbox_client"].run_background_job(
            state["sandbox_id"],
            command,
            timeout=int(test_timeout_s(state)),
            working_dir=self.get_workdir(state["info"]),
        )
        state["test_output"] = f"{done.stdout or ''}\n{done.stderr or ''}"
        return state["test_output"]


class _RepositoryRubric(TaskRubric):
    async def verdict(self, state: Any, info: dict[str, Any]) -> float:
        return await self.taskset.run_tests(state)


class R2EGymTaskSet(_RepositoryTaskSet):
    """The tasks of R2E-Gym. Source: https://github.com/R2E-Gym/R2E-Gym

    `filter_repos` removes the rows of these repositories. `registry` is put in front of the names of the images. With
    `hide_tests_from_agent`, the tests are taken out of the sandbox until the agent has ended.
    """

    tests_path = "/r2e_tests"
    """Directory of the tests in the images."""

    def __init__(
        self,
        dataset_name: str = "R2E-Gym/R2E-Gym-Subset",
        repo_path: str = "/testbed",
        alt_path: str = "/root",
        filter_repos: Sequence[str] | None = None,
        filter_fn: str | None = None,
        ds_num_proc: int | None = None,
        ds_keep_in_memory: bool = True,
        timeout_minutes: int | None = None,
        hide_tests_from_agent: bool = True,
        registry: str = "",
    ) -> None:
        self.repo_path = repo_path
        self.alt_path = alt_path
        self.hide_tests_from_agent = hide_tests_from_agent
        self.registry = registry
        super().__init__(
            "swe/r2e",
            dataset_name,
            "train",
            filter_repos,
            filter_fn,
            ds_num_proc,
            ds_keep_in_memory,
            timeout_minutes,
            "commit_hash",
            "repo_name",
        )

    def get_workdir(self, info: dict[str, Any]) -> str:
        """Return the directory of the repository."""
        return self.repo_path

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        """Return a sandbox with the image of the task."""
        image = f"{self.registry}{info['docker_image']}"
        return SandboxSpec(image, timeout_minutes=self.timeout_minutes)

    async def setup(self, state: Any) -> None:
        """Link the virtual environment, remove byte code, and hide the tests."""
        client, sandbox_id = state["sandbox_client"], state["sandbox_id"]
        repo, alt, tests = map(shlex.quote, (self.repo_path, self.alt_path, self.tests_path))
        await run_checked(
            client,
            sandbox_id,
            f"mkdir -p {alt}/.local/bin && ln -sfn {repo}/.venv {alt}/.venv && "
            f"find {repo}/.venv/bin -type f -executable -exec ln -sf {{}} {alt}/.local/bin/ \\; ; "
            f"find {repo} {tests} \\( -name '*.pyc' -o -name __pycache__ \\) -not -path '*/.venv/*' -prune "
            "-exec rm -rf {} +",
        )
        if not self.hide_tests_from_agent:
            await run_checked(client, sandbox_id, f"mv {tests} {repo}/r2e_tests")
            return
        state["_hidden_tests"] = await self._take(client, sandbox_id)

    async def _take(self, client: Any, sandbox_id: str) -> bytes:
        """Remove the tests and their script from the sandbox, and return them as a gzipped tar file."""
        script = f"{self.repo_path}/run_tests.sh"
        packed = "/tmp/_hidden_tests.tar.gz"
        paths = shlex.join([self.tests_path, script])
        await run_checked(client, sandbox_id, f"tar -czf {packed} -P {paths}")
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / "tests.tar.gz"
            await client.download_file(
                sandbox_id=sandbox_id, file_path=packed, local_file_path=str(local), timeout=300
            )
            data = await asyncio.to_thread(local.read_bytes)
        await run_checked(client, sandbox_id, f"rm -rf {packed} {shlex.quote(self.tests_path)}")
        return data

    async def run_tests(self, state: Any) -> float:
        """Return 1.0 if all tests have the expected outcomes."""
        client, sandbox_id = state["sandbox_client"], state["sandbox_id"]
        repo, tests = shlex.quote(self.repo_path), shlex.quote(self.tests_path)
        hidden = state.get("_hidden_tests")
        if hidden is not None:
            await run_checked(client, sandbox_id, f"rm -rf {tests} {repo}/r2e_tests")
            await unpack(client, sandbox_id, hidden)
            await run_checked(client, sandbox_id, f"mv {tests} {repo}/r2e_tests")
        output = await self.run_script(
            state, f'export PATH="{self.repo_path}/.venv/bin:$PATH"; /bin/bash run_tests.sh 2>&1'
        )
        expected = json.loads(state["info"]["expected_output_json"])
        wanted = {_test_name(name): outcome for name, outcome in expected.items()}
        return float(outcomes_of(output) == wanted)

    async def validate_instance(self, state: Any) -> bool:
        """Apply the change of the dataset and run the tests."""
        commit = json.loads(state["info"]["parsed_commit_content"])
        client, sandbox_id = state["sandbox_client"], state["sandbox_id"]
        for change in commit.get("file_diffs") or []:
            path = (change.get("header") or {}).get("file", {}).get("path", "")
            if path and change.get("new_file_content") and "test" not in path:
                target = f"{self.repo_path}/{path}"
                await write_text(client, sandbox_id, target, change["new_file_content"])
        return await self.run_tests(state) == 1.0


def outcomes_of(output: str) -> dict[str, str]:
    """Return test → PASSED, FAILED or ERROR from the short summary of pytest. Names are without file and colours."""
    _, found, summary = _ANSI.sub("", output).partition(_SUMMARY)
    outcomes: dict[str, str] = {}
    for line in summary.splitlines() if found else []:
        if match := _OUTCOME.match(line.strip()):
            outcomes[_test_name(match[2])] = match[1]
    return outcomes


def _test_name(text: str) -> str:
    """Return `Class.test` of `file.py::Class::test - reason`."""
    name = _ANSI.sub("", text).split(" - ")[0].strip()
    parts = name.split("::")
    return ".".join(parts[1:]) if len(parts) > 1 else name


class SWEBenchTaskSet(_RepositoryTaskSet):
    """The tasks of SWE-bench. Image, tests and verdict come from the package `swebench`.

    With `skip_install`, the package is not installed again if only Python files have changed. `filter_repos` removes
    the rows of these repositories. Source: https://github.com/SWE-bench/SWE-bench
    """

    def __init__(
        self,
        dataset_name: str = "princeton-nlp/SWE-bench_Verified",
        skip_install: bool = True,
        filter_repos: Sequence[str] | None = None,
        filter_fn: str | None = None,
        ds_num_proc: int | None = None,
        ds_keep_in_memory: bool = True,
        timeout_minutes: int | None = None,
    ) -> None:
        self.skip_install = skip_install
        super().__init__(
            "swe/swebench",
            dataset_name,
            "test",
            filter_repos,
            filter_fn,
            ds_num_proc,
            ds_keep_in_memory,
            timeout_minutes,
            "instance_id",
            "repo",
        )

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        """Return a sandbox with the image of the task."""
        spec = _swebench_spec(info)
        image = getattr(spec, "image", None) or spec.instance_image_key
        return SandboxSpec(image, timeout_minutes=self.timeout_minutes)

    async def run_tests(self, state: Any) -> float:
        """Return 1.0 if all tests that must pass do so."""
        client, sandbox_id, info = state["sandbox_client"], state["sandbox_id"], state["info"]
        spec = _swebench_spec(info)
        script = spec.eval_script
        if self.skip_install and await self._only_python_changed(client, sandbox_id, info):
            script = without_install(script)
        await write_text(client, sandbox_id, "/tmp/eval.sh", script)
        output = await self.run_script(state, "/bin/bash /tmp/eval.sh 2>&1")
        return float(await asyncio.to_thread(_is_resolved, spec, info["instance_id"], output))

    async def _only_python_changed(
        self, client: Any, sandbox_id: str, info: Mapping[str, Any]
    ) -> bool:
        base = shlex.quote(str(info["base_commit"]))
        done = await client.execute_command(
            sandbox_id,
            f"cd {self.default_workdir} && git add -AN . && git -c core.quotePath=false diff --name-only {base}",
            timeout=60,
        )
        names = (done.stdout or "").split("\n")
        return done.exit_code == 0 and all(
            name.endswith(".py") and not name.endswith("setup.py") for name in names if name
        )

    async def validate_instance(self, state: Any) -> bool:
        """Apply the patch of the dataset and run the tests. Raises RuntimeError if it does not apply."""
        client, sandbox_id = state["sandbox_client"], state["sandbox_id"]
        await write_text(client, sandbox_id, "/tmp/gold.patch", state["info"]["patch"])
        done = await client.execute_command(
            sandbox_id, f"cd {self.default_workdir} && git apply /tmp/gold.patch", timeout=60
        )
        if done.exit_code != 0:
            raise RuntimeError(f"The gold patch does not apply: {(done.stderr or '')[-500:]}")
        return await self.run_tests(state) == 1.0


_INSTALL = re.compile(
    r"^[ \t]*(?:python3? -m )?pip[ ]install .*(?:-e[ \t]|[ \t]\.(?:\[|[ \t]|$)).*$", re.MULTILINE
)


def without_install(script: str) -> str:
    """Return a script of SWE-bench without the lines that install the repository."""
    return _INSTALL.sub(":", script)


def _swebench_spec(info: Mapping[str, Any]) -> Any:
    try:
        try:
            from swebench.harness.utils import make_test_spec  # type: ignore[import-not-found]
        except ImportError:  # before swebench 5
            from swebench.harness.test_spec.test_spec import (  # type: ignore[import-not-found]
                make_test_spec,
            )
    except ImportError as error:
        raise ConfigError(
            "SWE-bench tasks need the package 'swebench' for images and verdicts. Install it: pip install swebench"
        ) from error
    return make_test_spec(dict(info))


def _is_resolved(spec: Any, instance_id: str, output: str) -> bool:
    from swebench.harness.grading import get_eval_report  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "test_output.txt"
        log.write_text(output)
        prediction = {"instance_id": instance_id, "model_name_or_path": "agent", "model_patch": "-"}
        report = get_eval_report(spec, prediction, str(log), False)
    return bool(report[instance_id]["resolved"])


# ----------------------------------------------------------------------------------------------------- by name


def make_r2e_taskset(**kwargs: Any) -> TaskSet:
    """Return the tasks of R2E-Gym."""
    return R2EGymTaskSet(**kwargs)


def make_swebench_taskset(**kwargs: Any) -> TaskSet:
    """Return the tasks of SWE-bench."""
    return SWEBenchTaskSet(**kwargs)


_OFFERED: dict[str, Callable[..., TaskSet]] = {
    "r2e": make_r2e_taskset,
    "swebench": make_swebench_taskset,
}
_LANGUAGES = ("py", "go", "java", "js", "ts", "rs", "cpp", "php")
_NOT_OFFERED = (
    "openswe",
    "multiswe",
    "swelego-real",
    "swerebench-v2",
    "scaleswe",
    *(f"swesmith-{language}" for language in _LANGUAGES),
)


def make_swe_taskset(backend: str = "r2e", **kwargs: Any) -> TaskSet:
    """Return a taskset by the name of its dataset. Raises ConfigError for another name."""
    if backend in _NOT_OFFERED:
        _refuse(backend)
    if backend not in _OFFERED:
        raise ConfigError(
            f"Unknown backend {backend!r}. Choose one of {', '.join([*_OFFERED, *_NOT_OFFERED])}."
        )
    return _OFFERED[backend](**kwargs)


def _refuse(backend: str) -> NoReturn:
    raise ConfigError(
        f"The backend {backend!r} is not offered; use r2e, swebench or HarborDatasetTaskSet."
    )


def _refusing(backend: str) -> Callable[..., TaskSet]:
    def make(**kwargs: Any) -> TaskSet:
        _refuse(backend)

    make.__name__ = f"make_{backend.replace('-', '_')}_taskset"
    make.__doc__ = "Raise ConfigError, which names the tasksets that are offered."
    return make


def make_swesmith_taskset(language: str = "py", **kwargs: Any) -> TaskSet:
    """Raise ConfigError, which names the tasksets that are offered."""
    _refuse(f"swesmith-{language}")


make_openswe_taskset = _refusing("openswe")
make_multiswe_taskset = _refusing("multiswe")
make_swelego_real_taskset = _refusing("swelego-real")
make_swerebench_v2_taskset = _refusing("swerebench-v2")
make_scaleswe_taskset = _refusing("scaleswe")
make_swesmith_py_taskset = _refusing("swesmith-py")
make_swesmith_go_taskset = _refusing("swesmith-go")
make_swesmith_java_taskset = _refusing("swesmith-java")
make_swesmith_js_taskset = _refusing("swesmith-js")
make_swesmith_ts_taskset = _refusing("swesmith-ts")
make_swesmith_rs_taskset = _refusing("swesmith-rs")
make_swesmith_cpp_taskset = _refusing("swesmith-cpp")
make_swesmith_php_taskset = _refusing("swesmith-php")
