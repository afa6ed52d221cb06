"""`vf-eval` against a real endpoint."""

import json
from pathlib import Path

import pytest


def results_of(folder: str) -> list[dict]:
    return [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]


def test_a_run_gives_reward_with_error_and_exit_code_0(run, endpoint, make_environment):
    done = run("eval", make_environment(), "-b", endpoint.url, "-m", "sums", "-n", 4, "-r", 2)

    assert done.code == 0, done.err
    assert "4 examples x 2 rollouts" in done.out
    assert "1.000 ± 0.000   95 % [1.000, 1.000]" in done.out
    assert "add -s to keep the rollouts" in done.out
    assert not Path("outputs").exists()


def test_json_is_the_only_thing_on_stdout(run, endpoint_that, make_environment):
    endpoint = endpoint_that(wrong_every=4)

    done = run(
        "eval", make_environment(), "-b", endpoint.url, "-m", "sums", "-n", 4, "-r", 2, "--json"
    )

    [evaluation] = done.json["evaluations"]
    assert (done.code, evaluation["summary"]["reward"]["mean"]) == (0, 0.75)
    assert evaluation["summary"]["examples"] == 4
    assert evaluation["summary"]["pass_at_k"].keys() == {"1", "2"}
    assert evaluation["config"]["model"] == "sums"


def test_saved_rollouts_are_where_the_table_says(run, endpoint, make_environment):
    done = run(
        "eval",
        make_environment(),
        "-b",
        endpoint.url,
        "-m",
        "org/sums",
        "-n",
        3,
        "-r",
        2,
        "-s",
        "--json",
    )

    folder = done.json["evaluations"][0]["saved_to"]
    assert len(results_of(folder)) == 6
    assert folder.startswith("environments/")
    assert "--org--sums/" in folder


def test_settings_reach_the_endpoint(run, endpoint, make_environment):
    run(
        *("eval", make_environment(), "-b", endpoint.url, "-m", "sums", "-n", 1, "-r", 1),
        *(
            "-t",
            77,
            "-T",
            0.25,
            "-S",
            '{"top_p": 0.5}',
            "--header",
            "X-Team: rl",
            "--header-from-state",
            "X-E: answer",
        ),
    )

    [request], [headers] = endpoint.requests, endpoint.headers
    assert (request["model"], request["temperature"], request["top_p"]) == ("sums", 0.25, 0.5)
    assert 77 in (request.get("max_tokens"), request.get("max_completion_tokens"))
    assert (headers["x-team"], headers["x-session-id"], headers["x-e"]) == ("rl", "0", "1")


def test_environment_arguments_and_attributes_are_passed_on(run, endpoint, make_environment):
    path = make_environment()

    done = run("eval", path, "-b", endpoint.url, "-a", '{"count": 2}', "-n", -1, "-r", 1, "--json")
    slip = run("eval", path, "-b", endpoint.url, "-a", '{"cuont": 2}')
    attribute = run("eval", path, "-b", endpoint.url, "-x", '{"max_trns": 2}')

    assert done.json["evaluations"][0]["rollouts_wanted"] == 2
    assert (slip.code, "has no argument 'cuont'. Did you mean 'count'?" in slip.err) == (2, True)
    assert (attribute.code, "Did you mean 'max_turns'?" in attribute.err) == (2, True)


def test_failed_rollouts_are_counted_shown_and_give_exit_code_1(
    run, endpoint_that, make_environment
):
    endpoint = endpoint_that(refuse_every=2, message="on \x1b[31mfire")

    done = run(
        "eval", make_environment(), "-b", endpoint.url, "-m", "sums", "-n", 4, "-r", 1, "-c", 1
    )

    assert done.code == 1
    assert "2 of 4" in done.out
    assert "BadRequestError 2:" in done.out
    assert "\x1b[31m" not in done.out + done.err
    assert "over the 2 without an error" in done.out


