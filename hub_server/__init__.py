"""A registry for environments that anyone can host: `vf-hub serve`.

Read it feature by feature; every folder has the same files. `models` is the tables, `service` the
decisions and the only SQL, `routes` the HTTP, `schemas` what only this feature sends.

    accounts      who is asking, and what they may do (`authorisation`)
    environments  names, versions, search, lifecycle
    publishing    from bytes to an immutable version
    index         what pip and uv read
    storage       blobs by their sha256
    evaluations   results tied to versions
    secrets       values encrypted at rest
    changes       the feed that keeps caches and mirrors right
    operations    health, metrics, backup, repair
    web           the few pages that logging in needs
"""
