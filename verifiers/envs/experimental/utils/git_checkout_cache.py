"""v0 import path of git checkouts. It is the module itself, because callers replace its globals."""

import sys

from verifiers.envs import git_checkouts

sys.modules[__name__] = git_checkouts
