"""v0 import path: loading environments."""

from verifiers.loading import load_environment as load_environment
