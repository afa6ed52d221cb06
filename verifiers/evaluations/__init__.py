"""What to evaluate, and where: settings, configuration files with sweeps, the registry of endpoints.

Reading order: `registry` (names of endpoints) → `settings` (one evaluation, from options or a table, resolved to an
`EvalConfig`) → `config_file` (many evaluations from one TOML file). Nothing here runs anything.
"""
