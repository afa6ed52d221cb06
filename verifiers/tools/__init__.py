"""Tools that a model can call.

Read `functions` first: Python functions as tools. `mcp` offers the tools of MCP servers.
"""
