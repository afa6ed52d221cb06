"""Tools: Python functions and MCP servers as things a model can call."""
