"""`vf-eval` used wrongly: options, keys, addresses, environments that are broken."""

from pathlib import Path

import pytest


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
