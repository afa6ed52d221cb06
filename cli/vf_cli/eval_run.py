"""The work of `vf-eval` after its options are read: plan, load, run, report."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from vf_cli import eval_hub, output, report
from vf_cli.command import EXIT_FAILED, EXIT_INTERRUPTED, failure
from vf_cli.interrupts import interruptible, protect
from vf_cli.progress import OnUpdate, Progress, beside, displayed

if TYPE_CHECKING:
    from verifiers.configs import ClientConfig, EvalConfig
    from verifiers.evaluate.config_file import PlannedEvaluation
    from verifiers.loading import Loaded
    from verifiers.types import GenerateOutputs
    from vf_cli.eval_options import CommandOptions

ASK_FROM_ROLLOUTS = 5000
"""An evaluation of at least this many rollouts on a remote endpoint needs a confirmation, in a terminal."""
HEARTBEAT_INTERVAL_S = 30.0


class Planned(NamedTuple):
    """One resolved evaluation."""

    config: EvalConfig
    swept: Mapping[str, Any]


def run_all(env_id_or_config: str, overrides: dict[str, Any], options: CommandOptions) -> int:
    """Plan and run every evaluation of the command. Return the exit code."""
    from verifiers.clients.connect import api_key_of, resolve_client_configs
    from verifiers.loading import require_present
    from verifiers.runs.prices import PriceTable

    protect()
    planned, heartbeat_url = plan(env_id_or_config, overrides)
    if options.dry_run:
        _show_plan(planned, as_json=options.as_json)
        return 0
    if options.push:
        eval_hub.check_push([one.config.env_id for one in planned])
    if eval_hub.install_missing([one.config.env_id for one in planned], is_sure=options.yes):
        # Again, with the defaults of the environments that are installed now.
        planned, heartbeat_url = plan(env_id_or_config, overrides)
    for one in planned:
        for endpoint in resolve_client_configs(one.config.client_config):
            api_key_of(endpoint)  # a missing key is reported before an environment is loaded
        if one.config.prices:
            # A mistake in the table is reported before a run starts.
            PriceTable.load(one.config.prices)
        elif one.config.max_cost_usd is not None:
            raise typer.BadParameter(
                "--max-cost needs --prices FILE, a table with the price of the model."
            )
    for one in planned[1:]:
        # A typo in the last evaluation is reported before the first one costs money.
        require_present(one.config.env_id)
    finished, cause = _run_planned(planned, options, heartbeat_url or options.heartbeat_url)
    if cause is None:
        code = exit_code(finished, len(planned), options.fail_under)
    elif not finished:
        raise cause
    else:  # the finished evaluations are still reported
        output.note(f"evaluation {len(finished) + 1} of {len(planned)} could not be run:")
        code = failure(cause, is_verbose=any(one.config.verbose for one in planned))
    return _reported(finished, code, len(planned), options)


def _run_planned(
    planned: Sequence[Planned], options: CommandOptions, heartbeat_url: str | None
) -> tuple[list[report.Finished], Exception | None]:
    """Return the evaluations that ended, and the error that kept the next one from running. Show each as it ends."""
    finished: list[report.Finished] = []
    for one in planned:
        if len(planned) > 1:
            output.note(f"evaluation {len(finished) + 1} of {len(planned)}")
        try:
            result = _run_one(one, options, heartbeat_url)
        except (typer.Abort, typer.Exit):
            raise  # the user declined
        except Exception as error:  # noqa: BLE001  # the caller reports it after the finished ones
            return finished, error
        finished.append(result)
        if not options.as_json:
            is_only = len(planned) == 1
            with_example = is_only and not options.abbreviated_summary
            for part in report.tables(result, with_example=with_example, is_only=is_only):
                output.show(part)
        if not result.is_complete:
            break
    return finished, None


def _reported(
    finished: Sequence[report.Finished], code: int, planned: int, options: CommandOptions
) -> int:
    """Push the runs if requested, and show everything as JSON or as a comparison. Return the exit code."""
    pushed: list[dict[str, Any] | None] = [None] * len(finished)
    if options.push:
        pushed = [eval_hub.push(one, as_json=options.as_json) for one in finished]
        if code == 0 and None in pushed:
            code = EXIT_FAILED
    if options.as_json:
        reports = [
            {**report.as_json(one), **({"pushed": to} if options.push else {})}
            for one, to in zip(finished, pushed, strict=True)
        ]
        positions = {id(one): index for index, one in enumerate(finished)}
        paired = [one.as_json(positions) for one in report.differences(finished)]
        output.show_json({"exit_code": code, "evaluations": reports, "differences": paired})
    elif planned > 1:
        output.show()
        output.show(report.comparison(finished))
        if paired := report.differences(finished):
            output.show()
            output.show("paired differences, example by example (docs/statistics.md)")
            output.show(report.difference_table(paired))
    return code


def plan(env_id_or_config: str, overrides: dict[str, Any]) -> tuple[list[Planned], str | None]:
    """Return the evaluations that a command requests, and the heartbeat URL of its file.

    With a configuration file, the given options replace the file's values in every evaluation.
    """
    from verifiers.evaluate.config_file import read_config_file
    from verifiers.evaluate.settings import resolve, settings_of
    from verifiers.loading import evaluation_defaults

    heartbeat_url = None
    evaluations: Sequence[PlannedEvaluation]
    if env_id_or_config.endswith(".toml"):
        evaluations, heartbeat_url = read_config_file(env_id_or_config, overrides)
        if names := sorted(overrides.keys() - _DISPLAY_SETTINGS):
            output.note(
                f"{env_id_or_config}: every evaluation runs with {_and(names)} of the command line instead of the "
                "values in the file."
            )
        chosen = [(one.settings, one.swept) for one in evaluations]
    else:
        chosen = [(settings_of({**overrides, "env_id": env_id_or_config}, "options"), {})]
    planned = []
    for settings, swept in chosen:
        config = resolve(settings, environment_defaults=evaluation_defaults)
        planned.append(Planned(config, swept))
    return planned, heartbeat_url


_DISPLAY_SETTINGS = frozenset({"verbose", "disable_tui"})


def _and(settings: Sequence[str]) -> str:
    """`--model`, or `--max-tokens, --model and --seed`: the command-line names of settings."""
    flags = [
        "--resume" if name == "resume_path" else f"--{name.replace('_', '-')}" for name in settings
    ]
    return flags[0] if len(flags) == 1 else f"{', '.join(flags[:-1])} and {flags[-1]}"


def _show_plan(planned: Sequence[Planned], *, as_json: bool) -> None:
    plans = [{**report.config_json(one.config), "swept": dict(one.swept)} for one in planned]
    if as_json:
        output.show_json({"evaluations": plans})
        return
    for one in plans:
        client = one.pop("client_config")
        output.show(f"{one['env_id']}   {one['model']}   {client['api_base_url']}")
        for name, value in one.items():
            if value not in (None, {}, [], False) and name not in ("env_id", "model"):
                output.show(f"  {name:24} {value}")
        for name in (
            "client_type",
            "api_key_var",
            "extra_headers",
            "extra_headers_from_state",
            "adaptive_concurrency",
        ):
            output.show(
                f"  client {name:24} {client[name]}" if client[name] else f"  client {name:24} -"
            )
        for endpoint in client["endpoint_configs"]:
            output.show(f"  replica {endpoint['api_base_url']}")
    output.show("nothing was run (--dry-run)")


def _run_one(one: Planned, options: CommandOptions, heartbeat_url: str | None) -> report.Finished:
    from verifiers.errors import ConfigError
    from verifiers.evaluate.run import (
        environment_version,
        example_count,
        prepare_environment,
        run_folder_for,
    )
    from verifiers.runs.folders import new_scratch_folder
    from verifiers.runs.prices import PriceTable
    from verifiers.runs.summary import rewards_by_example, summarize

    config = one.config
    with output.stderr().status(f"loading {config.env_id} …"):
        loaded = prepare_environment(config)
    environment = loaded.environment
    examples = example_count(config, environment)
    if examples == 0:
        raise ConfigError(
            f"The evaluation dataset of {config.env_id!r} has no rows, so there is nothing to evaluate. "
            "Check how load_environment uses its arguments (-a)."
        )
    wanted = examples * config.rollouts_per_example
    title = report.title_of(
        environment.env_id,
        environment_version(environment),
        examples,
        config.rollouts_per_example,
        config.model,
    )
    _confirm(config, wanted, options)
    folder = run_folder_for(config, environment)
    is_scratch = folder is None
    if folder is None:
        folder = new_scratch_folder(environment.env_id, config.model)
    progress = Progress(title, wanted, most_running=config.max_concurrent)
    results = asyncio.run(_run(config, loaded, folder, progress, options, heartbeat_url))
    outputs = results["outputs"]
    prices = PriceTable.load(config.prices) if config.prices else None
    summary = summarize(
        outputs,
        environment.pass_threshold,
        price=prices.price_of(config.model) if prices else None,
        wall_time_s=progress.elapsed_s if progress.saved_before == 0 else None,
    )
    example = next((rollout for rollout in outputs if not rollout.get("error")), None)
    return report.Finished(
        config,
        environment.env_id,
        title,
        summary,
        folder,
        is_scratch=is_scratch,
        is_complete=summary.rollouts >= wanted,
        wanted=wanted,
        examples=examples,
        example=example,
        error_messages=report.error_messages(outputs),
        swept=one.swept,
        rewards=rewards_by_example(outputs),
    )


def _confirm(config: EvalConfig, wanted: int, options: CommandOptions) -> None:
    from verifiers.evaluate.settings import is_local

    url = config.client_config.api_base_url
    asks = (
        wanted >= ASK_FROM_ROLLOUTS
        and not is_local(url)
        and not options.yes
        and not options.as_json
    )
    if asks and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(
            f"{wanted:,} rollouts of {config.model} at {url}. Start?",
            default=True,
            abort=True,
            err=True,
        )


async def _run(
    config: EvalConfig,
    loaded: Loaded,
    folder: Path | None,
    progress: Progress,
    options: CommandOptions,
    heartbeat_url: str | None,
) -> GenerateOutputs:
    """Run one evaluation with its display, its heartbeat, and Ctrl-C."""
    from verifiers.clients import close_all_clients
    from verifiers.clients.failures import NoSuchRoute
    from verifiers.evaluate.run import run_evaluation

    _allow_open_files()
    await _check_endpoint(config)

    async def work(update: OnUpdate, stop: asyncio.Event) -> GenerateOutputs:
        try:
            return await run_evaluation(
                config,
                on_start=lambda rows, groups: progress.start(len(rows), _count(groups)),
                on_progress=lambda outputs, new, _: update(outputs, new),
                on_log=output.note,
                environment=loaded.environment,
                results_path=folder,
                stop=stop,
                on_retry=progress.retried,
            )
        except NoSuchRoute as error:
            hint = await model_hint(config.client_config, config.model)
            raise NoSuchRoute(f"{error}{hint}") from error.__cause__
        finally:
            await loaded.environment.aclose()
            await close_all_clients()

    def interrupted() -> None:
        output.note(
            "\nStopping: finished rollouts are being written. Press Ctrl-C again to stop at once."
        )

    async with (
        nullcontext() if heartbeat_url is None else beside(_heartbeat(heartbeat_url, progress)),
        displayed(progress, is_plain=config.disable_tui, fullscreen=options.fullscreen) as update,
    ):
        return await interruptible(partial(work, update), interrupted)


def _allow_open_files() -> None:
    """Raise the limit of open files to the maximum of this process, because each request in flight is an open file."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _check_endpoint(config: EvalConfig) -> None:
    """Warn about endpoints that cannot be reached. Raises EndpointUnavailable if none can be reached."""
    from verifiers.clients.connect import resolve_client_configs
    from verifiers.errors import EndpointUnavailable

    reasons = await unreachable(config.client_config)
    if not reasons:
        return
    described = "; ".join(f"{url}: {reason}" for url, reason in reasons.items())
    if len(reasons) == len(resolve_client_configs(config.client_config)):
        raise EndpointUnavailable(
            f"The endpoint cannot be reached. {described}. Check that the server runs and that -b is its address."
        )
    output.warn(f"Some endpoints cannot be reached: {described}")


