"""Blobs at their sha256: a folder on this machine, or S3."""
