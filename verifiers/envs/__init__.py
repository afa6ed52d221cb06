"""Environments: a dataset, a rollout protocol and a rubric.

Read `multiturn_env` first (the loop of a rollout), then `environment` (the class), `play` (play and score) and
`generation` (a run). `sandbox_mixin` and `sandbox_client` are the base of the environments with sandboxes.
"""
