"""The command `prime`: environments, evaluations and the account on a hub of the user's choice.

    main           the root: login, whoami, switch, fork, and the groups
    command        what every command has: --json, --output, --plain, --verbose; connecting; showing
    transfers      progress of up- and downloads
    account        login, logout, whoami, switch, teams
    config         the configuration file and its contexts
    env            the group of environments, from: env_find, env_publish, env_install, env_values
    eval           run, push, list, get, samples

Names of commands and options, and the configuration file, are those of the public `prime` command.
Commands import the library inside their functions, so `--help` needs neither it nor its dependencies.
"""
