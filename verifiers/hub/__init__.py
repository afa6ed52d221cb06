"""Client side of the hub.

wire            requests and answers, shared with the server
errors          all failures between client and hub
config          hub, key and team of the user: `~/.prime/config.json`, contexts, variables
client          requests with retries, uploads and downloads with progress and hashes
login           getting a key by a browser
source_archive  the published source of a project: its files, content hash, unpacking
publishing      build, compare, upload, finalize
installation    published wheels for `packages.install`, private ones included
evaluations     a run folder as an evaluation
origin          where a folder was published: `.prime/.env-metadata.json`

Read `client` first, then the module of the task.
"""
