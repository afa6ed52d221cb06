"""v0 import paths of the commands; the commands themselves are the package `vf_cli`."""
