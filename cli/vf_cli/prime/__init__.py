"""The command `prime`: environments, evaluations and the account on a hub of the user's choice.

    main         the root: login, whoami, switch, fork, the groups, and the commands of `prime env`
    command      shared by all commands: --json, --output, --plain, --verbose; the connection; tables; progress
    account      login, logout, whoami, switch, teams
    config       the configuration file and its contexts
    env_find     list, search, info, status, inspect, versions
    env_publish  push, yank, delete, fork
    env_install  install, uninstall, pull
    env_values   secrets and variables
    evaluations  run, push, list, get, samples

Names of commands and options, and the configuration file, are those of the public `prime` command.
Commands import the library inside their functions, so `--help` needs neither it nor its dependencies.
"""
