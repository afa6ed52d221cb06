"""Storage of blobs, each under its SHA-256: a folder on this machine, or S3.

Read `store` first: the interface. `service` selects the storage and stages incoming files.
"""
