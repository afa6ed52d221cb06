"""Copies of an environment under another owner."""
