"""The few pages that logging in needs."""
