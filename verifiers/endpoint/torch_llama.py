"""The same decoder in torch, for training. Needs the extra `train`; no other module of this package imports it.

Parameter names are those of `LlamaForCausalLM`: a state dict of this module is a checkpoint that the numpy model
(`model.py`) and transformers both read.
"""

# pyright: reportMissingImports=false
# Types are checked where torch is installed; the other checks must pass without torch.

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from verifiers.endpoint.weights import ModelConfig


class Attention(nn.Module):
    """Causal self-attention with rotary positions and shared key/value heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, head = config.hidden_size, config.head_dim
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            head,
        )
        self.q_proj = nn.Linear(width, self.heads * head, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * head, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * head, bias=False)
        self.o_proj = nn.Linear(self.heads * head, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map `x [B, T, hidden]`, `cos` and `sin [T, head_dim]` to `[B, T, hidden]`."""
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        repeats = self.heads // self.kv_heads
        if repeats > 1:
            k = k.repeat_interleave(repeats, dim=1)
            v = v.repeat_interleave(repeats, dim=1)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    """The SwiGLU feed-forward part."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[..., hidden]` to the same shape."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class RmsNorm(nn.Module):
    """Root-mean-square normalisation."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Map `[..., width]` to the same shape."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map `[B, T, hidden]` to the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Body(nn.Module):
    # Exists so that parameter names begin with "model.", as in transformers.
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)


class TorchLlama(nn.Module):
    """The whole decoder. The output head shares the embedding if the configuration says so."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = _Body(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float64)
        angles = torch.outer(
            torch.arange(config.max_position_embeddings, dtype=torch.float64),
            config.rope_theta ** (-half / config.head_dim),
        )
        angles = torch.cat([angles, angles], dim=-1)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                continue
            std = 0.02 if "embed_tokens" in name else weight.shape[1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                std *= (2 * self.config.num_hidden_layers) ** -0.5
            nn.init.normal_(weight, std=std)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Map `token_ids int64 [B, T]` (padded on the right) to logits `float32 [B, T, vocab]`."""
        length = token_ids.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.model.embed_tokens(token_ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        x = self.model.norm(x)
        if self.config.tie_word_embeddings:
            return x @ self.model.embed_tokens.weight.T
        return self.lm_head(x)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embedding in the half-split layout of Llama checkpoints."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
