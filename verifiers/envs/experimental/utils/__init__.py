"""v0 import paths of helpers that experimental environments shared in v0. No module of this library imports them."""