def test_a_reward_function_that_raises_is_said_and_gives_exit_code_1(
    run, endpoint, make_environment
):
    broken = "import verifiers as vf\n\ndef broken(completion): return 1 / 0\n\ndef load_environment():\n"
    broken += "    return vf.SingleTurnEnv(dataset=[{'question': 'q'}], rubric=vf.Rubric(funcs=[broken]))\n"
    path = make_environment(broken)

    done = run("eval", path, "-b", endpoint.url, "-n", 1, "-r", 1)
    strict = run("eval", path, "-b", endpoint.url, "-n", 1, "-r", 1, "--strict")

    assert (done.code, strict.code) == (1, 1)
    assert "broken raised 1 times" in done.out
    assert "division by zero" in strict.err


def test_fail_under_turns_a_low_mean_into_exit_code_1(run, endpoint_that, make_environment):
    endpoint = endpoint_that(wrong_every=2)
    common = ("eval", make_environment(), "-b", endpoint.url, "-n", 4, "-r", 1, "-c", 1)

    low, high = run(*common, "--fail-under", 0.6), run(*common, "--fail-under", 0.5)

    assert (low.code, high.code) == (1, 0)
    assert "0.500 is below --fail-under 0.6" in low.err


def test_a_dataset_without_rows_is_an_error_and_not_a_success(run, endpoint, make_environment):
    source = """
import verifiers as vf


def load_environment():
    return vf.SingleTurnEnv(dataset=[], rubric=vf.Rubric(funcs=[lambda completion: 1.0]))
"""
    done = run("eval", make_environment(source), "-b", endpoint.url, "-m", "sums")

    assert done.code == 2
    assert "has no rows" in done.err


def test_resume_runs_only_what_is_missing(run, endpoint, make_environment):
    common = ("eval", make_environment(), "-b", endpoint.url, "-m", "sums", "-s", "--json")
    first = run(*common, "-n", 2, "-r", 2).json["evaluations"][0]

    latest = run(*common, "-n", 5, "-r", 2, "--resume").json["evaluations"][0]
    by_path = run(*common, "-n", 5, "-r", 3, "--resume", latest["saved_to"]).json["evaluations"][0]

    assert first["saved_to"] == latest["saved_to"] == by_path["saved_to"]
    assert len(endpoint.requests) == 15
    assert len(results_of(first["saved_to"])) == by_path["summary"]["rollouts"] == 15


def test_resume_runs_again_what_infrastructure_made_fail(run, endpoint, make_environment):
    path = make_environment("""
import pathlib
import verifiers as vf

class Fragile(vf.SingleTurnEnv):
    async def setup_state(self, state):
        if state["example_id"] == 1 and not pathlib.Path("repaired").exists():
            raise vf.InfraError("the machine is broken")
        return state

def load_environment():
    return Fragile(dataset=[{"question": "1 + 1"}, {"question": "2 + 2"}])
""")
    common = ("eval", path, "-b", endpoint.url, "-m", "sums", "-n", 2, "-r", 2, "-s", "--json")

    broken = run(*common)
    Path("repaired").touch()
    repaired = run(*common, "--resume", broken.json["evaluations"][0]["saved_to"])

    assert (broken.code, broken.json["evaluations"][0]["summary"]["error_count"]) == (1, 2)
    assert (repaired.code, repaired.json["evaluations"][0]["summary"]["rollouts"]) == (0, 4)


def test_resume_of_a_folder_that_is_no_run_is_refused(run, endpoint, make_environment):
    done = run("eval", make_environment(), "-b", endpoint.url, "--resume", "nowhere")

    assert done.code == 2
    assert "nowhere is no saved run" in done.err


