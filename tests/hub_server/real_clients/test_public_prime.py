"""Three generations of the public `prime` command and its evaluations library, unmodified, against a served hub."""

import json
import os
import sys

import httpx
import pytest

PRIME_VERSIONS = {
    # Its own requirement has no upper bound, and newer SDKs have lost names it imports.
    "0.5.3": ["prime==0.5.3", "prime-sandboxes==0.2.6", "prime-evals==0.1.6"],
    "0.7.7": ["prime==0.7.7"],
    "0.18.0": ["prime==0.18.0"],
}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", PRIME_VERSIONS)
def test_the_public_prime_command_works_unmodified(
    stocked_hub, installed, uv, call, tmp_path, version
):
    prime = installed(*PRIME_VERSIONS[version]) / "prime"
    name = f"env-{version.replace('.', '-')}"
    module = name.replace("-", "_")
    project = tmp_path / "environments" / module
    project.mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "0.1.0"\ndescription = "made by {version}"\n'
        'readme = "README.md"\n[build-system]\nrequires = ["hatchling"]\n'
        'build-backend = "hatchling.build"\n'
        f'[tool.hatch.build]\ninclude = ["{module}.py"]\n'
    )
    (project / "README.md").write_text("# Hello\n")
    (project / f"{module}.py").write_text("def load_environment():\n    return 1\n")
    target = tmp_path / "venv"
    call(uv, "venv", "-q", "-p", sys.executable, target)
    settings = {
        "PRIME_API_BASE_URL": stocked_hub.url,
        "PRIME_API_KEY": stocked_hub.token,
        "PRIME_FRONTEND_URL": stocked_hub.url,
        "PRIME_TRACES_URL": stocked_hub.url,
        "PRIME_DISABLE_VERSION_CHECK": "1",
        "VIRTUAL_ENV": str(target),
        # The build of the wheel needs hatchling from the machine's own index.
        **{k: v for k, v in os.environ.items() if k.startswith(("UV_", "PIP_"))},
    }

    def run(*arguments, check=True):
        return call(prime, *arguments, check=check, **settings)

    assert "alice" in run("whoami").stdout
    pushed = run("env", "push", "--path", project)
    assert "alice" in pushed.stdout
    again = run("env", "push", "--path", project, check=False)
    assert again.returncode == 1
    assert "already exists" in again.stdout.lower() or "auto-bump" in again.stdout
    run("env", "push", "--path", project, "--auto-bump")
    assert f"alice/{name}" in run("env", "list").stdout
    assert f"made by {version}" in run("env", "info", f"alice/{name}").stdout
    versions = run("env", "version", "list", f"alice/{name}").stdout
    assert "0.1.0" in versions
    assert "0.1.1" in versions
    installed_output = run("env", "install", f"alice/{name}@0.1.0")
    # Newer ones install into the active environment, older ones into their own.
    sites = [
        folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / f"{module}.py"
        for folder in (target, prime.parent.parent)
    ]
    assert any(site.exists() for site in sites), installed_output.stdout
    run("env", "pull", f"alice/{name}", "--target", tmp_path / "pulled")
    assert (tmp_path / "pulled" / f"{module}.py").exists()
    if version != "0.5.3":
        assert f"{module}.py" in run("env", "inspect", f"alice/{name}").stdout
        run("env", "status", f"alice/{name}")
        run("env", "secret", "create", f"alice/{name}", "--name", "API_KEY", "--value", "s3cret")
        assert "API_KEY" in run("env", "secret", "list", f"alice/{name}").stdout
    results = tmp_path / "outputs" / "evals" / "run" / "1"
    results.mkdir(parents=True)
    (results / "metadata.json").write_text(
        json.dumps(
            {
                "env_id": f"alice/{name}",
                "env": f"alice/{name}",
                "model": "m",
                "num_examples": 2,
                "rollouts_per_example": 1,
                "avg_reward": 0.5,
            }
        )
    )
    rows = [{"id": i, "example_id": i, "reward": i, "prompt": [], "completion": []} for i in (0, 1)]
    (results / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("eval", "push", results, "--env", f"alice/{name}")
    headers = {"Authorization": f"Bearer {stocked_hub.token}"}
    page = httpx.get(
        f"{stocked_hub.url}/api/v1/evaluations/",
        headers=headers,
        params={"environment_name": f"alice/{name}"},
    ).json()
    assert [(e["status"], e["total_samples"]) for e in page["evaluations"]] == [("COMPLETED", 2)]
    evaluation_id = page["evaluations"][0]["id"]
    assert evaluation_id[:8] in run("eval", "list").stdout
    run("eval", "get", evaluation_id)
    run("eval", "samples", evaluation_id)
    assert run("env", "install", "alice/missing-env", check=False).returncode == 1
    run("env", "version", "delete", f"alice/{name}", _content_hash(stocked_hub, name), "--force")
    remaining = httpx.get(f"{stocked_hub.url}/api/v1/environmentshub/alice/{name}/versions").json()
    assert [row["version"] for row in remaining["data"]["versions"]] == ["0.1.0"]


def _content_hash(hub, name):
    rows = httpx.get(f"{hub.url}/api/v1/environmentshub/alice/{name}/versions").json()
    return rows["data"]["versions"][0]["content_hash"]


EVALS_SCRIPT = """
import sys
from prime_evals import APIClient, EvalsClient
from prime_evals.core import APIError

evals = EvalsClient(APIClient())
environment, count = sys.argv[1], int(sys.argv[2])
made = evals.create_evaluation(
    "by the library alone",
    environments=[{"slug": environment}],
    model_name="m",
    dataset="d",
    tags=["nightly"],
    metadata={"num_examples": count},
)
key = made["evaluation_id"]
rows = [{"example_id": i, "rollout_number": 0, "reward": 1.0, "prompt": "p" * 40_000} for i in range(count)]
evals.push_samples(key, rows)
evals.push_samples(key, rows)  # as after a connection that broke before the answer
evals.update_evaluation(key, description="changed")
evals.finalize_evaluation(key, metrics={"reward": 1.0})
evals.finalize_evaluation(key, metrics={"reward": 1.0})
read = evals.get_evaluation(key)
assert read["status"] == "COMPLETED", read
assert (read["total_samples"], read["tags"], read["description"]) == (count, ["nightly"], "changed")
assert read["metrics"] == {"reward": 1.0}, read
found, page = [], 1
while (answer := evals.get_samples(key, page=page, limit=300))["samples"]:
    found += answer["samples"]
    page += 1
assert sorted(row["example_id"] for row in found) == list(range(count))
[listed] = evals.list_evaluations(env_name=environment)["evaluations"]
assert listed["environment_names"] == [environment]
try:
    evals.get_evaluation("missing")
except APIError as error:
    assert "not found" in str(error), error
else:
    raise AssertionError("a missing evaluation was found")
"""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["0.1.6", "0.2.4"])
def test_the_evaluations_library_works_without_the_command(
    stocked_hub, installed, call, tmp_path, wheel, version, publish
):
    """Newer ones send 41 MB as parallel batches, 0.1.6 everything in one request."""
    name = f"evals-{version.replace('.', '-')}"
    publish(stocked_hub, wheel(name=name, files={f"{name.replace('-', '_')}.py": b""}))
    python = installed(f"prime-evals=={version}") / "python"
    (tmp_path / "evals.py").write_text(EVALS_SCRIPT)
    count = 1000 if version != "0.1.6" else 400
    settings = {"PRIME_API_BASE_URL": stocked_hub.url, "PRIME_API_KEY": stocked_hub.token}
    call(python, "evals.py", f"alice/{name}", count, **settings)
