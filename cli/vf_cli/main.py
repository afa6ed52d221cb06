"""Entry points of the commands: the functions that `[project.scripts]` names. Each imports its command only."""

from __future__ import annotations

from vf_cli.command import run


def eval_main() -> int:
    """`vf-eval`."""
    from vf_cli.eval import app

    return run(app, "vf-eval")


def init_main() -> int:
    """`vf-init`."""
    from vf_cli.init import app

    return run(app, "vf-init")


def install_main() -> int:
    """`vf-install`."""
    from vf_cli.install import app

    return run(app, "vf-install")


def build_main() -> int:
    """`vf-build`."""
    from vf_cli.build import app

    return run(app, "vf-build")


def validate_main() -> int:
    """`vf-validate`."""
    from vf_cli.validate import app

    return run(app, "vf-validate")


def compare_main() -> int:
    """`vf-compare`."""
    from vf_cli.compare import app

    return run(app, "vf-compare")


def plan_main() -> int:
    """`vf-plan`."""
    from vf_cli.plan import app

    return run(app, "vf-plan")


def export_main() -> int:
    """`vf-export`."""
    from vf_cli.export import app

    return run(app, "vf-export")


def rescore_main() -> int:
    """`vf-rescore`."""
    from vf_cli.rescore import app

    return run(app, "vf-rescore")


def endpoint_main() -> int:
    """`vf-endpoint`."""
    from vf_cli.endpoint import app

    return run(app, "vf-endpoint")


def train_main() -> int:
    """`vf-train`."""
    from vf_cli.train import app

    return run(app, "vf-train")


def rollouts_main() -> int:
    """`vf-rollouts`."""
    from vf_cli.rollouts import app

    return run(app, "vf-rollouts")


def gepa_main() -> int:
    """`vf-gepa`."""
    from vf_cli.gepa import app

    return run(app, "vf-gepa")


def view_main() -> int:
    """`vf-view`."""
    from vf_cli.view import app

    return run(app, "vf-view")


def sandboxes_main() -> int:
    """`vf-sandboxes`."""
    from vf_cli.sandboxes import app

    # No author code runs in this process; ending its sandboxes may take a while.
    return run(app, "vf-sandboxes", grace_s=10.0)
