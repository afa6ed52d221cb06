"""The feed of what changed: it keeps caches and mirrors right."""