def test_rows_that_changed_stop_a_resumed_run_unless_it_is_said_what_to_do(
    run, endpoint, make_environment
):
    source = "import verifiers as vf\nfrom pathlib import Path\n\ndef load_environment():\n"
    source += (
        "    rows = [{'question': line} for line in Path('rows.txt').read_text().splitlines()]\n"
    )
    source += "    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric())\n"
    common = ("eval", make_environment(source), "-b", endpoint.url, "-m", "sums", "-n", 2, "-r", 1)
    common = (*common, "-s", "--json")
    Path("rows.txt").write_text("What is 1?\nWhat is 2?\n")
    folder = run(*common).json["evaluations"][0]["saved_to"]
    Path("rows.txt").write_text("How much is 1?\nHow much is 2?\n")

    stopped = run(*common, "--resume", folder)
    kept = run(*common, "--resume", folder, "--on-changed", "keep")
    asked_before = len(endpoint.requests)
    rerun = run(*common, "--resume", folder, "--on-changed", "rerun")

    assert stopped.code == 2
    assert "--on-changed rerun" in stopped.err
    assert "--on-changed keep" in stopped.err
    assert (kept.code, asked_before) == (0, 2)
    assert (rerun.code, len(endpoint.requests)) == (0, 4)
    assert all("How much" in one["prompt"][0]["content"] for one in results_of(folder))


def test_resume_without_a_path_works_in_every_evaluation_of_a_sweep(
    run, endpoint, make_environment
):
    Path("sweep.toml").write_text(
        f'api_base_url = "{endpoint.url}"\nmodel = "sums"\nrollouts_per_example = 1\nsave_results = true\n'
        f'[[ablation]]\nenv_id = "{make_environment()}"\n[ablation.sweep.env_args]\ndifficulty = ["easy", "hard"]\n'
    )
    first = run("eval", "sweep.toml", "-n", 2, "--json").json["evaluations"]

    again = run("eval", "sweep.toml", "-n", 3, "--resume", "--json")

    assert again.code == 0, again.err
    folders = [one["saved_to"] for one in again.json["evaluations"]]
    assert folders == [one["saved_to"] for one in first]
    assert len(set(folders)) == 2
    assert [len(results_of(folder)) for folder in folders] == [3, 3]
    assert len(endpoint.requests) == 6


def test_a_header_from_a_key_the_state_does_not_have_is_an_error(run, endpoint, make_environment):
    done = run(
        *("eval", make_environment(), "-b", endpoint.url, "-m", "sums", "-n", 2, "-r", 1),
        *("--header-from-state", "X-Answer: anwser"),
    )

    assert done.code == 2
    assert "state['anwser']" in done.err
    assert "Did you mean 'answer'?" in done.err
    assert endpoint.requests == []


def test_a_seed_takes_other_examples_and_the_same_ones_again(run, endpoint, make_environment):
    path = make_environment()

    def asked(*options: object) -> list[str]:
        endpoint.requests.clear()
        run(
            "eval",
            path,
            "-b",
            endpoint.url,
            "-a",
            '{"count": 50}',
            "-n",
            3,
            "-r",
            1,
            "-c",
            1,
            *options,
        )
        return [request["messages"][-1]["content"] for request in endpoint.requests]

    assert (
        asked("--seed", 1)
        == asked("--seed", 1)
        != asked()
        == ["What is 0 + 1?", "What is 1 + 2?", "What is 2 + 3?"]
    )


def test_the_environment_suggests_how_much_to_run(run, endpoint, make_environment):
    path = make_environment(
        suggested="[tool.verifiers.eval]\nnum_examples = 2\nrollouts_per_example = 4\n"
    )

    suggested = run("eval", path, "-b", endpoint.url, "--dry-run", "--json").json["evaluations"][0]
    said = run("eval", path, "-b", endpoint.url, "-n", 1, "--dry-run", "--json").json[
        "evaluations"
    ][0]

    assert (suggested["num_examples"], suggested["rollouts_per_example"]) == (2, 4)
    assert (said["num_examples"], said["rollouts_per_example"]) == (1, 4)


