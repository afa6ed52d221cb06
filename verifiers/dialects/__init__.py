"""The model APIs as pure functions: no network, no keys."""
