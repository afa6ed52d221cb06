"""Environments: names and versions, dependencies, search, forks, lifecycle.

Read `models`, `service` (find, create, change) and `dependencies` (requirements that are environments of this hub).
"""
