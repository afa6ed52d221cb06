"""`RLMEnv`: recursive language models. The model reads its data with code, and the code asks further models.

Read in this order: `env` (the class, its options, and one rollout) · `conversation` (prompts, summaries, stop
conditions) · `sub_calls` (tools of the code, and `llm_batch`) · `executor` and `repl_process` (sandboxes and workers)
· `worker` (the program inside a sandbox) · `prompts`, `metrics`, `files`, `session`, `old_names`.
"""

from verifiers.envs.rlm.env import RLMEnv

__all__ = ["RLMEnv"]
