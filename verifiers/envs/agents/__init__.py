"""Agents that are programs in sandboxes."""