async def _heartbeat(url: str, progress: Progress) -> None:
    """GET the URL at once, and then whenever rollouts have finished since. A run that hangs sends no requests."""
    import httpx

    done = -1
    async with httpx.AsyncClient(timeout=10.0) as client:
        while True:
            if progress.done != done:
                done = progress.done
                try:
                    await client.get(url)
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    output.warn(f"The heartbeat {url} failed: {error}")
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)


def _count(groups: Sequence[Any]) -> int:
    """Return the number of rollouts that are still missing; they come one by one or in groups."""
    return sum(len(group) if isinstance(group, list) else 1 for group in groups)


def exit_code(finished: Sequence[report.Finished], planned: int, fail_under: float | None) -> int:
    """Return 130 if interrupted, 1 if rollouts or reward functions failed or a mean is too low, else 0."""
    if len(finished) < planned or any(not one.is_complete for one in finished):
        return EXIT_INTERRUPTED
    low = [
        one
        for one in finished
        if fail_under is not None and not one.summary.reward.mean >= fail_under
    ]
    for one in low:
        output.error(
            f"{one.name}: the mean reward {one.summary.reward.mean:.3f} is below --fail-under {fail_under}."
        )
    failed = any(one.summary.failed for one in finished)
    return EXIT_FAILED if failed or low else 0


