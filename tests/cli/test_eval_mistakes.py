"""`vf-eval` used wrongly: options, keys, addresses, environments that are broken."""

import re
from pathlib import Path

import pytest

from verifiers.runs.store import RunNotFound, load_metadata


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
        (["my-env", "-p", "opnai"], "'opnai' is not one of 'prime', 'openrouter'"),
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


def test_all_examples_of_an_endless_dataset_are_wrong_usage(run, endpoint, make_environment):
    path = make_environment("""
import itertools

import verifiers as vf


def load_environment():
    rows = ({"question": f"What is {a} + 1?", "answer": str(a + 1)} for a in itertools.count())
    return vf.SingleTurnEnv(dataset=rows)
""")

    done = run("eval", path, "-b", endpoint.url, "-n", -1)

    assert (done.code, "e.g. `-n 100`" in " ".join(done.err.split())) == (2, True)
    assert run("eval", path, "-b", endpoint.url, "-n", 3, "-r", 1).code == 0


def test_a_name_like_an_installed_one_is_not_advised_to_be_installed(run):
    done = run("eval", "wordl", "-b", "http://127.0.0.1/v1")

    assert done.code == 2
    assert "vf-init wordl" in done.err
    assert "vf-install wordl" not in done.err


@pytest.mark.parametrize("workers", [(), ("-w", 1)])
def test_a_wrong_model_name_costs_at_most_one_rollout_and_the_right_one_is_suggested(
    run, endpoint_that, make_environment, workers
):
    endpoint = endpoint_that(models=["Qwen/Qwen3-4B", "other"])
    few = ("-n", 6, "-r", 20, "-c", 1, *workers)

    done = run("eval", make_environment(), "-b", endpoint.url, "-m", "Qwen/Qwen3-4b", *few)

    assert done.code == 2
    assert "Did you mean -m Qwen/Qwen3-4B?" in done.err
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("workers", [(), ("-w", 1)])
def test_a_misspelt_reward_argument_costs_no_token_and_is_kept_in_the_run_folder(
    run, endpoint, make_environment, workers
):
    source = "import verifiers as vf\n\ndef right(completion, anwser): return 1.0\n\ndef load_environment():\n"
    source += "    rows = [{'question': 'q', 'answer': 'a'}]\n"
    source += "    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[right]))\n"

    done = run("eval", make_environment(source), "-b", endpoint.url, "-n", 1, "-r", 9, *workers)

    assert done.code == 1
    assert "Did you mean 'answer'?" in done.err
    assert endpoint.requests == []


CRASHES = """
import verifiers as vf


class Board(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        if state["info"]["n"] % PERIOD == 0:
            return state["board"]
        return "go on"


def always(completion):
    return 1.0


def load_environment():
    rows = [{"question": f"What is {n} + 1?", "info": {"n": n}} for n in range(4)]
    return Board(dataset=rows, max_turns=2, rubric=vf.Rubric(funcs=[always]))
"""


@pytest.mark.parametrize("workers", [(), ("-w", 1)])
def test_a_crash_earns_nothing_and_the_summary_names_the_authors_line_also_after_resume(
    run, endpoint, make_environment, workers
):
    path = make_environment(CRASHES.replace("PERIOD", "2"))
    fixed = ("-b", endpoint.url, "-m", "m", "-n", 4, "-r", 1, "-s", *workers)

    first = run("eval", path, *fixed)
    again = run("eval", path, *fixed, "--resume", "--json").json["evaluations"][0]["summary"]

    assert first.code == 1
    assert "1.000 ± 0.000 over the 2 without an error" in first.out
    assert "2 of 4 rollouts" in first.out
    assert "KeyError('board')" in first.out
    assert re.search(r"at \S+\.py:8 in env_response", first.out)
    assert again["reward"]["mean"] == 0.5
    assert again["reward_error_free"]["mean"] == 1.0
    assert (again["failed"], again["void"]) == (2, 2)


def test_when_every_rollout_failed_the_last_line_says_what_to_do(run, endpoint, make_environment):
    path = make_environment(CRASHES.replace("PERIOD", "1"))

    done = run("eval", path, "-b", endpoint.url, "-n", 4, "-r", 1)

    last = done.out.strip().splitlines()[-1]
    assert "add -s to keep" not in done.out
    assert "EnvironmentCodeError" in last
    assert ".py:8 in env_response" in last
    assert "correct the environment" in last


def test_no_line_says_that_nothing_failed_when_a_reward_function_raised(
    run, endpoint, make_environment
):
    source = "import verifiers as vf\n\ndef broken(completion): return [][1]\n\ndef load_environment():\n"
    source += "    return vf.SingleTurnEnv(dataset=[{'question': 'q'}], rubric=vf.Rubric(funcs=[broken]))\n"

    done = run("eval", make_environment(source), "-b", endpoint.url, "-n", 1, "-r", 2)

    assert not re.search(r"errors +none", done.out)
    assert re.search(r"errors +2 of 2 rollouts", done.out)
    assert "broken raised 2 times" in done.out
    assert ".py:3 in broken" in done.out


def test_options_and_runs_of_verifiers_0_4_are_named_as_such(run, endpoint, make_environment):
    path = make_environment()
    option = run("eval", path, "--env.agent.harness.id", "null")
    assert (option.code, "verifiers 0.4 and later" in option.err) == (2, True)
    folder = Path("outputs") / "sums--m--null--f667e1ad"
    folder.mkdir(parents=True)
    (folder / "traces.jsonl").write_text("{}\n")
    resumed = run("eval", path, "-b", endpoint.url, "--resume", folder)
    assert (resumed.code, "a run of verifiers 0.4 or later" in resumed.err) == (2, True)
    with pytest.raises(RunNotFound, match=r"a run of verifiers 0\.4 or later"):
        load_metadata(folder)
