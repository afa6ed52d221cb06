"""Secrets and variables of environments and people, encrypted at rest."""