CONNECT_TIMEOUT_S = 10.0
MODELS_TIMEOUT_S = 5.0
MOST_MODELS = 8


async def unreachable(config: ClientConfig) -> dict[str, str]:
    """Return URL → reason why no connection can be opened. Endpoints behind a proxy are not tried."""
    from verifiers.clients.connect import proxy_of, resolve_client_configs

    urls = {one.api_base_url for one in resolve_client_configs(config)}
    direct = [url for url in sorted(urls) if proxy_of(url) is None]
    reasons = await asyncio.gather(*(_reason(url) for url in direct))
    return {url: reason for url, reason in zip(direct, reasons, strict=True) if reason is not None}


async def model_hint(config: ClientConfig, model: str) -> str:
    """Return a sentence with the models that an endpoint serves instead; "" if the endpoint does not list them."""
    from difflib import get_close_matches

    import httpx

    from verifiers.clients.connect import api_key_of, resolve_client_configs

    one = resolve_client_configs(config)[0]
    key = api_key_of(one)
    headers = {**(one.extra_headers or {}), "Authorization": f"Bearer {key}", "x-api-key": key}
    try:
        async with httpx.AsyncClient(timeout=MODELS_TIMEOUT_S) as client:
            answer = await client.get(one.api_base_url.rstrip("/") + "/models", headers=headers)
            names = [str(entry["id"]) for entry in answer.json()["data"]]
    except Exception:  # noqa: BLE001 - a hint only: the first error is the one to show
        return ""
    if not names or model in names:
        return ""
    lower = {name.lower(): name for name in names}
    near = get_close_matches(model.lower(), lower, n=1, cutoff=0.5)
    shown = ", ".join(sorted(names)[:MOST_MODELS]) + (" …" if len(names) > MOST_MODELS else "")
    meant = f" Did you mean -m {lower[near[0]]}?" if near else ""
    return f" The endpoint serves {shown}.{meant}"


async def _reason(url: str) -> str | None:
    parts = urlsplit(url)  # an http(s) URL with a valid port: `proxy_of` refuses all others
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except TimeoutError:
        return f"no connection within {CONNECT_TIMEOUT_S:g} s"
    except OSError as error:
        return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    writer.close()
    return None
