"""Secrets and variables of environments and people, encrypted in the database.

`cipher` encrypts, `service` has the rules.
"""
