"""From what was said to what runs: the values of the published 0.1.14, except that no host is named by default."""

from pathlib import Path

import pytest

from verifiers.clients.connect import PROVIDERS
from verifiers.errors import ConfigError
from verifiers.evaluate.registry import load_endpoints
from verifiers.evaluate.settings import is_local, resolve, settings_of

REGISTRY = """
[[endpoint]]
endpoint_id = "a"
model = "ma"
url = "http://10.0.0.1:1/v1"
key = "KA"
[[endpoint]]
endpoint_id = "a"
model = "ma"
url = "http://10.0.0.1:2/v1"
key = "KA"
[[endpoint]]
endpoint_id = "b"
model = "mb"
api_base_url = "https://api.example/v1"
api_key_var = "KB"
type = "anthropic_messages"
headers = { "X-A" = "1", "X-B" = "1" }
"""


@pytest.fixture(autouse=True)
def _registry():
    Path("configs").mkdir()
    Path("configs/endpoints.toml").write_text(REGISTRY)


def resolved(environ: dict | None = None, **said):
    return resolve(settings_of({"env_id": "e", **said}, "test"), environ=environ or {})


def test_the_defaults_are_those_of_0_1_14():
    config = resolved(api_base_url="http://127.0.0.1/v1")

    assert (
        config.num_examples,
        config.rollouts_per_example,
        config.max_concurrent,
        config.max_retries,
    ) == (5, 3, 32, 0)
    assert (config.env_dir_path, config.num_workers, config.sampling_args) == (
        "./environments",
        "auto",
        {},
    )
    assert config.model == "openai/gpt-4.1-mini"
    assert config.client_config.extra_headers_from_state == {"X-Session-ID": "example_id"}


def test_a_name_in_the_registry_gives_all_its_replicas():
    config = resolved(model="a")

    assert (config.model, config.endpoint_id, config.client_config.api_key_var) == ("ma", "a", "KA")
    assert [one.api_base_url for one in config.client_config.endpoint_configs] == [
        "http://10.0.0.1:1/v1",
        "http://10.0.0.1:2/v1",
    ]


def test_what_is_said_wins_over_provider_over_registry():
    said = resolved(
        model="b", provider="openai", api_base_url="http://z/v1", api_key_var="Z"
    ).client_config
    provider = resolved(model="b", provider="openai").client_config
    key = resolved(model="a", api_key_var="Z").client_config

    assert (said.api_base_url, said.api_key_var, said.client_type) == (
        "http://z/v1",
        "Z",
        "anthropic_messages",
    )
    assert (provider.api_base_url, provider.api_key_var) == (
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
    )
    assert {one.api_key_var for one in key.endpoint_configs} == {"Z"}


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_sets_address_key_and_kind(name):
    config = resolved(model="zz", provider=name).client_config
    assert (config.api_base_url, config.api_key_var, config.client_type) == tuple(PROVIDERS[name])


def test_headers_add_up_registry_then_table_then_lines():
    config = resolved(
        model="b", headers={"X-B": "2", "X-C": "2"}, header=["X-C: 3:4"]
    ).client_config
    assert config.extra_headers == {"X-A": "1", "X-B": "2", "X-C": "3:4"}


def test_sampling_args_win_over_their_own_options():
    assert resolved(
        model="a", max_tokens=100, temperature=0.5, sampling_args={"max_tokens": 5}
    ).sampling_args == {
        "max_tokens": 5,
        "temperature": 0.5,
    }


def test_a_timeout_replaces_the_one_among_the_extra_arguments():
    config = resolved(
        model="a", timeout=30, extra_env_kwargs={"timeout_seconds": 20, "max_turns": 3}
    )
    assert (config.rollout_timeout_s, config.extra_env_kwargs) == (30, {"max_turns": 3})


def test_requests_follow_the_rate_limit_of_a_remote_api_unless_c_is_given():
    def choice(**said):
        config = resolved(model="m", **said)
        return config.client_config.adaptive_concurrency, config.max_concurrent

    assert choice(provider="openai") == (True, 256)
    assert choice(provider="openai", max_concurrent=8) == (False, 8)
    assert choice(provider="openai", max_concurrent_generation=9) == (False, 9)
    assert choice(api_base_url="http://127.0.0.1:8000/v1") == (False, 32)


