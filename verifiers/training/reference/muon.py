"""Muon: momentum whose update is made orthogonal, for the weight matrices inside a network. Needs torch.

Source: Keller Jordan and others, "Muon: An optimizer for hidden layers in neural networks", 2024,
https://kellerjordan.github.io/posts/muon/; the scale of an update is that of the post,
`sqrt(max(1, rows / columns))`.
"""

# pyright: reportMissingImports=false
# Types are checked where torch is installed; elsewhere the rest must still pass.

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from verifiers.errors import ConfigError

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic a·x + b·x³ + c·x⁵: chosen in the source so that singular values from about 1e-3 on quickly come
near 1, not for exactness: they end between about 0.7 and 1.2."""
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """For matrices only; embeddings, heads and vectors belong to AdamW."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.02,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        """`lr` is the size of an update in units of its spectral norm; `weight_decay` is decoupled, as in AdamW.

        Raises ConfigError for a parameter that is not a matrix.
        """
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.dim() != 2:
                    raise ConfigError(
                        f"Muon takes matrices; got a parameter of shape {tuple(weight.shape)}."
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(weight)
                average = state["momentum"]
                average.lerp_(weight.grad, 1 - momentum)
                # Nesterov: the gradient is looked at once more, as if the average had taken it already.
                update = orthogonal(weight.grad.lerp(average, momentum))
                rows, columns = weight.shape
                weight.mul_(1 - rate * group["weight_decay"])
                weight.add_(update.to(weight.dtype), alpha=-rate * max(1.0, rows / columns) ** 0.5)
        return loss


def orthogonal(matrix: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """About U·Vᵀ of the singular value decomposition U·S·Vᵀ, by Newton–Schulz iterations in bfloat16."""
    a, b, c = COEFFICIENTS
    x = matrix.bfloat16()
    is_tall = x.shape[0] > x.shape[1]
    if is_tall:  # the products below are then of the smaller size
        x = x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x
