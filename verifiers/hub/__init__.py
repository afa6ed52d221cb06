"""The hub seen from a client: the models of its wire, and the client itself."""
