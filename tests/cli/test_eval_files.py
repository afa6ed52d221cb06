"""`vf-eval` with files: configurations of several evaluations, endpoint registries, prices."""

from pathlib import Path

import pytest


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


def test_options_beside_a_file_are_named_as_they_were_given(run, endpoint, make_environment):
    Path("c.toml").write_text(f'[[eval]]\nenv_id = "{make_environment()}"\nmodel = "m"\n')

    done = run(
        "eval", "c.toml", "-b", endpoint.url, "-m", "sums", "-n", 1, "-r", 1, "--disable-tui"
    )

    said = " ".join(done.err.split())
    assert (
        "c.toml: every evaluation runs with --api-base-url, --model, --num-examples and "
        "--rollouts-per-example of the command line instead of the values in the file."
    ) in said
    assert "disable" not in said


def test_a_display_option_beside_a_file_is_not_mentioned(run, endpoint, make_environment):
    Path("c.toml").write_text(
        f'api_base_url = "{endpoint.url}"\nmodel = "sums"\nnum_examples = 1\n'
        f'[[eval]]\nenv_id = "{make_environment()}"\n'
    )

    assert "command line" not in run("eval", "c.toml", "--disable-tui").err


def test_a_missing_environment_is_told_before_any_evaluation_of_a_file_runs(
    run, endpoint, make_environment
):
    Path("c.toml").write_text(
        f'[[eval]]\nenv_id = "{make_environment()}"\n[[eval]]\nenv_id = "not-there-env"\n'
    )

    done = run("eval", "c.toml", "-b", endpoint.url, "-m", "sums")

    assert (done.code, endpoint.requests) == (2, [])
    assert "No environment 'not-there-env' is installed" in done.err


@pytest.mark.parametrize("as_json", [False, True])
def test_what_was_evaluated_is_reported_when_a_later_evaluation_cannot_run(
    run, endpoint, make_environment, as_json
):
    broken = make_environment("def load_environment(): raise KeyError('boom')")
    Path("c.toml").write_text(
        f'[[eval]]\nenv_id = "{make_environment()}"\n[[eval]]\nenv_id = "{broken}"\n'
    )

    options = ["--json"] if as_json else []
    done = run("eval", "c.toml", "-b", endpoint.url, "-m", "sums", "-n", 2, "-r", 1, *options)

    assert done.code == 1
    assert "evaluation 2 of 2 could not be run:" in done.err
    assert "raised KeyError: 'boom'" in done.err
    if as_json:
        [evaluation] = done.json["evaluations"]
        assert (done.json["exit_code"], evaluation["summary"]["reward"]["mean"]) == (1, 1.0)
    else:
        assert "1.000 ± 0.000" in done.out


RIGHT_UP_TO = """
import verifiers as vf


def load_environment(solved: int = 0, moved: int = 0):
    rows = [{"question": f"What is {a} + 1?", "answer": str(a + moved)} for a in range(20)]

    def is_solved(answer):
        return float(int(answer) < solved)

    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[is_solved]))
"""


def test_a_sweep_ends_with_paired_differences_between_its_settings(run, endpoint, make_environment):
    path = make_environment(RIGHT_UP_TO)
    Path("sweep.toml").write_text(
        f'api_base_url = "{endpoint.url}"\nmodel = "sums"\nnum_examples = 20\nrollouts_per_example = 1\n'
        f'[[ablation]]\nenv_id = "{path}"\n[ablation.sweep.env_args]\nsolved = [10, 16, 10]\n'
    )

    done = run("eval", "sweep.toml")
    found = run("eval", "sweep.toml", "--json").json["differences"]

    # The two intervals overlap ([0.28, 0.72] and [0.57, 0.92]); all six differences have the same sign.
    better, same = found
    assert (better["first"], better["second"], same["second"]) == (0, 1, 2)
    assert better["difference"] == pytest.approx(0.3)
    assert better["low"] > 0
    assert better["p_value"] == pytest.approx(0.01, abs=0.005)
    assert (same["difference"], same["p_value"], same["examples"]) == (0.0, 1.0, 20)
    assert "paired differences" in done.out
    line = next(line for line in done.out.splitlines() if "+0.3000" in line)
    assert "env_args.solved=16" in line
    assert "env_args.solved=10" in line


def test_settings_with_other_examples_are_not_paired(run, endpoint, make_environment):
    path = make_environment(RIGHT_UP_TO)
    Path("sweep.toml").write_text(
        f'api_base_url = "{endpoint.url}"\nmodel = "sums"\nnum_examples = 5\nrollouts_per_example = 1\n'
        f'[[ablation]]\nenv_id = "{path}"\n[ablation.sweep.env_args]\nmoved = [0, 100]\n'
    )

    done = run("eval", "sweep.toml")

    assert run("eval", "sweep.toml", "--json").json["differences"] == []
    assert "paired differences" not in done.out
