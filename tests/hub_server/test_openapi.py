"""Everything the OpenAPI document allows, and much that it does not: answered, and never with a fault of ours."""

import re

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

NOT_CALLED = re.compile(r"^/metrics$")
"""Plain text without parameters; asked for in `test_operations`."""


@pytest.fixture
def described_hub(serve_hub, wheel):
    """A served hub with one environment, its administrator's token, and the operations it describes."""
    hub = serve_hub(rate_limit_per_minute=10**7, login_limit_per_minute=10**6)
    body = {"token": hub.setup_token, "username": "alice", "password": "correct horse"}
    with httpx.Client(base_url=hub.url) as client:
        token = client.post("/api/v1/setup", json=body).raise_for_status().json()["data"]["token"]
        headers = {"Authorization": f"Bearer {token}"}
        made = wheel()
        client.post(
            "/legacy/", headers=headers, files={"content": (made.filename, made.bytes())}
        ).raise_for_status()
    schema = schemathesis.openapi.from_url(f"{hub.url}/api/v1/openapi.json")
    return hub, headers, [operation.ok() for operation in schema.get_all_operations()]


def faults_of(described_hub, examples, modes):
    """What was answered with 5xx (a 503 that says what is away is one here: nothing is away)."""
    hub, headers, operations = described_hub
    asked, faults = set(), []
    with requests.Session() as session:
        session.headers.update(headers)
        for operation in operations:
            if not NOT_CALLED.match(operation.path):
                for mode in modes:
                    ask(hub, session, operation, mode, examples, asked, faults)
        assert session.get(f"{hub.url}/ready", timeout=30).status_code == 200
    assert len(asked) > 80, "the document is the whole hub's"
    return faults


def ask(hub, session, operation, mode, examples, asked, faults):
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
        response = case.call(base_url=hub.url, session=session, timeout=30)
        asked.add(operation.label)
        if response.status_code >= 500:
            faults.append((response.status_code, case.as_curl_command(), response.text[:300]))

    try:
        send()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, "an operation without parameters has no wrong ones"


@pytest.mark.timeout(300)
def test_what_the_document_allows_makes_no_fault(described_hub):
    assert faults_of(described_hub, 2, [GenerationMode.POSITIVE]) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_the_document_forbids_makes_no_fault_either(described_hub):
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    assert faults_of(described_hub, 10, modes) == []
