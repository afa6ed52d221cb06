"""The harness of mini-swe-agent, a small coding agent that writes shell commands as text.

The package is installed by pip into a folder of its sandbox, so that the Python of the task stays unchanged.

Source: https://mini-swe-agent.com
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence

from verifiers.envs.agents.harness import Harness
from verifiers.envs.agents.harnesses.open_code import with_task_prompt
from verifiers.envs.agents.open_code_config import APT_INSTALL

DEFAULT_PACKAGE_VERSION = "2.2.8"
DEFAULT_PACKAGE_SHA256 = "694df4de1337e665e3cd82e99f93374f573bf52b8e7c362ac5d8045ad9f7c37c"
"""Of the wheel."""
DEFAULT_AGENT_WORKDIR = "${AGENT_WORKDIR:-/app}"
DEFAULT_INSTRUCTION_PATH = "/mini-swe-agent/prompt.txt"
DEFAULT_SYSTEM_PROMPT_PATH = "/mini-swe-agent/system.txt"
DEFAULT_LOG_PATH = "/logs/agent/mini-swe-agent.log"
DEFAULT_TRAJECTORY_PATH = "/logs/agent/mini-swe-agent.traj.json"
DEFAULT_PREFIX_DIR = "/opt/mini-swe-agent/prefix"
DEFAULT_MINI_BINARY = f"{DEFAULT_PREFIX_DIR}/bin/mini"
DEFAULT_CONFIG_SPEC = "mini_textbased"
DEFAULT_MODEL_CLASS = "litellm_textbased"
DEFAULT_ENVIRONMENT_TIMEOUT = 120
"""Time limit of one command of the agent, in seconds."""
_UV_VERSION = "0.11.7"
_PYTHON_VERSION = "3.11"


def build_mini_swe_agent_install_script(
    package_version: str = DEFAULT_PACKAGE_VERSION,
    package_sha256: str = DEFAULT_PACKAGE_SHA256,
    prefix_dir: str = DEFAULT_PREFIX_DIR,
    install_python: bool = True,
) -> str:
    """Return a shell script that installs the agent in `prefix_dir`, and does nothing if it is there.

    The SHA-256 of the wheel is checked. `install_python` installs Python where the image has none with pip. If that
    Python is older than 3.10, the script installs a newer one for the agent alone.
    """
    prefix = shlex.quote(prefix_dir)
    need_python = "python3 -m pip --version > /dev/null 2>&1"
    python = f"{need_python} || apt_install python3 python3-pip ca-certificates"
    return f"""\
set -e
prefix={prefix}
if [ -x "$prefix/bin/mini" ]; then
  echo "mini-swe-agent is there: $prefix/bin/mini"
  exit 0
fi
{APT_INSTALL if install_python else ""}
{python if install_python else need_python}
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1
folder=$(mktemp -d)
python=$(command -v python3)
install="$python -m pip install --quiet"
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  "$python" -m pip install --quiet --target "$folder/uv" uv=={_UV_VERSION}
  export PYTHONPATH="$folder/uv"
  uv="$python -m uv"
  $uv python install {_PYTHON_VERSION}
  python=$($uv python find {_PYTHON_VERSION})
  install="$uv pip install --quiet --python $python"
fi
options="--quiet --no-deps --only-binary :all: --python-version {_PYTHON_VERSION}"
python3 -m pip download $options --dest "$folder" mini-swe-agent=={shlex.quote(package_version)}
wheel=$(ls "$folder"/mini_swe_agent-*.whl)
echo {shlex.quote(package_sha256)}"  $wheel" | sha256sum -c -
mkdir -p "$prefix/bin"
$install --target "$prefix/site-packages" "$wheel"
rm -rf "$folder"
cat > "$prefix/bin/mini" << EOF
#!/bin/sh
export PYTHONPATH="$prefix/site-packages"
exec "$python" -m minisweagent.run.mini "\\$@"
EOF
chmod +x "$prefix/bin/mini"
"""


def build_mini_swe_agent_run_command(
    agent_workdir: str = DEFAULT_AGENT_WORKDIR,
    instruction_path: str = DEFAULT_INSTRUCTION_PATH,
    system_prompt_path: str = DEFAULT_SYSTEM_PROMPT_PATH,
    log_path: str = DEFAULT_LOG_PATH,
    trajectory_path: str = DEFAULT_TRAJECTORY_PATH,
    mini_binary: str = DEFAULT_MINI_BINARY,
    config_spec: str = DEFAULT_CONFIG_SPEC,
    model_class: str = DEFAULT_MODEL_CLASS,
    environment_timeout: int = DEFAULT_ENVIRONMENT_TIMEOUT,
    extra_config_specs: Sequence[str] | None = None,
) -> str:
    """Return a `bash -lc` command that runs the agent on the text in `instruction_path`.

    `agent_workdir` may refer to variables of the shell. `extra_config_specs` are further `-c` arguments, which take
    precedence. The agent is ended after `$AGENT_TIMEOUT_SECONDS` (one hour).
    """
    specs = [
        config_spec,
        "agent.cost_limit=0",
        f"environment.timeout={environment_timeout}",
        f"model.model_class={model_class}",
        "model.cost_tracking=ignore_errors",
        "model.model_kwargs.custom_llm_provider=openai",
    ]
    folders = sorted({posixpath.dirname(path) or "." for path in (log_path, trajectory_path)})
    more = "".join(f"\nconfig+=(-c {shlex.quote(spec)})" for spec in extra_config_specs or ())
    script = f"""\
