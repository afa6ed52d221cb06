"""Model calls of a program that runs in a sandbox, answered by a rollout.

Read in this order: `requests` (what the program asks, in OpenAI's chat format) · `answers` and `streams` (what it is
told, in the format that it speaks) · `server` (the HTTP server in between) · `doorway` and `inside` (how a sandbox
without any network reaches that server).
"""

from verifiers.interception.doorway import Doorway
from verifiers.interception.server import InterceptionServer

__all__ = ["Doorway", "InterceptionServer"]
