"""v0 import path of `RLMEnv`."""

from verifiers.envs.rlm.env import RLMEnv
from verifiers.envs.rlm.executor import RLMExecutor
from verifiers.envs.rlm.metrics import RLMMonitorRubric, update_rlm_metrics_from_step
from verifiers.envs.rlm.metrics import count_execution as _update_rlm_repl_metrics
from verifiers.envs.rlm.metrics import prepare_counts as _ensure_rlm_metric_state
from verifiers.envs.rlm.prompts import RLMPromptBuilder
from verifiers.envs.rlm.session import (
    RLMCodeExecutionTimeout,
    RLMExecResult,
    RLMSandboxCommandTimeout,
    RLMSessionError,
    RLMSetupError,
    RLMWorkerError,
    RLMWorkerPaths,
    RLMWorkerRecoveryError,
    SandboxRLMReplSession,
    SubLLMEmptyModelResponseError,
)
from verifiers.envs.rlm.sub_calls import SubLLMResult, SubLLMTurn

__all__ = [
    "RLMCodeExecutionTimeout",
    "RLMEnv",
    "RLMExecResult",
    "RLMExecutor",
    "RLMMonitorRubric",
    "RLMPromptBuilder",
    "RLMSandboxCommandTimeout",
    "RLMSessionError",
    "RLMSetupError",
    "RLMWorkerError",
    "RLMWorkerPaths",
    "RLMWorkerRecoveryError",
    "SandboxRLMReplSession",
    "SubLLMEmptyModelResponseError",
    "SubLLMResult",
    "SubLLMTurn",
    "_ensure_rlm_metric_state",
    "_update_rlm_repl_metrics",
    "update_rlm_metrics_from_step",
]
