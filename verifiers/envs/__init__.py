"""Environments: a dataset, a rollout protocol and a rubric, put together."""
