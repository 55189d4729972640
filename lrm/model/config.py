"""Shape of a model, and who computes its costly operations. No torch here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lrm.errors import shown
from lrm.model import blocks
from lrm.model.blocks.block import Mixer


class Strict(BaseModel):
    """Frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _lists_are_tuples(cls, data: Any) -> Any:
        """YAML and JSON know no tuples."""
        return _tuples(data)


def _tuples(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _tuples(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return tuple(_tuples(value) for value in data)
    return data


class ExpertsConfig(Strict):
    """A mixture of experts beside the MLP, which is the expert that all tokens share.

    Of ``count`` experts with ``size`` hidden units each a router chooses ``active`` for a token.
    ``balance`` times the mean imbalance of the layers (``blocks.experts_module``) is added to the
    objective, so that the router uses all of them.
    """

    count: int = Field(32, ge=2, le=1024)
    active: int = Field(4, ge=1, le=1024)
    size: int = Field(ge=1, le=1 << 20)
    balance: float = Field(0.01, ge=0, le=1)

    @model_validator(mode="after")
    def _some_rest(self) -> ExpertsConfig:
        if self.active > self.count:
            raise ValueError(f"active = {self.active} must not exceed count = {self.count}")
        return self


class ModelConfig(Strict):
    """Shape of a Falcon-H1 hybrid, in the names of transformers' ``FalconH1Config``.

    ``mixer`` names a registered mixer, or several joined by +, which share their input and add up
    their outputs; ``both`` is attention beside ssm. ``mixer_sizes`` holds the sizes of mixers that
    transformers does not know, by the mixer's name. ``experts`` puts a mixture of experts beside
    the MLP. ``norms_behind: {attention.q: head}`` puts an
    RMSNorm of each head behind a matrix. Forward multipliers are not part of the shape:
    they belong to addresses and are set by rules (``lrm.plan.rules``). The defaults are
    Falcon-H1-0.5B.
    """

    mixer: str = "both"
    mixer_sizes: dict[str, dict[str, int | float | bool | str]] = {}
    vocab_size: int = Field(32784, ge=2, le=1 << 24)
    hidden_size: int = Field(1024, ge=1, le=1 << 20)
    intermediate_size: int = Field(2048, ge=1, le=1 << 20)
    num_hidden_layers: int = Field(36, ge=1, le=1000)
    num_attention_heads: int = Field(8, ge=1, le=1 << 20)
    num_key_value_heads: int = Field(2, ge=1, le=1 << 20)
    head_dim: int = Field(64, ge=2, le=1 << 20)
    mamba_d_ssm: int = Field(1536, ge=1, le=1 << 20)
    mamba_n_heads: int = Field(24, ge=1, le=1 << 20)
    mamba_d_state: int = Field(128, ge=1, le=1 << 20)
    mamba_n_groups: int = Field(1, ge=1, le=1 << 20)
    mamba_d_conv: int = Field(4, ge=1, le=1 << 20)
    mamba_chunk_size: int = Field(128, ge=1, le=1 << 20)
    mamba_rms_norm: bool = False
    mamba_norm_before_gate: bool = False
    rope_theta: float = Field(1.0e11, gt=0)
    rms_norm_eps: float = Field(1.0e-5, ge=0)
    # An RMSNorm behind these matrices, by address: of each head, or of the whole output.
    norms_behind: dict[str, Literal["head", "full"]] = {}
    experts: ExpertsConfig | None = None
    # Root mean square of the initial matrices; "fan_in" means columns ** -0.5.
    initializer_range: Annotated[float, Field(gt=0)] | Literal["fan_in"] = 0.02

    @property
    def mamba_d_head(self) -> int:
        """Channels of one Mamba2 head."""
        return self.mamba_d_ssm // self.mamba_n_heads

    @property
    def mixers(self) -> list[Mixer]:
        """The declarations of the mixers, in the order in which a layer runs them."""
        return blocks.named(self.mixer)

    def must_divide(self, small: str, large: str) -> None:
        """Raise ValueError where the field ``small`` is no divisor of the field ``large``."""
        if getattr(self, large) % getattr(self, small):
            raise ValueError(
                f"{small} = {getattr(self, small)} must divide {large} = {getattr(self, large)}"
            )

    def __hash__(self) -> int:
        # The dictionary of sizes has no hash of its own.
        return hash(repr(self))

    @field_validator("mixer")
    @classmethod
    def _mixer_is_known(cls, mixer: str) -> str:
        names = {found.name for found in blocks.named(mixer)}
        return "both" if names == {"attention", "ssm"} else mixer

    @model_validator(mode="after")
    def _shape_is_possible(self) -> ModelConfig:
        found = {mixer.name: mixer for mixer in self.mixers}
        for name, sizes in self.mixer_sizes.items():
            if name not in found:
                where = f"mixer_sizes.{shown(name, quoted=False)}"
                raise ValueError(f"{where}: this model has {', '.join(found)} only")
            found[name].check_sizes(sizes)
        for mixer in found.values():
            mixer.check(self)
        self._check_norms()
        return self

    def _check_norms(self) -> None:
        possible = {name: norm for block in blocks.of_layer(self.mixers)
                    for name, norm in block.behind.items()}  # fmt: skip
        for name, how in self.norms_behind.items():
            if name not in possible:
                where = f"norms_behind.{shown(name, quoted=False)}"
                raise ValueError(f"{where}: an RMSNorm may stand behind {', '.join(possible)}")
            if how == "head" and possible[name].heads is None:
                raise ValueError(f"norms_behind.{name} = head: its output has no heads; write full")


class KernelConfig(Strict):
    """Who computes the costly operations; all agree to rounding.

    ``auto``: on CUDA in half precision the first package that is installed and agrees with torch
    here, else torch. A package by name: that one, or an error.
    """

    scan: Literal["auto", "torch", "mamba_ssm", "fla"] = "auto"
    attention: Literal["auto", "torch", "flash_attn"] = "auto"
    convolution: Literal["auto", "torch", "causal_conv1d"] = "auto"
    delta: Literal["auto", "torch", "fla"] = "auto"
