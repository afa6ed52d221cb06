"""v0 import paths of what experimental environments shared there; imported by nobody inside."""
