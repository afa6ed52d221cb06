"""Evaluations: options, configuration files with sweeps, the registry of endpoints, and the run of one evaluation.

Reading order: `registry` (names of endpoints) → `settings` (one evaluation, from options or a table, resolved to an
`EvalConfig`) → `config_file` (many evaluations from one TOML file) → `run` (load, evaluate, save).
"""
