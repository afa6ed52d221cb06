"""The commands `vf-…`, one module per command, and `prime`. Reading order:

    main         entry points: each imports its command
    command      runs a command: arguments → exit code, errors → messages, the log
    interrupts   Ctrl-C and SIGTERM
    output       the only module that prints: results on stdout, everything else on stderr
    eval         `vf-eval`, then `eval_run` (plan, load, run), `progress` (live display), `report` (tables and JSON)

Commands import the library inside their functions, so `--help` loads neither the library nor its dependencies.
"""
