"""v0 import path: reading TOML from an open binary file."""

from tomllib import load as load_toml

__all__ = ["load_toml"]
