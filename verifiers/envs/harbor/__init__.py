"""Tasks in Harbor's format: `tasks` (the folders), `mcp` (servers that a task declares), `env` (the environment)."""
