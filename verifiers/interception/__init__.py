"""Model calls of a program that runs in a sandbox, answered by a rollout.

Read in this order: `requests` (the program's request, as OpenAI chat messages) · `answers` and `streams` (the
response in the format of the program's API) · `server` (the HTTP server between them) · `doorway` and `inside` (the
path from a sandbox without network to that server).
"""

from verifiers.interception.doorway import Doorway
from verifiers.interception.server import InterceptionServer

__all__ = ["Doorway", "InterceptionServer"]
