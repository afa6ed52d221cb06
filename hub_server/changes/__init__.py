"""The change feed, which keeps caches and mirrors correct, and the audit log."""
