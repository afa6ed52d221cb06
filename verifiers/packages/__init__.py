"""Environment packages: new projects, building, checking, publishing and installing.

scaffold    a new project from a template
validation  checks of an environment without a model; `gold` plays the right answers
build       a wheel and a source archive of a project
wheel       the check of a wheel at publish time; `archive` reads its ZIP file
published   ids on a hub, and wheels at their address: shared with `verifiers.hub`
install     installing a folder, a wheel or a published environment; `lock` writes pylock.toml
library     this library as a wheel
"""
