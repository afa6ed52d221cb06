"""The harness of RLM, a recursive language model as a program: it works in a Python session and may start itself again
on parts of the task.

The agent is a git checkout. It is fetched to this machine on the first rollout, uploaded into each sandbox, and
installed there by the checkout's own `install.sh`.

Source: https://github.com/PrimeIntellect-ai/rlm-harness
"""

from __future__ import annotations

import json
import random
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verifiers.envs.agents.harness import Harness
from verifiers.envs.git_checkouts import resolve_git_checkout
from verifiers.errors import ConfigError
from verifiers.types import Messages, SystemMessage, TrajectoryStep

DEFAULT_RLM_REPO_URL = "github.com/PrimeIntellect-ai/rlm-harness.git"
DEFAULT_RLM_REF = "main"
DEFAULT_RLM_MAX_TURNS = 100
DEFAULT_RLM_EXEC_TIMEOUT = 300
DEFAULT_RLM_MAX_DEPTH = 0
DEFAULT_APPEND_TO_SYSTEM_PROMPT_PATH = "/task/append_to_system_prompt.txt"
DEFAULT_RLM_CHECKOUT_PATH = "/tmp/rlm-checkout"
DEFAULT_RLM_CHECKOUT_UPLOAD_NAME = "rlm_checkout"
DEFAULT_RLM_LOCAL_CHECKOUT_CACHE_ROOT = Path.home() / ".cache" / "verifiers" / "rlm-checkouts"
"""Read when a checkout is resolved, so that callers can replace it."""
_REQUIRED_FILES = ("install.sh", "pyproject.toml")
DEPTH_HEADER = "x-rlm-depth"
"""Header of the agent's requests: 0 for the agent itself, more for those that it started."""
COMPACTION_BOUNDARY_MARKER = (
    "[The agent shortened its conversation here. The messages below start from the shortened one.]"
)


def resolve_local_checkout(
    local_checkout: str | Path | None = None,
    *,
    rlm_repo_url: str = DEFAULT_RLM_REPO_URL,
    rlm_ref: str = DEFAULT_RLM_REF,
    gh_token: str | None = None,
) -> Path:
    """Return a checkout of the agent on this machine: `local_checkout`, or one that is fetched. Blocks.

    Raises ConfigError if the checkout has no `install.sh` or `pyproject.toml`, and GitCheckoutError.
    """
    return resolve_git_checkout(
        repo_url=rlm_repo_url,
        ref=rlm_ref,
        cache_root=DEFAULT_RLM_LOCAL_CHECKOUT_CACHE_ROOT,
        local_checkout=local_checkout,
        gh_token=gh_token,
        required_files=_REQUIRED_FILES,
    )


def build_install_script() -> str:
    """Return the shell command that installs the uploaded checkout."""
    script = f"""\
set -eo pipefail
export RLM_CHECKOUT_PATH={DEFAULT_RLM_CHECKOUT_PATH}
test -f "$RLM_CHECKOUT_PATH/install.sh"
bash "$RLM_CHECKOUT_PATH/install.sh"
"""
    return f"bash -lc {shlex.quote(script)}"


def build_run_command(
    instruction_path: str = "/task/instruction.md", workdir: str = "/testbed"
) -> str:
    """Return the shell command that runs the agent in `$AGENT_WORKDIR`, or in `workdir` if that is not set."""
    appended = shlex.quote(DEFAULT_APPEND_TO_SYSTEM_PROMPT_PATH)
    script = f"""\
set -eo pipefail
export PATH="$HOME/.local/bin:$PATH"
export RLM_MODEL="$OPENAI_MODEL"
export OPENAI_API_KEY="${{OPENAI_API_KEY:-intercepted}}"
export RLM_APPEND_TO_SYSTEM_PROMPT="$(cat {appended} 2>/dev/null || true)"
cd "${{AGENT_WORKDIR:-{workdir}}}"
rlm "$(cat {shlex.quote(instruction_path)})"
"""
    return f"bash -lc {shlex.quote(script)}"


