"""From uploaded bytes to an immutable version."""
