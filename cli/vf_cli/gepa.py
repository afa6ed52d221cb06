"""`vf-gepa`: search for a better system prompt of an environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vf_cli import eval_options as o
from vf_cli import output
from vf_cli.interrupts import protect, run

if TYPE_CHECKING:
    from verifiers.prompt_search import SearchResult

app = typer.Typer(add_completion=False)


EnvIdOrConfig = Annotated[
    str,
    typer.Argument(
        metavar="ENV_OR_CONFIG",
        help="Id of an environment, a folder (./my_env), a Python file (./my_env.py), or a TOML file.",
    ),
]
ExtraEnvKwargs = Annotated[
    str | None,
    typer.Option(
        "--extra-env-kwargs", "-x", help="JSON object of attributes to set on the environment."
    ),
]
EnvDirPath = Annotated[
    str | None, typer.Option("--env-dir-path", "-p", help="Folder of local environments.")
]
ReflectionModel = Annotated[
    str | None,
    typer.Option("--reflection-model", "-M", help="Model that writes prompts. (default: -m)"),
]
MaxCalls = Annotated[
    int | None,
    typer.Option("--max-calls", "-B", min=1, help="Maximum number of rollouts. (default: 500)"),
]
MinibatchSize = Annotated[
    int | None,
    typer.Option("--minibatch-size", min=1, help="Number of examples per reflection. (default: 3)"),
]
PerfectScore = Annotated[
    float | None,
    typer.Option("--perfect-score", help="Reward from which on an example needs no reflection."),
]
StateColumns = Annotated[
    str | None,
    typer.Option("--state-columns", help="State keys that the reflecting model sees, e.g. 'a,b'."),
]
NumTrain = Annotated[
    int | None,
    typer.Option("--num-train", "-n", min=1, help="Number of training examples. (default: 100)"),
]
NumVal = Annotated[
    int | None,
    typer.Option("--num-val", "-N", min=1, help="Number of validation examples. (default: 50)"),
]
MaxConcurrent = Annotated[
    int | None,
    typer.Option(
        "--max-concurrent",
        "-c",
        min=1,
        help="Maximum number of rollouts at the same time. (default: 32)",
    ),
]
Seed = Annotated[
    int | None, typer.Option("--seed", help="Seed of all random choices. (default: 0)")
]
RunDir = Annotated[
    str | None,
    typer.Option(
        "--run-dir",
        "-o",
        help="Folder of the results; a search that is already there is continued.",
    ),
]
NoSave = Annotated[bool, typer.Option("--no-save", help="Save nothing.")]
Tui = Annotated[
    bool, typer.Option("--tui", "-u", help="Has no effect; accepted for callers of 0.1.14.")
]


@app.command()
def gepa(
    env_id_or_config: EnvIdOrConfig,
    env_args: Annotated[str | None, o.typer_option("env_args")] = None,
    extra_env_kwargs: ExtraEnvKwargs = None,
    env_dir_path: EnvDirPath = None,
    sandbox_backend: Annotated[str | None, o.typer_option("sandbox_backend")] = None,
    model: Annotated[str | None, o.typer_option("model")] = None,
    reflection_model: ReflectionModel = None,
    endpoints_path: Annotated[str | None, o.typer_option("endpoints_path")] = None,
    api_key_var: Annotated[str | None, o.typer_option("api_key_var")] = None,
    api_base_url: Annotated[str | None, o.typer_option("api_base_url")] = None,
    max_calls: MaxCalls = None,
    minibatch_size: MinibatchSize = None,
    perfect_score: PerfectScore = None,
    state_columns: StateColumns = None,
    num_train: NumTrain = None,
    num_val: NumVal = None,
    max_concurrent: MaxConcurrent = None,
    sampling_args: Annotated[str | None, o.typer_option("sampling_args")] = None,
    seed: Seed = None,
    verbose: Annotated[bool, o.typer_option("verbose")] = False,
    run_dir: RunDir = None,
    no_save: NoSave = False,
    tui: Tui = False,
    as_json: Annotated[bool, o.typer_option("as_json")] = False,
) -> int:
    """Search for a system prompt with a higher reward, with the gepa package (pip install 'gepa>=0.1').

    \b
    vf-gepa my-env -m Qwen/Qwen3-4B -b http://localhost:8000/v1 -B 200
    vf-gepa prompts.toml
    """
    values = dict(locals())
    from vf_cli.command import configure_logging

    configure_logging(is_verbose=verbose)
    settings = _settings(values)
    for warning in settings.pop("_warnings", []):
        output.note(warning)
    result, folder = _search(settings, no_save=no_save, is_verbose=verbose)
    report = {**result._asdict(), "saved_to": None if folder is None else str(folder)}
    del report["found"]
    if as_json:
        output.show_json(report)
    else:
        output.show(f"reward        {result.first_score:.3f} -> {result.best_score:.3f}")
        output.show(f"prompts       {len(result.candidates)} kept, {result.calls} rollouts")
        output.show("saved         " + (str(folder) if folder else "nothing (--no-save)"))
        output.show()
        output.show(result.best_prompt)
    return 0


_NOT_SETTINGS = ("env_id_or_config", "as_json", "tui", "no_save", "sandbox_backend")


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the file, updated with those of the command line."""
    from verifiers.prompt_search import load_gepa_toml_config
    from vf_cli.eval_options import json_object

    given = {
        name: value
        for name, value in values.items()
        if value is not None and name not in _NOT_SETTINGS
    }
    for name, option in (("env_args", "-a"), ("extra_env_kwargs", "-x"), ("sampling_args", "-S")):
        if name in given:
            given[name] = json_object(given[name], option)
    if "state_columns" in given:
        given["state_columns"] = [n.strip() for n in given["state_columns"].split(",") if n.strip()]
    if not values["env_id_or_config"].endswith(".toml"):
        env = {"env_id": values["env_id_or_config"]}
        own = {k: given.pop(k) for k in ("env_args", "extra_env_kwargs") if k in given}
        return {**given, "envs": [{**env, **own}]}
    if {"env_args", "extra_env_kwargs"} & set(given):
        raise typer.BadParameter(
            "-a and -x are not valid with a file; write them in the file's [env] table."
        )
    return {**load_gepa_toml_config(Path(values["env_id_or_config"])), **given}


