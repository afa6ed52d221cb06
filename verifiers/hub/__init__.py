"""The hub seen from a client.

wire            requests and answers, shared with the server
errors          what can go wrong between the two
config          which hub, as whom: `~/.prime/config.json`, contexts, variables
client          requests with retries, uploads and downloads with progress and hashes
login           a key by the browser
source_archive  what of a project is published as source, its content hash, unpacking it
publishing      build, compare, upload, finalize
installation    a published wheel for the installers of `packages.install`, private ones included
evaluations     a run folder as an evaluation
origin          where a folder was published: `.prime/.env-metadata.json`
"""
