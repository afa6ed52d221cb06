"""Model calls of a program that runs in a sandbox, answered by a rollout.

Read in this order: `server` (the HTTP server) · `answers` (the response bodies; the APIs themselves are in
`verifiers.dialects`) · `doorway` and `inside` (the path from a sandbox without network to that server).
"""

from verifiers.interception.doorway import Doorway
from verifiers.interception.server import InterceptionServer

__all__ = ["Doorway", "InterceptionServer"]
