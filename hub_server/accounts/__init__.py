"""Accounts: people, teams and tokens, and what a caller may do.

Read `authorisation` first: it decides every permission.
"""
