import pytest

from verifiers.errors import ConfigError
from verifiers.runs.prices import (
    ModelPrice,
    PriceTable,
    compute_cost_usd,
    compute_eval_cost,
    format_cost_usd,
)

TOML = """
as_of = 2026-11-01
["org/exact"]
input_usd_per_mtok = 1
output_usd_per_mtok = 2.0
["org/*"]
input_usd_per_mtok = 3.0
output_usd_per_mtok = 4.0
"""


def test_a_table_gives_exact_names_first_then_patterns(tmp_path):
    (tmp_path / "prices.toml").write_text(TOML)
    table = PriceTable.load(tmp_path / "prices.toml")
    assert table.as_of == "2026-11-01"
    assert table.price_of("org/exact") == ModelPrice(1, 2.0)
    assert table.price_of("org/other") == ModelPrice(3.0, 4.0)
    assert table.price_of("elsewhere") is None
    with pytest.raises(ConfigError, match=r"no price for 'or/exact'\. Did you mean 'org/exact'\?"):
        table.required_price_of("or/exact")


def test_json_is_read_too(tmp_path):
    (tmp_path / "prices.json").write_text(
        '{"m": {"input_usd_per_mtok": 0, "output_usd_per_mtok": 0.5}}'
    )
    assert PriceTable.load(tmp_path / "prices.json").required_price_of("m").cost(1e6, 2e6) == {
        "input_usd": 0.0,
        "output_usd": 1.0,
        "total_usd": 1.0,
    }


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.toml", "[m", "is not valid TOML"),
        ("p.json", "[]", "must map model names to prices; it is a list"),
        ("p.json", '{"m": {"input_usd_per_mtok": 1}}', "'m': expected the keys"),
        ("p.json", '{"m": 3}', "found 3"),
        (
            "p.json",
            '{"m": {"input_usd_per_mtok": -1, "output_usd_per_mtok": 1}}',
            "0 or more; got -1",
        ),
        (
            "p.json",
            '{"m": {"input_usd_per_mtok": "1", "output_usd_per_mtok": 1}}',
            "must be a number",
        ),
    ],
)
def test_a_wrong_table_is_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        PriceTable.load(tmp_path / name)


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no.toml cannot be read: No such file"):
        PriceTable.load(tmp_path / "no.toml")


def test_v0_functions_take_prices_and_plain_dicts():
    usage = {"input_tokens": 1000.0, "output_tokens": 500.0}
    prices = {"input_usd_per_mtok": 2.0, "output_usd_per_mtok": 2.0}
    assert compute_cost_usd(usage, prices) == compute_cost_usd(usage, ModelPrice(2.0, 2.0)) == 0.003
    assert compute_eval_cost(None, prices) is None
    assert compute_cost_usd(usage, None) is None


def test_dollars_for_people():
    assert [format_cost_usd(v) for v in (0, 0.00001, 0.0123, 1.5, 1234.567)] == [
        "$0.0000",
        "$0.0000",
        "$0.0123",
        "$1.50",
        "$1234.57",
    ]
