"""Environments around the tasks of other packages. Each package is an optional extra, imported on use.

`gym_env` is the plainest example; the environments of reasoning-gym, TextArena and OpenEnv share its rows on
demand.
"""
