"""Everything the OpenAPI document allows, and much that it does not: answered, and never with a fault of ours."""

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

NOT_CALLED = re.compile(r"^/metrics$")
"""Plain text without parameters; asked for in `test_operations`."""


@dataclass
class DescribedHub:
    """A served hub with things on it, and the operations it describes."""

    url: str
    headers: dict[str, str]
    operations: list[Any]
    there: dict[str, str]
    """A value that exists for a parameter of a path."""

    def __post_init__(self) -> None:
        self.answers: dict[str, Counter[int]] = {}
        self.faults: list[tuple[int, str, str]] = []


@pytest.fixture
def described_hub(serve_hub, wheel):
    """A served hub with one environment, one evaluation and one secret, for its administrator `alice`."""
    hub = serve_hub(founded=True, rate_limit_per_minute=10**7, login_limit_per_minute=10**6)
    with httpx.Client(base_url=hub.url, timeout=60) as client:

        def data_of(path, sent):
            return client.post(path, json=sent).raise_for_status().json().get("data")

        headers = {"Authorization": f"Bearer {hub.token}"}
        client.headers.update(headers)
        made = wheel()
        file = (made.filename, made.bytes())
        form = {"name": made.name, "version": made.version}
        client.post("/legacy/", data=form, files={"content": file}).raise_for_status()
        environment = data_of("/api/v1/environmentshub/resolve", {"name": "demo-env"})
        evaluation = client.post(
            "/api/v1/evaluations/",
            json={
                "name": "first",
                "environments": [{"id": environment["id"]}],
                "model_name": "m",
                "dataset": "d",
                "framework": "verifiers",
            },
        ).raise_for_status()
        secret = data_of("/api/v1/secrets/", {"name": "KEY", "value": "one"})
    there = {
        "owner": "alice",
        "user": "alice",
        "name": "demo-env",
        "project": "demo-env",
        "reference": "latest",
        "environment_id": environment["id"],
        "evaluation_id": evaluation.json()["evaluation_id"],
        "secret_id": secret["id"],
        "sha256": hashlib.sha256(file[1]).hexdigest(),
        "filename": made.filename,
    }
    schema = schemathesis.openapi.from_url(f"{hub.url}/api/v1/openapi.json")
    operations = [operation.ok() for operation in schema.get_all_operations()]
    return DescribedHub(hub.url, headers, operations, there)


def ask_everything(hub, examples, modes):
    """Send the examples to every operation; what was answered is in `hub.answers`, with 5xx in `hub.faults`."""
    with requests.Session() as session:
        session.headers.update(hub.headers)
        for operation in hub.operations:
            if not NOT_CALLED.match(operation.path):
                for mode in modes:
                    ask(hub, session, operation, mode, examples)
        assert session.get(f"{hub.url}/ready", timeout=30).status_code == 200
    called = [o for o in hub.operations if not NOT_CALLED.match(o.path)]
    assert len(called) > 80, "the document is the whole hub's"
    assert set(hub.answers) == {operation.label for operation in called}
    # Deep enough to matter: without things that exist nearly all would be 404.
    done = [label for label, answers in hub.answers.items() if min(answers) < 300]
    assert len(done) > 30, sorted(set(hub.answers) - set(done))


def ask(hub, session, operation, mode, examples):
    if mode is GenerationMode.NEGATIVE and not [*operation.query, *operation.body]:
        return  # every text is allowed in a path: the search for a wrong one takes seconds
    answers = hub.answers.setdefault(operation.label, Counter())

    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        # Every second example is about things that exist; deleting them would end that.
        if operation.method != "delete" and answers.total() % 2 == 0:
            known = {name: hub.there[name] for name in case.path_parameters if name in hub.there}
            case.path_parameters.update(known)
        response = case.call(base_url=hub.url, session=session, timeout=30)
        answers[response.status_code] += 1
        if response.status_code >= 500:  # also 503, which says what is away: nothing is away here
            hub.faults.append((response.status_code, case.as_curl_command(), response.text[:300]))

    try:
        send()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, "an operation without parameters has no wrong ones"


@pytest.mark.timeout(300)
def test_what_the_document_allows_makes_no_fault(described_hub):
    ask_everything(described_hub, 2, [GenerationMode.POSITIVE])
    assert described_hub.faults == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_the_document_forbids_makes_no_fault_either(described_hub):
    ask_everything(described_hub, 10, [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
    assert described_hub.faults == []
