"""The prompt search with the real gepa package, and the file of `vf-gepa`."""

import argparse
from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from verifiers.prompt_search import (
    SearchOptions,
    load_gepa_toml_config,
    resolve_gepa_config_args,
    search_prompt,
)
from verifiers.testing import ScriptedClient


def is_polite(completion: Any) -> float:
    return 1.0 if "please" in completion[-1]["content"] else 0.0


def environment(**options: Any) -> vf.Environment:
    rows = [{"question": f"question {number}", "answer": "x"} for number in range(6)]
    rubric = vf.Rubric(funcs=[is_polite])
    return vf.SingleTurnEnv(**{"dataset": rows, "rubric": rubric, **options})


def answer(prompt: Any) -> str:
    """A model that is polite when its system prompt says so, and writes that prompt when asked to reflect."""
    if prompt[0]["role"] == "system":
        return "yes please" if "Be polite." in prompt[0]["content"] else "yes"
    return "Here is a better one:\n```\nBe polite.\n```"


async def test_a_better_prompt_is_found_with_the_budget_that_was_given() -> None:
    pytest.importorskip("gepa", reason="the extra gepa is not installed")
    client = ScriptedClient(answer)
    logged: list[str] = []

    found = await search_prompt(
        environment(system_prompt="Be quick."),
        client,
        "m",
        options=SearchOptions(max_calls=30, minibatch_size=2, num_train=4, num_val=3),
        on_log=logged.append,
    )

    assert (found.first_prompt, found.first_score) == ("Be quick.", 0.0)
    assert (found.best_prompt, found.best_score) == ("Be polite.", 1.0)
    assert ("Be polite.", 1.0) in found.candidates
    assert 3 <= found.calls <= 36  # gepa looks at the budget between its steps
    played = [request for request in client.requests if request.prompt[0]["role"] == "system"]
    assert len(played) == found.calls
    reflected = [request for request in client.requests if request.prompt[0]["role"] != "system"]
    shown = reflected[0].prompt[0]["content"]
    assert "Reward: 0" in shown
    assert "Expected answer: x" in shown
    assert "question" in shown
    assert logged


async def test_a_refused_key_ends_the_search() -> None:
    pytest.importorskip("gepa", reason="the extra gepa is not installed")
    client = ScriptedClient(then=vf.AuthenticationError("no such key"))
    with pytest.raises(vf.AuthenticationError, match="no such key"):
        await search_prompt(environment(), client, "m", options=SearchOptions(max_calls=5))


FILE = """
model = "m"
[[env]]
env_id = "a"
env_args = { x = 1 }
[[env]]
id = "b"
[gepa]
max_calls = 7
[sampling]
temperature = 0.5
"""


def test_a_file_gives_environments_and_settings(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(FILE)
    found = load_gepa_toml_config(path)
    assert found["envs"] == [
        {"env_id": "a", "env_args": {"x": 1}, "extra_env_kwargs": {}},
        {"env_id": "b", "env_args": {}, "extra_env_kwargs": {}},
    ]
    assert (found["env_id"], found["model"], found["max_calls"]) == ("a+b", "m", 7)
    assert "env_args" not in found  # every environment has its own, in `envs`
    assert found["sampling_args"] == {"temperature": 0.5}
    args = argparse.Namespace(env_id_or_config=str(path), model="other", seed=3, max_calls=500)
    resolved = resolve_gepa_config_args(args)
    assert (resolved.env_id, resolved.model, resolved.seed, resolved.max_calls) == (
        "a+b",
        "m",
        3,
        7,
    )
    assert args.model == "other"
    plain = argparse.Namespace(env_id_or_config="e", env_args=None, extra_env_kwargs={"k": 1})
    assert resolve_gepa_config_args(plain).envs[0]["extra_env_kwargs"] == {"k": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('model = "m"', r"must contain an \[env\] or \[\[env\]\] table"),
        (
            '[env]\nenv_id = "a"\n[gepa]\nseed = 1\n[execution]\nseed = 2',
            r"'seed' in both \[gepa\] and \[execution\]",
        ),
        ("[env]\nenv_args = {}", "env_id must be the id"),
        ('[env]\nenv_id = "a"\nenv_argz = {}', "Did you mean 'env_args'"),
        ('max_call = 3\n[env]\nenv_id = "a"', "Did you mean 'max_calls'"),
        ("x", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"c.toml.*{said}"):
        load_gepa_toml_config(path)


def test_the_table_execution_of_older_files_is_accepted_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[[env]]\nenv_id = "owner/a"\nenv_args = { x = 1 }\n[execution]\nseed = 2\n')
    found = load_gepa_toml_config(path)
    assert (found["env_id"], found["env_args"], found["seed"]) == ("owner/a", {"x": 1}, 2)
    [warning] = found["_warnings"]
    assert "[execution]" in warning
    resolved = resolve_gepa_config_args(argparse.Namespace(env_id_or_config=str(path), env_args={}))
    assert resolved.config_warnings == [warning]
    assert not hasattr(resolved, "_warnings")


def test_the_path_of_the_endpoints_is_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('endpoints_path = "e.toml"\n[env]\nenv_id = "a"\n')
    assert load_gepa_toml_config(path)["endpoints_path"] == str(tmp_path / "e.toml")
