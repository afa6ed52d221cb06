"""The hub server: a registry for environments that anyone can host (`vf-hub serve`).

Read it room by room. In each room `models` has the tables, `service` the decisions and the SQL, `routes` the HTTP.
A
`models` module is short on purpose: rooms refer to each other's tables, and tables import no service.

    accounts      people, teams, tokens, and what a caller may do (`authorisation`)
    environments  names, versions, dependencies, search, forks, lifecycle
    publishing    from uploaded bytes to an immutable version
    index         the package index that pip and uv read
    storage       blobs, each under its SHA-256
    evaluations   results tied to versions
    secrets       secrets and variables, encrypted
    changes       the change feed for caches and mirrors, and the audit log
    logins        ways to a token, and the page for browsers
    operations    health, metrics, backup, repair

The modules beside the rooms: `server` runs `app`, `edge` wraps it, `access` checks every route, `hub` holds the parts
of a running hub, `database` and `sqlite` open transactions, `settings` reads the configuration, `cli` is `vf-hub`.
"""
