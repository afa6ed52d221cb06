"""Tokens → money. Prices change weekly, so the library contains none: the user supplies a table with its date.

as_of = "2026-11-01"                # TOML; JSON of the same shape is read too

["my-org/my-model"]
input_usd_per_mtok = 0.10           # US dollars per million tokens
output_usd_per_mtok = 0.40

["gpt-*"]                           # patterns are tried in order, after exact names
input_usd_per_mtok = 2.5
output_usd_per_mtok = 10.0
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypedDict

from verifiers.errors import ConfigError


class EvalCost(TypedDict):
    """Cost in US dollars."""

    input_usd: float
    output_usd: float
    total_usd: float


@dataclass(frozen=True)
class ModelPrice:
    """Price of a model, in US dollars per million tokens."""

    input_usd_per_mtok: float
    output_usd_per_mtok: float

    def __post_init__(self) -> None:
        for name in ("input_usd_per_mtok", "output_usd_per_mtok"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 <= value < math.inf
            ):
                raise ConfigError(f"{name} must be a number of dollars, 0 or more; got {value!r}.")

    def __getitem__(self, key: str) -> float:
        """Return a price by name, as v0's `ModelPricing` does."""
        if key not in ("input_usd_per_mtok", "output_usd_per_mtok"):
            raise KeyError(key)
        return getattr(self, key)

    def cost(self, input_tokens: float, output_tokens: float) -> EvalCost:
        """Return the cost of these numbers of tokens."""
        return _cost(self.input_usd_per_mtok, self.output_usd_per_mtok, input_tokens, output_tokens)


@dataclass(frozen=True)
class PriceTable:
    """Prices by model name or pattern."""

    prices: Mapping[str, ModelPrice] = field(default_factory=dict)
    as_of: str | None = None
    """Date of the prices, as written in the file."""

    @classmethod
    def load(cls, path: str | Path) -> PriceTable:
        """Return the table of a `.toml` or `.json` file. Raises ConfigError with the file and the invalid entry."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
            table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except OSError as error:
            raise ConfigError(
                f"The price table {path} cannot be read: {error.strerror}."
            ) from error
        except ValueError as error:
            raise ConfigError(
                f"The price table {path} is not valid {path.suffix[1:].upper()}: {error}."
            ) from error
        if not isinstance(table, dict):
            raise ConfigError(
                f"The price table {path} must map model names to prices; it is a {type(table).__name__}."
            )
        as_of = table.pop("as_of", None)
        prices = {model: _price(entry, f"{path}, {model!r}") for model, entry in table.items()}
        return cls(prices, None if as_of is None else str(as_of))

    def price_of(self, model: str) -> ModelPrice | None:
        """Return the price of a model: its exact name, else the first pattern that matches, else None."""
        if model in self.prices:
            return self.prices[model]
        for pattern, price in self.prices.items():
            if fnmatchcase(model, pattern):
                return price
        return None

    def required_price_of(self, model: str) -> ModelPrice:
        """`price_of`, but raises ConfigError without a price, because a cost limit would have no effect."""
        price = self.price_of(model)
        if price is None:
            near = get_close_matches(model, self.prices, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"The price table has no price for {model!r}.{hint}")
        return price


def _price(entry: Any, where: str) -> ModelPrice:
    known = {"input_usd_per_mtok", "output_usd_per_mtok"}
    if not isinstance(entry, dict) or set(entry) != known:
        found = sorted(entry) if isinstance(entry, dict) else repr(entry)
        raise ConfigError(f"{where}: expected the keys {sorted(known)}, found {found}.")
    try:
        return ModelPrice(**entry)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _cost(
    input_price: float, output_price: float, input_tokens: float, output_tokens: float
) -> EvalCost:
    input_usd = input_tokens * input_price / 1e6
    output_usd = output_tokens * output_price / 1e6
    return {"input_usd": input_usd, "output_usd": output_usd, "total_usd": input_usd + output_usd}


# --- functions of v0


def compute_eval_cost(usage: Mapping[str, Any] | None, pricing: Any) -> EvalCost | None:
    """Return the cost of `input_tokens` and `output_tokens`; None if the usage or the price is unknown."""
    if usage is None or pricing is None:
        return None
    prices = pricing["input_usd_per_mtok"], pricing["output_usd_per_mtok"]
    return _cost(*prices, usage.get("input_tokens") or 0, usage.get("output_tokens") or 0)


def compute_cost_usd(usage: Mapping[str, Any] | None, pricing: Any) -> float | None:
    """Return the total of `compute_eval_cost`."""
    cost = compute_eval_cost(usage, pricing)
    return None if cost is None else cost["total_usd"]


def format_cost_usd(cost_usd: float) -> str:
    """Return dollars as text: with cents from one dollar on, with four decimals below."""
    return f"${cost_usd:.2f}" if cost_usd >= 1 else f"${cost_usd:.4f}"
