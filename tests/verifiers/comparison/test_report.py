import json
from xml.etree import ElementTree

import pytest

from verifiers.comparison.compare import compare
from verifiers.comparison.gate import Decision, GateCheck, GateOutcome
from verifiers.comparison.report import as_json, as_junit, as_markdown, headline

HOSTILE = "m|<script>alert(1)</script>\n# x"


@pytest.fixture
def report(make_run):
    first = make_run("a", {i: [0.5] for i in range(30)}, model=HOSTILE)
    second = make_run("b", {i: [0.6 if i % 3 else 0.3] for i in range(31)}, model="better")
    return compare(first, second)


def decision(*outcomes):
    checks = [GateCheck(HOSTILE, "reward", "margin\x00 0", one, "d & <e>") for one in outcomes]
    worst = GateOutcome.FAIL if GateOutcome.FAIL in outcomes else GateOutcome.PASS
    return Decision(worst, checks)


def test_the_report_is_strict_json(report):
    values = json.loads(json.dumps(as_json(report, decision(GateOutcome.PASS)), allow_nan=False))
    [pair] = values["comparisons"]
    assert pair["reward"]["difference"] == pytest.approx(0.0)
    assert pair["adjusted_p"] is None
    assert values["runs"][1]["examples"] == 31
    assert values["gate"]["outcome"] == "PASS"
    assert "1 examples are in only one" in values["warnings"][0]


def test_markdown_has_the_conclusion_and_lets_no_name_write_markup(report):
    text = as_markdown(report, decision(GateOutcome.FAIL))
    assert "<script>" not in text
    assert "\n# x" not in text
    assert text.startswith("# No difference between better and m|&lt;script>".replace("m|", "m\\|"))
    assert "**Gate: FAIL**" in text
    assert "10 examples lost reward" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith(" |") for line in rows)


def test_the_headline_names_the_better_run(make_run):
    first = make_run("old", {i: [0.5 + 0.01 * (i % 2)] for i in range(30)})
    second = make_run("new", {i: [0.7] for i in range(30)})
    assert headline(compare(first, second)).startswith("new is better than old: +0.19")
    assert headline(compare(second, first)).startswith("old is worse than new: -0.19")


@pytest.mark.parametrize(
    ("decided", "counts"),
    [
        (
            decision(GateOutcome.PASS, GateOutcome.FAIL, GateOutcome.INCONCLUSIVE),
            ("3", "1", "0", "1"),
        ),
        (
            Decision(GateOutcome.FAIL, decision(GateOutcome.INCONCLUSIVE).checks),
            ("1", "0", "1", "0"),
        ),
    ],
)
def test_junit_counts_failures_and_keeps_hostile_names_as_text(decided, counts):
    suite = ElementTree.fromstring(as_junit(decided))
    assert tuple(suite.get(key) for key in ("tests", "failures", "errors", "skipped")) == counts
    [case, *_] = suite
    assert case.get("name") == "reward: margin 0"
    assert "<script>" in str(case.get("classname"))