_ENDPOINT = ("model", "endpoints_path", "api_key_var", "api_base_url")


def _search(
    settings: dict[str, Any], *, no_save: bool, is_verbose: bool
) -> tuple[SearchResult, Path | None]:
    from verifiers.clients.connect import api_key_of, close_all_clients
    from verifiers.evaluate.run import prepare_environment
    from verifiers.evaluate.settings import resolve, settings_of
    from verifiers.prompt_search import SearchOptions, search_prompt
    from verifiers.runs.folders import prompt_search_folder

    endpoint = {name: settings[name] for name in _ENDPOINT if name in settings}
    shared = {**endpoint, **{k: settings[k] for k in ("sampling_args",) if k in settings}}
    configs = [resolve(settings_of({**shared, **env}, "options")) for env in settings["envs"]]
    config = configs[0]
    reflection = settings.get("reflection_model") or settings.get("model")
    reflecting = resolve(
        settings_of({**endpoint, "model": reflection, "env_id": config.env_id}, "options")
    )
    api_key_of(config.client_config)
    protect()
    environments = [prepare_environment(one).environment for one in configs]
    environment = environments[0]
    if len(environments) > 1:
        from verifiers.envs.env_group import EnvGroup
        from verifiers.prompt_search.config_file import joined_names, unique_names

        ids = [one.env_id for one in environments]
        environment = EnvGroup(environments, unique_names(ids))
        environment.env_id = joined_names(ids)
    folder: Path | None = None
    if not no_save:
        chosen = settings.get("run_dir")
        where = settings.get("env_dir_path") or "./environments"
        folder = (
            Path(chosen)
            if chosen
            else prompt_search_folder(environment.env_id, config.model, where)
        )
    options = SearchOptions(
        **{name: settings[name] for name in SearchOptions._fields if name in settings}
    )

    async def search() -> SearchResult:
        try:
            return await search_prompt(
                environment,
                config.client_config,
                config.model,
                config.sampling_args,
                reflection_client=reflecting.client_config,
                reflection_model=reflecting.model,
                options=options,
                run_dir=folder,
                on_log=output.note if is_verbose else None,
            )
        finally:
            await environment.aclose()
            await close_all_clients()

    result = run(search())
    if folder is not None:
        from verifiers.prompt_search import save_gepa_results

        searched = {
            "env_id": environment.env_id,
            "envs": settings["envs"],
            "env_args": configs[0].env_args if len(configs) == 1 else {},
            "model": config.model,
            "reflection_model": reflecting.model,
            "sampling_args": config.sampling_args,
            **options._asdict(),
        }
        save_gepa_results(folder, result.found, config=searched)
    return result, folder
