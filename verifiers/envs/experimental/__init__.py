"""v0 import paths of environments that were experimental there; imported by nobody inside."""
