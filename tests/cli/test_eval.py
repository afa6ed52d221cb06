"""`vf-eval` against a real endpoint."""

import json
from pathlib import Path


def results_of(folder: str) -> list[dict]:
    return [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]


def test_a_run_gives_reward_with_error_and_exit_code_0(run, endpoint, make_environment):
    done = run("eval", make_environment(), "-b", endpoint.url, "-m", "sums", "-n", 4, "-r", 2)

    assert done.code == 0, done.err
    assert "4 examples x 2 rollouts" in done.out
    assert "1.000 ± 0.000   95 % [0.521, 1.000]" in done.out
    assert "add -s to keep a run; without -s, only the last 20 runs stay" in done.out
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
    assert "broken raised once" in done.out
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


NOTES_ITS_TURNS = """
import verifiers as vf


class Noting(vf.SingleTurnEnv):
    async def setup_state(self, state):
        state["plan_length"] = 3
        if state["example_id"] == 1:
            state["only_sometimes"] = "here"
        return state


def load_environment():
    rows = [{"question": f"What is {a} + 1?", "answer": str(a + 1)} for a in range(3)]
    return Noting(dataset=rows, rubric=vf.Rubric(funcs=[lambda completion: 1.0]))
"""


def test_a_misspelt_state_column_is_said_with_the_nearest_name_and_loses_nothing(
    run, endpoint, make_environment
):
    done = run(
        *("eval", make_environment(NOTES_ITS_TURNS), "-b", endpoint.url, "-m", "sums"),
        *("-n", 3, "-r", 2, "-s", "-C", "plan_lenght,only_sometimes", "--json"),
    )

    said = " ".join(done.err.split())
    assert said.count("'plan_lenght' (did you mean 'plan_length'?)") == 1
    assert "only_sometimes'" not in said
    rollouts = results_of(done.json["evaluations"][0]["saved_to"])
    assert [one["plan_lenght"] for one in rollouts] == [None] * 6
    assert sorted(str(one["only_sometimes"]) for one in rollouts) == ["None"] * 4 + ["here"] * 2


def test_a_state_column_unlike_any_is_said_at_the_end_with_the_keys_there_are(
    run, endpoint, make_environment
):
    done = run(
        *("eval", make_environment(NOTES_ITS_TURNS), "-b", endpoint.url, "-m", "sums"),
        *("-n", 2, "-r", 1, "-C", "zzz,advantage,turn,answer,is_right"),
    )

    said = " ".join(done.err.split())
    assert "No rollout had a state column 'zzz', 'is_right'. Saved as null." in said
    assert "plan_length" in said


def test_fewer_examples_than_asked_for_are_noted_in_the_summary(run, endpoint, make_environment):
    path = make_environment()

    few = run("eval", path, "-b", endpoint.url, "-m", "sums", "-n", 1000, "-r", 1)
    enough = run("eval", path, "-b", endpoint.url, "-m", "sums", "-n", 6, "-r", 1)

    assert "6; 1,000 were requested, the dataset has no more" in few.out
    assert "the dataset has no more" not in enough.out
    assert few.code == enough.code == 0


def test_half_a_character_in_a_prompt_is_named(run, endpoint, make_environment):
    done = run(
        *("eval", make_environment("""
import verifiers as vf


def load_environment():
    return vf.SingleTurnEnv(dataset=[{"question": "What is \\ud83d + 1?", "answer": "1"}])
"""), "-b", endpoint.url, "-m", "sums", "-n", 1, "-r", 1, "-s"),
    )  # fmt: skip

    said = " ".join(done.out.split())
    assert "lone surrogate U+D83D at character 8 of messages[0].content" in said
    assert done.code == 1


def test_resuming_is_only_advised_where_it_can_help(run, endpoint_that, make_environment):
    path = make_environment()
    wrong = endpoint_that(refuse_every=1, status=404, message="The model 'sums' does not exist.")
    options = ("-m", "sums", "-n", 1, "-r", 1, "-s", "--yes")

    hopeless = run("eval", path, "-b", wrong.url, *options)
    assert "does not exist. Check the base URL and the model name." in " ".join(
        hopeless.err.split()
    )
    assert "--resume" not in hopeless.out + hopeless.err
    assert hopeless.code == 2

    without_version = run("eval", path, "-b", wrong.url.removesuffix("/v1"), *options)
    assert "Most base URLs end in /v1" in " ".join(without_version.err.split())


def test_scoring_of_failed_rollouts_is_not_complained_about(run, endpoint_that, make_environment):
    source = """
import verifiers as vf


def last_word(completion):
    return float(completion[-1]["content"] == "yes")


def load_environment():
    return vf.SingleTurnEnv(dataset=[{"question": "?"}], rubric=vf.Rubric(funcs=[last_word]))
"""
    failing = endpoint_that(refuse_every=1)

    done = run("eval", make_environment(source), "-b", failing.url, "-m", "sums", "-r", 1)

    assert "the model is on fire" in done.err
    assert "IndexError" not in done.err + done.out
    assert "1 example x 1 rollout " in done.out
