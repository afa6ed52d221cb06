"""v0 import path of `vf-setup`, which downloaded starter files. This release needs no such files."""


def main() -> int:
    """Exit with a hint at the replacement."""
    raise SystemExit(
        "vf-setup has been removed: `vf-init my-env` creates an environment, and nothing else is needed."
    )