def rlm_harness(
    workdir: str = "/testbed",
    instruction_path: str = "/task/instruction.md",
    rlm_repo_url: str = DEFAULT_RLM_REPO_URL,
    rlm_ref: str = DEFAULT_RLM_REF,
    rlm_max_turns: int = DEFAULT_RLM_MAX_TURNS,
    rlm_exec_timeout: int = DEFAULT_RLM_EXEC_TIMEOUT,
    rlm_max_depth: int = DEFAULT_RLM_MAX_DEPTH,
    summarize_at_tokens: int | Sequence[int] | None = None,
    include_sub_rlm_trajectories: bool = False,
    append_to_system_prompt: str | None = None,
    local_checkout: str | Path | None = None,
    gh_token: str | None = None,
    rlm_tools: Sequence[str] | None = None,
) -> Harness:
    """Return the harness of RLM.

    `rlm_exec_timeout` limits one execution in its session, in seconds. `rlm_max_depth` is the maximum depth of agents
    that it starts; their turns are left out of the trajectory unless `include_sub_rlm_trajectories` is set. The agent
    shortens its conversation at `summarize_at_tokens`, a number, or a pair of which each prompt draws its own number.
    Raises ConfigError for other values.
    """
    threshold_of = _threshold_resolver(summarize_at_tokens)
    tools = list(rlm_tools or ["ipython"])

    def environment_vars(state: Mapping[str, Any]) -> dict[str, str]:
        variables = {
            "RLM_TOOLS": ",".join(tools),
            "RLM_MAX_TURNS": str(rlm_max_turns),
            "RLM_EXEC_TIMEOUT": str(rlm_exec_timeout),
            "RLM_MAX_DEPTH": str(rlm_max_depth),
        }
        if threshold_of is not None:
            variables["RLM_SUMMARIZE_AT_TOKENS"] = str(threshold_of(state))
        return variables

    resolved: list[Path] = []
    guard = threading.Lock()

    def get_upload_dirs() -> dict[str, Any]:
        with guard:  # concurrent rollouts ask from several threads
            if not resolved:
                checkout = resolve_local_checkout(
                    local_checkout, rlm_repo_url=rlm_repo_url, rlm_ref=rlm_ref, gh_token=gh_token
                )
                resolved.append(checkout)
        return {DEFAULT_RLM_CHECKOUT_UPLOAD_NAME: resolved[0]}

    return Harness(
        install_script=build_install_script(),
        run_command=build_run_command(instruction_path, workdir),
        system_prompt=append_to_system_prompt,
        system_prompt_path=DEFAULT_APPEND_TO_SYSTEM_PROMPT_PATH,
        instruction_path=instruction_path,
        skills_path="/task/rlm-skills",
        upload_dir_mapping={DEFAULT_RLM_CHECKOUT_UPLOAD_NAME: DEFAULT_RLM_CHECKOUT_PATH},
        get_upload_dirs=get_upload_dirs,
        metrics_path="{workdir}/.rlm/sessions/*/meta.json",
        metrics_key="metrics",
        metrics_prefix="rlm_",
        tool_names=tools,
        environment_vars=environment_vars,
        keep_trajectory_step=None if include_sub_rlm_trajectories else _keep_only_parent_rlm_steps,
        render_completion=render_rlm_completion,
    )


def _keep_only_parent_rlm_steps(step: Any, state: Any, headers: Mapping[str, str]) -> bool:
    return headers.get(DEPTH_HEADER, "0") == "0"


def _threshold_resolver(value: Any) -> Callable[[Mapping[str, Any]], int] | None:
    if value is None:
        return None
    is_pair = isinstance(value, list | tuple)
    numbers: list[Any] = list(value) if is_pair else [value]
    if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
        raise ConfigError(f"summarize_at_tokens must be an int or a pair (lo, hi); got {value!r}.")
    if is_pair and len(numbers) != 2:
        raise ConfigError(f"summarize_at_tokens must be a pair (lo, hi); got {value!r}.")
    if min(numbers) <= 0:
        raise ConfigError(f"summarize_at_tokens must be positive; got {value!r}.")
    lo, hi = numbers[0], numbers[-1]
    if lo > hi:
        raise ConfigError(f"summarize_at_tokens must have lo <= hi; got {value!r}.")
    return lambda state: random.Random(_prompt_text(state)).randint(lo, hi)


def _prompt_text(state: Mapping[str, Any]) -> str:
    row = state.get("input")
    prompt = row.get("prompt") if isinstance(row, Mapping) else None
    if isinstance(prompt, str):
        return prompt
    return json.dumps(state.get("prompt"), sort_keys=True, default=str)


# ------------------------------------------------------------------------------------------------- completion


def render_rlm_completion(state: Any) -> None:
    """Set `state["completion"]` to the whole conversation, also the parts that the agent has removed since."""
    state["completion"] = render_completion_with_branches(state.get("trajectory") or [])


def render_completion_with_branches(trajectory: Sequence[TrajectoryStep]) -> Messages:
    """Return the messages after the first prompt.

    A step whose prompt is shorter than the conversation so far begins a branch: a system message marks it, and the
    whole new prompt follows.
    """
    if not trajectory:
        return []
    completion: list[Any] = []
    seen = len(trajectory[0]["prompt"])
    for step in trajectory:
        prompt, answer = step["prompt"], step["completion"]
        if len(prompt) < seen:
            completion.append(SystemMessage(content=COMPACTION_BOUNDARY_MARKER))
            completion += prompt
        else:
            completion += prompt[seen:]
        completion += answer
        seen = len(prompt) + len(answer)
    return completion


__all__ = [
    "COMPACTION_BOUNDARY_MARKER",
    "DEFAULT_APPEND_TO_SYSTEM_PROMPT_PATH",
    "DEFAULT_RLM_CHECKOUT_PATH",
    "DEFAULT_RLM_CHECKOUT_UPLOAD_NAME",
    "DEFAULT_RLM_EXEC_TIMEOUT",
    "DEFAULT_RLM_LOCAL_CHECKOUT_CACHE_ROOT",
    "DEFAULT_RLM_MAX_DEPTH",
    "DEFAULT_RLM_MAX_TURNS",
    "DEFAULT_RLM_REF",
    "DEFAULT_RLM_REPO_URL",
    "build_install_script",
    "build_run_command",
    "render_completion_with_branches",
    "render_rlm_completion",
    "resolve_local_checkout",
    "rlm_harness",
]
