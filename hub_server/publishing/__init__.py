"""From uploaded bytes to an immutable version.

`intake` checks files, `claims` makes versions of them, `service` connects both. `library` publishes this library.
"""
