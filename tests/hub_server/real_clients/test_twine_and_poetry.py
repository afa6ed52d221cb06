"""twine and poetry, unmodified, against a served hub on loopback."""

import pytest


@pytest.mark.long
@pytest.mark.timeout(300)
def test_twine_uploads_and_shows_why_the_hub_refuses(stocked_hub, installed, call, tmp_path, wheel):
    twine = installed("twine") / "twine"
    made = wheel(name="twine-env", files={"twine_env.py": b""})
    path = tmp_path / made.filename
    path.write_bytes(made.bytes())
    command = [
        twine,
        "upload",
        "--non-interactive",
        "--disable-progress-bar",
        "--repository-url",
        f"{stocked_hub.url}/alice/legacy/",
        "-u",
        "__token__",
        "-p",
        stocked_hub.token,
    ]
    call(*command, path)
    path.write_bytes(wheel(name="twine-env", files={"twine_env.py": b"X = 2\n"}).bytes())
    refused = call(*command, path, check=False)
    assert refused.returncode != 0
    assert "409" in refused.stdout + refused.stderr


@pytest.mark.long
@pytest.mark.timeout(300)
def test_poetry_adds_a_dependency_from_the_hub(
    stocked_hub, installed, call, tmp_path, wheel, publish
):
    poetry = installed("poetry") / "poetry"
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "0"\nrequires-python = ">=3.11,<4"\n'
        "[tool.poetry]\npackage-mode = false\n"
        f'[[tool.poetry.source]]\nname = "hub"\nurl = "{stocked_hub.url}/alice/other-env/simple/"\n'
        'priority = "explicit"\n'
    )
    publish(stocked_hub, wheel(name="other-env", metadata="", files={"other_env.py": b""}))
    call(poetry, "add", "--lock", "--no-interaction", "--source", "hub", "other-env", cwd=project)
    lock = (project / "poetry.lock").read_text()
    assert 'name = "other-env"' in lock
    assert "sha256:" in lock


@pytest.mark.long
@pytest.mark.timeout(300)
def test_poetry_publishes_and_installs_a_private_environment(
    stocked_hub, installed, call, tmp_path
):
    poetry = installed("poetry") / "poetry"
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "poetry-env"\nversion = "0.1.0"\nrequires-python = ">=3.11"\n'
        '[tool.poetry]\npackages = [{ include = "poetry_env.py" }]\n'
        '[build-system]\nrequires = ["poetry-core"]\nbuild-backend = "poetry.core.masonry.api"\n'
    )
    (project / "poetry_env.py").write_text("X = 1\n")
    (project / "poetry.toml").write_text(
        f'[repositories.hub]\nurl = "{stocked_hub.url}/alice/legacy/?visibility=private"\n'
    )
    login = {"POETRY_HTTP_BASIC_HUB_USERNAME": "__token__"}
    login["POETRY_HTTP_BASIC_HUB_PASSWORD"] = stocked_hub.token
    call(poetry, "build", cwd=project, **login)
    call(poetry, "publish", "--no-interaction", "-r", "hub", cwd=project, **login)
    call(poetry, "publish", "--no-interaction", "-r", "hub", cwd=project, **login)  # the same again
    user = tmp_path / "user"
    user.mkdir()
    (user / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "0"\nrequires-python = ">=3.11,<4"\n'
        "[tool.poetry]\npackage-mode = false\n"
        f'[[tool.poetry.source]]\nname = "hub"\nurl = "{stocked_hub.url}/alice/poetry-env/simple/"\n'
        'priority = "explicit"\n'
    )
    login["POETRY_VIRTUALENVS_IN_PROJECT"] = "true"
    call(poetry, "add", "--no-interaction", "--source", "hub", "poetry-env", cwd=user, **login)
    assert list((user / ".venv").rglob("poetry_env.py"))
    assert stocked_hub.token not in (user / "poetry.lock").read_text()