def test_a_dry_run_requests_nothing_and_loads_nothing(run, endpoint, make_environment):
    done = run(
        "eval",
        make_environment("raise SystemExit(9)"),
        "-b",
        endpoint.url,
        "-m",
        "sums",
        "--dry-run",
    )

    assert (done.code, endpoint.requests) == (0, [])
    assert "nothing was run" in done.out
    assert endpoint.url in done.out


# ------------------------------------------------------------------------------------------- wrong usage


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["my-env", "--modle", "x"], "--model"),
        (["my-env", "-a", "{bad"], "-a is not valid JSON"),
        (["my-env", "-a", "[1]"], "-a must be a JSON object"),
        (["my-env", "-S", "3", "-b", "http://x/v1"], "-S must be a JSON object"),
        (["my-env", "-n", "three"], "--num-examples"),
        (["my-env", "-r", "0"], "-r"),
        (
            ["my-env", "-b", "http://x/v1", "-n", "0"],
            "num_examples: must be at least 1, or -1 for all; got 0",
        ),
        (
            ["my-env", "-b", "http://x/v1", "-c", "0"],
            "max_concurrent: must be at least 1, or -1 for all; got 0",
        ),
        (["my-env", "-c", "-3"], "max_concurrent: must be at least 1, or -1 for all; got -3"),
        (["my-env", "-s", "--on-changed", "ignore"], "'stop', 'rerun' or 'keep'"),
        (["my-env", "-p", "opnai"], "none of prime, openrouter"),
        (["my-env", "-b", "http://127.0.0.1/v1", "--header", "X"], "'Name: value'"),
        (["my-env", "-f", "-d"], "exclude each other"),
        (["my-env", "-e", "nope.toml"], "no endpoint registry at nope.toml"),
        (["my-env", "-b", "http://127.0.0.1/v1", "--max-cost", "1"], "--prices"),
        (["nope.toml"], "no configuration file nope.toml"),
        (["no/such/id", "-b", "http://127.0.0.1/v1"], "is not an id on a hub"),
        ([], "ENV_OR_CONFIG"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_names_what_is_wrong(run, arguments, said):
    done = run("eval", *arguments)

    assert (done.code, said in done.err) == (2, True), done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_without_an_endpoint_it_names_the_ways_to_give_one(run, make_environment):
    done = run("eval", make_environment())

    assert done.code == 2
    for way in ("-p PROVIDER", "-b http://", "OPENAI_API_KEY", "vf-endpoint"):
        assert way in done.err


def test_with_openai_api_key_the_openai_variables_decide(
    run, endpoint, make_environment, monkeypatch
):
    path = make_environment()
    monkeypatch.setenv("OPENAI_API_KEY", "k")

    public = run("eval", path, "--dry-run", "--json").json["evaluations"][0]
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
    own = run("eval", path, "-n", 1, "-r", 1, "--json")

    assert public["client_config"]["api_base_url"] == "https://api.openai.com/v1"
    assert public["model"] == "gpt-4.1-mini"
    assert (own.code, endpoint.headers[0]["authorization"]) == (0, "Bearer k")


def test_a_missing_key_is_said_before_anything_is_loaded(run, make_environment):
    done = run("eval", make_environment("raise SystemExit(9)"), "-p", "deepseek")

    assert done.code == 2
    assert "DEEPSEEK_API_KEY is not set" in done.err


def test_a_refused_key_stops_the_run_and_names_the_variable(
    run, endpoint_that, make_environment, monkeypatch
):
    endpoint = endpoint_that(refuse_every=1, status=401)
    monkeypatch.setenv("MY_KEY", "wrong")

    done = run(
        "eval", make_environment(), "-b", endpoint.url, "-k", "MY_KEY", "-n", 6, "-r", 3, "-c", 1
    )

    assert done.code == 2
    assert "MY_KEY" in done.err
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("status", [401, 400, 500])
@pytest.mark.parametrize("verbose", [[], ["-v"]])
def test_a_key_that_the_endpoint_repeats_is_shown_and_saved_nowhere(
    run, endpoint_that, make_environment, monkeypatch, status, verbose
):
    secret = "sk-this-must-not-be-seen-4711"
    endpoint = endpoint_that(
        refuse_every=1, status=status, message=f"Bad key {secret} (Bearer {secret})"
    )
    monkeypatch.setenv("MY_KEY", secret)
    monkeypatch.setattr("verifiers.clients.endpoints.wait_s", lambda *_: 0.0)
    header = "tok-nor-this-9182"

    done = run(
        *("eval", make_environment(), "-b", endpoint.url, "-k", "MY_KEY", "-n", 2, "-r", 1, "-s"),
        *("--header", f"X-Api-Key: {header}", "--json", *verbose),
    )

    assert done.code in (1, 2)
    assert endpoint.headers[0]["authorization"] == f"Bearer {secret}"
    written = [path.read_text() for path in Path("environments").rglob("*.json*")]
    assert written
    for text in (done.out, done.err, *written):
        assert secret not in text
        assert header not in text


def test_in_a_narrow_terminal_names_are_shortened_but_no_number(
    run, endpoint_that, make_environment, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "40")
    endpoint = endpoint_that(wrong_every=3)

    done = run("eval", make_environment(), "-b", endpoint.url, "-m", "sums", "-n", 4, "-r", 1, "-A")

    table = done.out.partition("metric")[2] or done.out.partition("met…")[2]
    assert "0.750   0.250   0.500" in table


def test_rollouts_that_the_time_limit_ended_are_named_in_the_summary(
    run, endpoint_that, make_environment
):
    endpoint = endpoint_that(hold_after=0)

    done = run(
        *("eval", make_environment(), "-b", endpoint.url, "-m", "sums", "-n", 2, "-r", 1),
        *("--timeout", 0.1),
    )

    assert "timeout_reached 2" in done.out


def test_a_base_url_without_its_scheme_is_wrong_usage(run, make_environment):
    done = run("eval", make_environment(), "-b", "localhost:8000/v1")

    assert done.code == 2
    assert "Did you mean 'http://localhost:8000/v1'?" in done.err


def test_an_endpoint_nobody_listens_at_is_said_at_once(run, make_environment):
    done = run("eval", make_environment(), "-b", "http://127.0.0.1:1/v1")

    assert (done.code, "cannot be reached" in done.err) == (1, True)
    assert "Connection refused" in done.err


@pytest.mark.parametrize(
    ("source", "said", "code"),
    [
        (
            "import verifiers as vf\ndef load_environment(): raise KeyError('boom')",
            "raised KeyError: 'boom'",
            1,
        ),
        ("import not_there_at_all", "not_there_at_all", 1),
        ("x = 1", "has no load_environment()", 1),
        ("def load_environment(): return 3", "returned int", 1),
        (
            "import verifiers as vf\ndef load_environment(): vf.ensure_keys(['ODD_KEY'])",
            "ODD_KEY",
            2,
        ),
        (
            "import verifiers as vf\ndef load_environment(): return vf.SingleTurnEnv(dataset=[{'quesion': 'q'}])",
            "neither 'prompt' nor 'question'",
            1,
        ),
    ],
)
def test_an_environment_that_is_broken_is_explained_without_a_traceback(
    run, endpoint, make_environment, source, said, code
):
    done = run("eval", make_environment(source), "-b", endpoint.url)

    assert (done.code, said in done.err) == (code, True), done.err
    assert "Traceback" not in done.err


def test_v_shows_the_traceback(run, endpoint, make_environment):
    path = make_environment("def load_environment(): raise KeyError('boom')")

    assert "Traceback" in run("eval", path, "-b", endpoint.url, "-v").err


def test_an_environment_that_is_not_installed_is_explained_with_the_nearest_name(
    run, make_environment
):
    make_environment(name="nearly_there")

    done = run("eval", "nearly-there", "-b", "http://127.0.0.1/v1")

    assert done.code == 2
    assert "`vf-install nearly-there` installs it" in done.err


def test_a_folder_that_cannot_be_written_is_an_error_not_a_traceback(
    run, endpoint, make_environment
):
    Path("file").write_text("")

    done = run("eval", make_environment(), "-b", endpoint.url, "-s", "-o", "file/out", "-n", 1)

    assert done.code == 1
    assert "file/out" in done.err
    assert "Traceback" not in done.err


# ------------------------------------------------------------------------------------ configuration files


def test_a_file_runs_every_evaluation_and_compares_them(run, endpoint_that, make_environment):
    endpoint = endpoint_that(wrong_every=3)
    path = make_environment()
    Path("sweep.toml").write_text(
        f'api_base_url = "{endpoint.url}"\nmodel = "sums"\nnum_examples = 2\nrollouts_per_example = 1\n'
        f'[[eval]]\nenv_id = "{path}"\n[[ablation]]\nenv_id = "{path}"\n[ablation.sweep]\ntemperature = [0.0, 1.0]\n'
        '[ablation.sweep.env_args]\ndifficulty = ["easy", "hard"]\n'
    )

    done = run("eval", "sweep.toml")
    as_json = run("eval", "sweep.toml", "--json", "-n", 1).json

    assert done.code == 0, done.err
    assert "temperature=1.0, env_args.difficulty=hard" in done.out
    assert [one["swept"] for one in as_json["evaluations"]] == [
        {},
        {"temperature": 0.0, "env_args.difficulty": "easy"},
        {"temperature": 0.0, "env_args.difficulty": "hard"},
        {"temperature": 1.0, "env_args.difficulty": "easy"},
        {"temperature": 1.0, "env_args.difficulty": "hard"},
    ]
    assert {one["rollouts_wanted"] for one in as_json["evaluations"]} == {1}


def test_a_misspelt_key_in_a_file_names_the_nearest_one(run):
    Path("slip.toml").write_text('[[eval]]\nenv_id = "x"\nnum_exampels = 3\n')

    done = run("eval", "slip.toml")

    assert done.code == 2
    assert (
        "slip.toml, [[eval]] number 1: there is no key 'num_exampels'. Did you mean 'num_examples'?"
        in done.err
    )


def test_the_registry_gives_model_address_key_and_headers(
    run, endpoint, make_environment, monkeypatch
):
    monkeypatch.setenv("TEAM_KEY", "secret")
    Path("configs").mkdir()
    Path("configs/endpoints.toml").write_text(
        f'[[endpoint]]\nendpoint_id = "short"\nmodel = "org/sums"\nurl = "{endpoint.url}"\nkey = "TEAM_KEY"\n'
        'headers = {"X-Team" = "rl"}\n'
    )

    done = run("eval", make_environment(), "-m", "short", "-n", 1, "-r", 1)

    assert done.code == 0, done.err
    assert endpoint.requests[0]["model"] == "org/sums"
    assert (endpoint.headers[0]["authorization"], endpoint.headers[0]["x-team"]) == (
        "Bearer secret",
        "rl",
    )


def test_the_heartbeat_is_called(run, endpoint, make_environment):
    run(
        "eval",
        make_environment(),
        "-b",
        endpoint.url,
        "-n",
        1,
        "-r",
        1,
        "--heartbeat-url",
        f"{endpoint.url}/beat",
    )

    assert len(endpoint.requests) == 2
    assert {} in endpoint.requests


def test_costs_come_from_the_price_table(run, endpoint, make_environment):
    Path("prices.toml").write_text(
        '["sums"]\ninput_usd_per_mtok = 1000000\noutput_usd_per_mtok = 2000000\n'
    )

    done = run(
        *("eval", make_environment(), "-b", endpoint.url, "-m", "sums", "-n", 2, "-r", 1),
        *("--prices", "prices.toml", "--json"),
    )

    assert done.json["evaluations"][0]["summary"]["cost"]["total_usd"] == 2 * (10 + 2 * 5)
