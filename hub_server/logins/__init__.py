"""Ways to a token: password, browser challenge, device flow, first administrator."""
