"""Environments: names, versions, search, lifecycle."""