set -eo pipefail
export MSWEA_CONFIGURED=true MSWEA_SILENT_STARTUP=true MSWEA_GLOBAL_CONFIG_DIR=/tmp/mini-swe-agent-config
export OPENAI_API_KEY="${{OPENAI_API_KEY:-intercepted}}"
workdir="{agent_workdir}"
mkdir -p {shlex.join(folders)} "$workdir" "$MSWEA_GLOBAL_CONFIG_DIR"
config=({" ".join(f"-c {shlex.quote(spec)}" for spec in specs)})
config+=(-c "environment.cwd=$workdir")
if [ -s {shlex.quote(system_prompt_path)} ]; then
  config+=(-c "agent.system_template=$(cat {shlex.quote(system_prompt_path)})")
fi{more}
cd "$workdir"
timeout --kill-after=30s "${{AGENT_TIMEOUT_SECONDS:-3600}}" {shlex.quote(mini_binary)} \\
  --model "$OPENAI_MODEL" --task "$(cat {shlex.quote(instruction_path)})" \\
  --output {shlex.quote(trajectory_path)} --exit-immediately --yolo \\
  "${{config[@]}}" 2>&1 | tee -a {shlex.quote(log_path)}
"""
    return f"bash -lc {shlex.quote(script)}"


def mini_swe_agent_harness(
    system_prompt: str | None = None,
    task_system_prompt: str | None = None,
    agent_workdir: str = DEFAULT_AGENT_WORKDIR,
    instruction_path: str = DEFAULT_INSTRUCTION_PATH,
    system_prompt_path: str = DEFAULT_SYSTEM_PROMPT_PATH,
    log_path: str = DEFAULT_LOG_PATH,
    trajectory_path: str = DEFAULT_TRAJECTORY_PATH,
    package_version: str = DEFAULT_PACKAGE_VERSION,
    package_sha256: str = DEFAULT_PACKAGE_SHA256,
    config_spec: str = DEFAULT_CONFIG_SPEC,
    model_class: str = DEFAULT_MODEL_CLASS,
    environment_timeout: int = DEFAULT_ENVIRONMENT_TIMEOUT,
    extra_config_specs: Sequence[str] | None = None,
) -> Harness:
    """Return the harness of mini-swe-agent.

    Without a system prompt the agent uses its own. `environment_timeout` limits each of its commands, in seconds.
    """
    return Harness(
        install_script=build_mini_swe_agent_install_script(package_version, package_sha256),
        run_command=build_mini_swe_agent_run_command(
            agent_workdir,
            instruction_path,
            system_prompt_path,
            log_path,
            trajectory_path,
            config_spec=config_spec,
            model_class=model_class,
            environment_timeout=environment_timeout,
            extra_config_specs=extra_config_specs,
        ),
        system_prompt=with_task_prompt(system_prompt, task_system_prompt),
        system_prompt_path=system_prompt_path,
        instruction_path=instruction_path,
        log_path=log_path,
    )


MINI_SWE_AGENT_INSTALL_SCRIPT = build_mini_swe_agent_install_script()
MINI_SWE_AGENT_CONFIG = {
    "install_script": MINI_SWE_AGENT_INSTALL_SCRIPT,
    "cli_package": "mini-swe-agent",
    "cli_version": DEFAULT_PACKAGE_VERSION,
    "cli_sha256": DEFAULT_PACKAGE_SHA256,
}

__all__ = [
    "DEFAULT_PACKAGE_SHA256",
    "DEFAULT_PACKAGE_VERSION",
    "MINI_SWE_AGENT_CONFIG",
    "MINI_SWE_AGENT_INSTALL_SCRIPT",
    "build_mini_swe_agent_install_script",
    "build_mini_swe_agent_run_command",
    "mini_swe_agent_harness",
]