def test_no_host_is_named_that_the_user_did_not_name():
    with pytest.raises(ConfigError, match="No endpoint is named"):
        resolved(model="zz")
    config = resolved({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://own/v1"}, model="zz")
    assert config.client_config.api_base_url == "http://own/v1"


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost:1/v1", True),
        ("http://127.0.0.1/v1", True),
        ("http://[::1]/v1", True),
        ("http://10.0.0.1", True),
        ("https://api.openai.com/v1", False),
        ("http://example.org", False),
    ],
)
def test_local_addresses_are_told_from_remote_ones(url, local):
    assert is_local(url) is local


def test_the_older_registry_is_read_as_data_and_never_run():
    one, other = '{"model": "m", "url": "u", "key": "K"}', '{"model": "m", "url": "v", "key": "K"}'
    Path("endpoints.py").write_text(f'X = 1\nENDPOINTS = {{"a": {one}, "b": [{other}]}}')
    Path("code.py").write_text('import pathlib\npathlib.Path("ran").touch()\nENDPOINTS = dict(a=1)')

    assert load_endpoints("endpoints.py") == {
        "a": [{"model": "m", "url": "u", "key": "K"}],
        "b": [{"model": "m", "url": "v", "key": "K"}],
    }
    with pytest.raises(ConfigError, match="without being executed"):
        load_endpoints("code.py")
    assert not Path("ran").exists()


def test_a_folder_or_a_missing_toml_file_falls_back_to_the_older_registry():
    Path("older").mkdir()
    Path("older/endpoints.py").write_text(
        'ENDPOINTS = {"a": {"model": "m", "url": "u", "key": "K"}}'
    )

    assert load_endpoints("older").keys() == load_endpoints("older/endpoints.toml").keys() == {"a"}
    assert load_endpoints("nowhere.toml") == {}


def test_a_field_of_a_registry_may_be_given_under_both_of_its_names_if_they_agree():
    text = '[[endpoint]]\nendpoint_id="a"\nmodel="m"\nurl="u"\napi_base_url="u"\nkey="K"\napi_key_var="K"\n'
    Path("both.toml").write_text(text)
    [endpoint] = load_endpoints("both.toml")["a"]
    assert (endpoint["url"], endpoint["key"]) == ("u", "K")
    Path("both.toml").write_text(text.replace('api_base_url="u"', 'api_base_url="other"'))
    with pytest.raises(ConfigError, match="with different values"):
        load_endpoints("both.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[endpoint]]\nmodel="m"\nurl="u"\nkey="K"', "endpoint_id must be a name"),
        ('[[endpoint]]\nendpoint_id="a"\nmodel="m"\nurl="u"', "needs 'key'"),
        ('[[endpoint]]\nendpoint_id="a"\nmodle="m"\nurl="u"\nkey="K"', "Did you mean 'model'?"),
        (
            '[[endpoint]]\nendpoint_id="a"\nmodel="m"\nurl="u"\nkey="K"\nheaders={A="1"}\nextra_headers={B="1"}',
            "both headers and extra_headers",
        ),
        (
            '[[endpoint]]\nendpoint_id="a"\nmodel="m"\nurl="u"\nkey="K"\nheaders={A=1}',
            "table of strings",
        ),
        (
            '[[endpoint]]\nendpoint_id="a"\nmodel="m"\nurl="u"\nkey="K"\ntype="x"',
            "not one of openai_completions",
        ),
        ('[endpoint]\nendpoint_id="a"', "double brackets"),
        ('[a]\nmodel="m"', "not part of a registry"),
        ("[[", "not valid TOML"),
    ],
)
def test_a_registry_with_a_mistake_is_refused(text, said):
    Path("bad.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_endpoints("bad.toml")
    assert said in str(caught.value)


def test_replicas_must_serve_one_model():
    Path("configs/endpoints.toml").write_text(REGISTRY.replace('model = "ma"', 'model = "mx"', 1))
    with pytest.raises(ConfigError, match="different models"):
        resolved(model="a")
