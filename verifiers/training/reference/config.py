"""`TrainConfig`: everything a run of the reference trainer depends on, as a TOML file says it."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from verifiers.configs import Config
from verifiers.endpoint.configuration import ModelConfig
from verifiers.endpoint.model import SHIPPED_WEIGHTS
from verifiers.endpoint.tokenizer import VOCAB_SIZE
from verifiers.errors import ConfigError
from verifiers.evaluate.settings import readable_problems
from verifiers.training.losses import LOSSES
from verifiers.training.source_config import SourceConfig

EXAMPLES = Path(__file__).parent / "configs"
"""Configurations that come with the package."""
DEMO = "reverse_text"
"""What `vf-train --demo` runs."""
OWN = "own_environment"
"""What `vf-train ./my_env.py` runs."""


class Section(Config):
    """A part of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EnvironmentSection(Section):
    """What is trained on."""

    id: str
    """Id of an environment, a folder (`./my_env`), or a Python file (`./my_env.py`)."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its `load_environment`."""
    num_examples: int = Field(default=-1, ge=-1)
    """Train on the first so many rows; -1: all."""


class ModelSection(Section):
    """The model: a Llama-style decoder over bytes, new or from a folder."""

    folder: Path | None = None
    """A model folder to start from (a checkpoint's `model`, or one for `vf-endpoint`), or `embedded` for the model in
    the package; the sizes below are then not used."""
    hidden_size: int = Field(default=64, ge=8)
    num_hidden_layers: int = Field(default=2, ge=1)
    num_attention_heads: int = Field(default=4, ge=1)
    num_key_value_heads: int | None = Field(default=None, ge=1)
    """None: as many as there are heads."""
    intermediate_size: int | None = Field(default=None, ge=8)
    """Width of the feed-forward part; None: 8/3 of `hidden_size`, rounded up to a multiple of 8."""
    max_position_embeddings: int = Field(default=512, ge=16)
    """The context, in tokens (bytes)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        heads, keys = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if self.hidden_size % heads or self.hidden_size // heads % 2:
            raise ValueError(
                f"hidden_size={self.hidden_size} must be an even number times num_attention_heads={heads}"
            )
        if heads % keys:
            raise ValueError(
                f"num_attention_heads={heads} is no multiple of num_key_value_heads={keys}"
            )
        return self

    @property
    def start_folder(self) -> Path | None:
        """Where the first weights are; None for new ones."""
        return SHIPPED_WEIGHTS if self.folder == Path("embedded") else self.folder

    def shape(self) -> ModelConfig:
        """The shape of a new model."""
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
    """How weights are changed."""

    kind: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon for the matrices of the layers, AdamW for everything else."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Of AdamW, after the warm-up."""
    muon_learning_rate: float = Field(default=0.02, gt=0)
    """Of Muon, after the warm-up; its updates have a fixed size, so it is larger than AdamW's."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Of AdamW."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Of Muon."""
    weight_decay: float = Field(default=0.0, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    """The learning rate rises to its value over so many steps."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Longer gradients are cut to this length."""


class WarmStartSection(Section):
    """Supervised training on demonstrations before reinforcement learning: so that some rollouts succeed."""

    steps: int = Field(default=0, ge=0)
    """Most steps on right replies; 0: none."""
    until_loss: float = Field(default=0.0, ge=0)
    """These steps end when the mean loss of the last ten is lower: models with other seeds need more or fewer. The loss
    is a mean over tokens. A policy that has it gives the right reply of n tokens with probability exp(-n * loss)."""
    noisy_steps: int = Field(default=0, ge=0)
    """Then so many steps on replies with `noise`; the learning rate falls from half of it to 0 over them."""
    noise: Literal["auto"] | Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the letters and digits of a reply that are replaced by random ones: a weak policy on purpose. `auto`:
    the largest share, up to 0.5, with which the demonstrations still score half of what right replies score. Replies
    that are scored as a whole need less noise the longer they are."""
    demonstrations: int = Field(default=2000, ge=1)
    """How many replies are played; rows come again when there are fewer."""
    batch_size: int = Field(default=64, ge=1)
    """Demonstrations a step."""
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    min_reward: float = Field(default=0.0, ge=0)
    """The run ends with an error when the mean reward sampled after the warm start is lower."""

    @property
    def is_on(self) -> bool:
        """Whether there is a warm start."""
        return self.steps + self.noisy_steps > 0


class SamplingSection(Section):
    """How rollouts are sampled."""

    temperature: float = Field(default=1.0, gt=0)
    max_tokens: int = Field(default=64, ge=1)
    """Of one answer."""


class CheckpointSection(Section):
    """What is kept to go on from."""

    every_steps: int = Field(default=10, ge=0)
    """0: only the last step, and where the run is interrupted."""
    keep: int = Field(default=2, ge=1)
    """The newest so many are kept."""


class ComputeSection(Section):
    """Where and how precisely the trainer computes."""

    device: str = "auto"
    """`auto`: the GPU if torch sees one, else the CPU. Or a device of torch: `cpu`, `cuda:1`, `mps`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the trainer's forward pass. Weights and optimizer are always float32, and so is the server."""
    threads: int = Field(default=1, ge=0)
    """CPU threads of torch; 0: its own choice. Models this small lose time when threads share a product."""
    micro_batch_tokens: int = Field(default=16384, ge=64)
    """Tokens in one forward pass, padding included; a batch is computed in as many as it needs."""
    server_sequences: int = Field(default=128, ge=1)
    """Sequences the inference server generates at the same time."""


class TrainConfig(Section):
    """A run: environment, model, warm start, reinforcement learning, checkpoints."""

    output: Path = Path("outputs/train")
    """The run's folder: metrics, curve, checkpoints and logs."""
    seed: int = 0
    """Of the new weights, the noise, the order of demonstrations and examples. Sampling is not seeded: rollouts
    arrive in no fixed order."""
    steps: int = Field(ge=1)
    """Steps of reinforcement learning; one update of the weights each."""
    environment: EnvironmentSection
    model: ModelSection = Field(default_factory=ModelSection)
    warm_start: WarmStartSection = Field(default_factory=WarmStartSection)
    source: SourceConfig
    """Groups, staleness, difficulty, advantages: see `verifiers.training.source_config`. Its seed is the run's."""
    sampling: SamplingSection = Field(default_factory=SamplingSection)
    evaluation_examples: int = Field(default=100, ge=-1)
    """Evaluation rows played before and after reinforcement, once each; -1: all."""
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
        # SourceConfig is used by programs too and has pydantic's own message; here the nearest key is named.
        if isinstance(value, dict):
            _refuse_unknown(value, SourceConfig.model_fields, "source")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.loss not in LOSSES:
            raise ValueError(f"loss={self.loss!r} is not known; there are {', '.join(LOSSES)}")
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
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(names)}."
            raise ValueError(f"{what} has no key {key!r}. {hint}")


def parse_config(fields: Mapping[str, Any], *, name: str) -> TrainConfig:
    """A checked configuration; `name` says in errors where it comes from. Raises ConfigError."""
    try:
        return TrainConfig.model_validate(fields)
    except ValidationError as error:
        missing = [e for e in error.errors(include_url=False) if e["type"] == "missing"]
        if missing:
            keys = ", ".join(".".join(map(str, e["loc"])) for e in missing)
            raise ConfigError(f"{name} does not say: {keys}.") from error
        raise ConfigError(f"{name}: {readable_problems(error)}") from error


def read_fields(path: Path) -> dict[str, Any]:
    """What a TOML file says, not checked yet. Raises ConfigError when it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"Cannot read {path}: {error.strerror}. Examples that come with the package: {', '.join(example_names())}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def example_path(name: str) -> Path:
    """Where a configuration that comes with the package is."""
    return EXAMPLES / f"{name}.toml"


def example_names() -> list[str]:
    """Configurations that come with the package and name their environment, sorted."""
    return sorted(file.stem for file in EXAMPLES.glob("*.toml") if file.stem != OWN)
