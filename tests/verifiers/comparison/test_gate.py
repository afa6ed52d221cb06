import pytest

from verifiers.comparison.compare import compare
from verifiers.comparison.gate import GateOutcome, Policy, decide, waived_examples
from verifiers.errors import ConfigError


@pytest.fixture
def outcome(make_run, tmp_path):
    """Return the decision on a candidate whose rewards are the baseline's plus `shift`, ± `noise`."""
    numbers = iter(range(100))

    def get(policy: str, shift: float = 0.0, noise: float = 0.01, **options):
        number = next(numbers)
        first = make_run(f"a{number}", {i: [0.5] for i in range(40)})
        second = make_run(
            f"b{number}", {i: [0.5 + shift + noise * (-1) ** i] for i in range(40)}, **options
        )
        return decide(compare(first, second), load(tmp_path, policy))

    return get


def load(folder, text):
    path = folder / "policy.toml"
    path.write_text(text)
    return Policy.load(path)


@pytest.mark.parametrize(
    ("test", "shift", "noise", "expected"),
    [
        ("non-inferiority", 0.0, 0.01, "PASS"),
        ("non-inferiority", -0.04, 0.01, "PASS"),
        ("non-inferiority", -0.08, 0.01, "FAIL"),
        ("non-inferiority", -0.04, 0.3, "INCONCLUSIVE"),
        ("superiority", 0.08, 0.01, "PASS"),
        ("superiority", 0.02, 0.01, "FAIL"),
        ("superiority", 0.06, 0.3, "INCONCLUSIVE"),
        ("equivalence", 0.04, 0.01, "PASS"),
        ("equivalence", 0.08, 0.01, "FAIL"),
        ("equivalence", -0.08, 0.01, "FAIL"),
        ("equivalence", 0.0, 0.3, "INCONCLUSIVE"),
    ],
)
def test_each_kind_of_test_decides_by_the_ends_of_its_intervals(
    outcome, test, shift, noise, expected
):
    decision = outcome(f'[reward]\ntest = "{test}"\nmargin = 0.05', shift, noise)
    assert decision.outcome == expected
    assert decision.exit_code == {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 2}[expected]
    assert f"{test}, margin 0.05" in decision.checks[0].rule


def test_an_equal_candidate_is_not_worse(outcome):
    assert outcome("[reward]", 0.0, 0.0).outcome is GateOutcome.PASS
    assert outcome("[reward]", -0.1, 0.0).outcome is GateOutcome.FAIL


@pytest.mark.parametrize(("rule", "expected"), [("pass", 0), ("fail", 1), ("inconclusive", 2)])
def test_the_policy_says_how_an_inconclusive_check_counts(outcome, rule, expected):
    decision = outcome(f'inconclusive = "{rule}"\n[reward]\nmargin = 0.0', 0.0, 0.3)
    assert decision.checks[0].outcome is GateOutcome.INCONCLUSIVE
    assert decision.exit_code == expected


@pytest.mark.parametrize(
    ("level", "expected"), [(0.3, "PASS"), (0.55, "INCONCLUSIVE"), (0.9, "FAIL")]
)
def test_the_candidates_own_mean_must_reach_a_level(outcome, level, expected):
    decision = outcome(f"[reward]\nmargin = 1.0\nat_least = {level}", 0.0, 0.4)
    assert [check.outcome for check in decision.checks] == ["PASS", expected]


def test_less_is_better_for_costs(make_run, tmp_path):
    first = make_run("a", {i: [1.0] for i in range(10)})
    second = make_run(
        "b",
        {i: [1.0] for i in range(10)},
        fields=lambda e, _: {"token_usage": {"input_tokens": 8.0, "output_tokens": 20.0 + e % 2}},
    )
    policy = load(tmp_path, '[costs."output tokens"]\nmargin = 5.0')
    assert decide(compare(first, second), policy).outcome is GateOutcome.FAIL
    assert decide(compare(second, first), policy).outcome is GateOutcome.PASS


def test_failed_rollouts_and_different_settings_can_fail_the_gate(outcome):
    def crash(example, _):
        return {"error": {"error": "ToolError"}} if example < 3 else {}

    decision = outcome("max_failed_share = 0.05", fields=crash)
    assert decision.outcome is GateOutcome.FAIL
    assert "3 of 40 rollouts failed" in decision.checks[0].detail
    assert outcome("max_failed_share = 0.1", fields=crash).outcome is GateOutcome.PASS
    decision = outcome("strict = true\n[reward]\nmargin = 0.1", env_id="other")
    assert decision.checks[0].name == "comparability"
    assert decision.outcome is GateOutcome.FAIL


def test_metrics_and_pass_at_k_are_checked_by_name(outcome):
    policy = '[metrics.accuracy]\nmargin = 0.05\n[pass."pass@1"]\nmargin = 0.05'
    assert [check.name for check in outcome(policy).checks] == ["accuracy", "pass@1"]
    with pytest.raises(ConfigError, match=r"checks 'acuracy'.*They share: accuracy"):
        outcome("[metrics.acuracy]")
    with pytest.raises(ConfigError, match="not offered for pass@1"):
        outcome('[pass."pass@1"]\nat_least = 0.5')


def test_waived_examples_are_left_out(make_run, tmp_path):
    first = make_run("a", {i: [1.0] for i in range(10)})
    second = make_run("b", {i: [0.0 if i == 3 else 1.0] for i in range(10)})
    policy = load(tmp_path, "waived = [3]\n[reward]")
    report = compare(first, second, leave_out=lambda ids: waived_examples(policy, ids))
    assert decide(report, policy).outcome is GateOutcome.PASS
    assert report.pairs[0].flips == []
    by_hash = load(tmp_path, f'waived = ["{3:064x}"]\n[reward]')
    assert waived_examples(by_hash, {f"{i:064x}": i for i in range(5)}) == {f"{3:064x}"}
    with pytest.raises(ConfigError, match="waived example '77'"):
        compare(
            first,
            second,
            leave_out=lambda ids: waived_examples(load(tmp_path, "waived = [77]\n[reward]"), ids),
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "checks nothing"),
        ("[reward", "not a TOML file"),
        ("[reward]\nmargn = 0.1", r"reward\.margn"),
        ("[reward]\nmargin = -1", r"reward\.margin"),
        ("confidence = 95\n[reward]", "confidence"),
        ('[reward]\ntest = "best"', "non-inferiority"),
    ],
)
def test_a_policy_with_a_mistake_is_refused_with_its_place(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_a_policy_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        Policy.load(tmp_path / "none.toml")
