"""The package index that pip and uv read."""
