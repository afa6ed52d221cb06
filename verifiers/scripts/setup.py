"""v0 import path of `vf-setup`, which fetched the maker's starter files; there is nothing to fetch here."""


def main() -> int:
    """Say what to do instead."""
    raise SystemExit(
        "vf-setup is gone: `vf-init my-env` starts an environment, and nothing else is needed."
    )
