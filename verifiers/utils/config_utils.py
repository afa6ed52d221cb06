"""v0 import path: keys an environment needs."""

from verifiers.errors import MissingKeyError as MissingKeyError
from verifiers.loading import ensure_keys as ensure_keys
