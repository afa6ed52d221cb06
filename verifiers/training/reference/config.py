"""`TrainConfig`: all settings of a run of the reference trainer, read from a TOML file."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from verifiers.configs import Config
from verifiers.endpoint.model import SHIPPED_WEIGHTS
from verifiers.endpoint.tokenizer import VOCAB_SIZE
from verifiers.endpoint.weights import ModelConfig
from verifiers.errors import ConfigError
from verifiers.evaluate.settings import readable_problems
from verifiers.training.losses import LOSSES
from verifiers.training.source_config import SourceConfig

EXAMPLES = Path(__file__).parent / "configs"
"""Configurations that the package contains."""
DEMO = "reverse_text"
"""The configuration of `vf-train --demo`."""
OWN = "own_environment"
"""The configuration of `vf-train ./my_env.py`."""


class Section(Config):
    """A section of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EnvironmentSection(Section):
    """The environment to train on."""

    id: str
    """Id of an environment, a folder (`./my_env`), or a Python file (`./my_env.py`)."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its `load_environment`."""
    num_examples: int = Field(default=-1, ge=-1)
    """Number of rows to train on, from the first row on; -1: all."""


class ModelSection(Section):
    """The model: a Llama-style decoder over bytes, new or loaded from a folder."""

    folder: Path | None = None
    """Model folder to start from (the `model` of a checkpoint, or a folder for `vf-endpoint`), or `embedded` for the
    model in the package. The sizes below then have no effect.
    """
    hidden_size: int = Field(default=64, ge=8)
    num_hidden_layers: int = Field(default=2, ge=1)
    num_attention_heads: int = Field(default=4, ge=1)
    num_key_value_heads: int | None = Field(default=None, ge=1)
    """None: the number of attention heads."""
    intermediate_size: int | None = Field(default=None, ge=8)
    """Width of the feed-forward part; None: 8/3 of `hidden_size`, rounded up to a multiple of 8."""
    max_position_embeddings: int = Field(default=512, ge=16)
    """Context length in tokens (bytes)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        heads, keys = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if self.hidden_size % heads or self.hidden_size // heads % 2:
            raise ValueError(
                f"hidden_size={self.hidden_size} must be an even number times num_attention_heads={heads}"
            )
        if heads % keys:
            raise ValueError(
                f"num_attention_heads={heads} is not a multiple of num_key_value_heads={keys}"
            )
        return self

    @property
    def start_folder(self) -> Path | None:
        """Folder of the first weights; None for new weights."""
        return SHIPPED_WEIGHTS if self.folder == Path("embedded") else self.folder

    def shape(self) -> ModelConfig:
        """Return the shape of a new model."""
        inner = self.intermediate_size or -(-self.hidden_size * 8 // 24) * 8
        return ModelConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=self.hidden_size,
            intermediate_size=inner,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads or self.num_attention_heads,
            head_dim=self.hidden_size // self.num_attention_heads,
            max_position_embeddings=self.max_position_embeddings,
        )


class OptimizerSection(Section):
    """The optimizer and its rates."""

    kind: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon for the matrices of the layers, AdamW for all other weights."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Learning rate of AdamW after the warm-up."""
    muon_learning_rate: float = Field(default=0.02, gt=0)
    """Learning rate of Muon after the warm-up. Its updates have a fixed size, so the rate is larger than AdamW's."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Betas of AdamW."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Momentum of Muon."""
    weight_decay: float = Field(default=0.0, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    """Number of steps over which the learning rate rises to its value."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Maximum norm of the gradient; longer gradients are scaled down."""


class WarmStartSection(Section):
    """Supervised training on demonstrations before reinforcement learning, so that some rollouts succeed."""

    steps: int = Field(default=0, ge=0)
    """Maximum number of steps on correct replies; 0: no warm start."""
    until_loss: float = Field(default=0.0, ge=0)
    """End these steps once the mean loss of the last ten is lower. The number of steps depends on the seed. The loss is
    a mean over tokens: a policy with this loss gives a correct reply of n tokens with probability exp(-n * loss).
    """
    noisy_steps: int = Field(default=0, ge=0)
    """Number of further steps on replies with `noise`. Their learning rate falls from half of its value to 0."""
    noise: Literal["auto"] | Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the letters and digits of a reply that are replaced by random ones, which makes the policy weak on
    purpose. `auto`: the largest share up to 0.5 with which the demonstrations score at least half of the score of
    correct replies. If a reply is scored as a whole, long replies need less noise than short ones.
    """
    demonstrations: int = Field(default=2000, ge=1)
    """Number of replies to play. Rows repeat if there are fewer."""
    batch_size: int = Field(default=64, ge=1)
    """Demonstrations per step."""
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    min_reward: float = Field(default=0.0, ge=0)
    """End the run with an error if the policy has a lower mean reward after the warm start."""

    @property
    def is_on(self) -> bool:
        """Whether there is a warm start."""
        return self.steps + self.noisy_steps > 0


class SamplingSection(Section):
    """Sampling of rollouts."""

    temperature: float = Field(default=1.0, gt=0)
    max_tokens: int = Field(default=64, ge=1)
    """Maximum number of tokens per response."""


class CheckpointSection(Section):
    """Checkpoints of the run."""

    every_steps: int = Field(default=10, ge=0)
    """Steps between checkpoints. 0: only at the last step and at an interruption."""
    keep: int = Field(default=2, ge=1)
    """Number of checkpoints to keep; older ones are deleted."""


class ComputeSection(Section):
    """Device and precision of the trainer."""

    device: str = "auto"
    """`auto`: the GPU if torch detects one, else the CPU. Or a device of torch: `cpu`, `cuda:1`, `mps`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the trainer's forward pass. Weights, optimizer and server always use float32."""
    threads: int = Field(default=1, ge=0)
    """CPU threads of torch; 0: torch's default. Products of models this small lose time when threads share them."""
    micro_batch_tokens: int = Field(default=16384, ge=64)
    """Maximum number of tokens per forward pass, padding included. A batch is split into as many passes as needed."""
    server_sequences: int = Field(default=128, ge=1)
    """Maximum number of sequences that the inference server generates at the same time."""


class TrainConfig(Section):
    """A run: environment, model, warm start, reinforcement learning, checkpoints."""

    output: Path = Path("outputs/train")
    """Folder of the run: metrics, curve, checkpoints and logs."""
    seed: int = 0
    """Seed of the new weights, the noise, and the order of demonstrations and examples. Sampling has no seed, because
    rollouts arrive in no fixed order.
    """
    steps: int = Field(ge=1)
    """Number of steps of reinforcement learning, each one update of the weights."""
    environment: EnvironmentSection
    model: ModelSection = Field(default_factory=ModelSection)
    warm_start: WarmStartSection = Field(default_factory=WarmStartSection)
    source: SourceConfig
    """Groups, staleness, difficulty, advantages: see `verifiers.training.source_config`.

    The run's seed replaces its own.
    """
    sampling: SamplingSection = Field(default_factory=SamplingSection)
    evaluation_examples: int = Field(default=100, ge=-1)
    """Number of evaluation rows to play before and after reinforcement learning, once each; -1: all."""
    loss: str = "masked_importance_sampling"
    """Name of a loss of `verifiers.training.losses`."""
    loss_options: dict[str, float] = Field(default_factory=dict)
    """Keyword options of the loss, such as `ratio_max`."""
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    compute: ComputeSection = Field(default_factory=ComputeSection)
    checkpoints: CheckpointSection = Field(default_factory=CheckpointSection)

    @field_validator("source", mode="before")
    @classmethod
    def _check_source(cls, value: Any) -> Any:
        # Programs use SourceConfig too, and pydantic's message is enough for them. Here the message suggests the
        # closest key.
        if isinstance(value, dict):
            _refuse_unknown(value, SourceConfig.model_fields, "source")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.loss not in LOSSES:
            raise ValueError(
                f"loss={self.loss!r} does not exist; choose one of {', '.join(LOSSES)}"
            )
        _refuse_unknown(self.loss_options, _options_of(self.loss), f"loss_options of {self.loss}")
        return self


def _options_of(loss: str) -> list[str]:
    every = inspect.signature(LOSSES[loss]).parameters.values()
    own = [p.name for p in every if p.kind is p.KEYWORD_ONLY]
    return [name for name in own if name not in ("sequence_ids", "token_count")]


def _refuse_unknown(given: Iterable[str], known: Iterable[str], what: str) -> None:
    names = list(known)
    for key in given:
        if key not in names:
            near = get_close_matches(key, names, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"The keys are {', '.join(names)}."
            raise ValueError(f"{what} has no key {key!r}. {hint}")


def parse_config(fields: Mapping[str, Any], *, name: str) -> TrainConfig:
    """Return a checked configuration; `name` identifies its source in errors. Raise ConfigError."""
    try:
        return TrainConfig.model_validate(fields)
    except ValidationError as error:
        missing = [e for e in error.errors(include_url=False) if e["type"] == "missing"]
        if missing:
            keys = ", ".join(".".join(map(str, e["loc"])) for e in missing)
            raise ConfigError(f"{name} lacks these keys: {keys}.") from error
        raise ConfigError(f"{name}: {readable_problems(error)}") from error


def read_fields(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file, unchecked. Raise ConfigError if the file cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"Cannot read {path}: {error.strerror}. The package contains these examples: {', '.join(example_names())}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def example_path(name: str) -> Path:
    """Return the path of a configuration that the package contains."""
    return EXAMPLES / f"{name}.toml"


def example_names() -> list[str]:
    """Return the sorted names of the configurations in the package that name an environment."""
    return sorted(file.stem for file in EXAMPLES.glob("*.toml") if file.stem != OWN)
