"""The commands `vf-eval`, `vf-init`, `vf-install`, `vf-build`, `vf-validate`, `vf-endpoint`: one module each.

    main        entry points: arguments → command → exit code; logging; the only place that catches everything
    output      the only module that prints: results on stdout, everything else on stderr
    progress    what the live display shows while an evaluation runs
    report      the tables and the JSON after it

Commands import the library inside their functions, so `--help` needs neither it nor its dependencies.
"""
