"""What a block of the model declares about itself. No torch here.

A block is whatever owns tensors: a mixer, the MLP, a norm, the embedding, the projector. Rules,
initial values, costs, widths, symmetries, kernels and Brownian motion read these declarations,
and know no block by name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrm.errors import shown

if TYPE_CHECKING:
    from torch import nn

    from lrm.model.config import ModelConfig


@dataclass(frozen=True)
class Normal:
    """Independent normal entries with the root mean square of ``model.initializer_range``."""

    def size(self, spread: float) -> float:
        """Root mean square of the entries, where ``spread`` is that of normal ones."""
        return spread


@dataclass(frozen=True)
class Constant:
    """All entries alike."""

    value: float = 1.0

    def size(self, spread: float) -> float:
        """Root mean square of the entries."""
        return abs(self.value)


@dataclass(frozen=True)
class Uniform:
    """Uniform on [low, high], then ``through`` the functions of these names, in this order.

    The functions are ``log``, ``exp`` and ``inverse_softplus`` (``lrm.model.init``).
    """

    low: float
    high: float
    through: tuple[str, ...] = ()

    def size(self, spread: float) -> float:
        """Root mean square of the entries: of a thousand equal parts of the interval."""
        squares = []
        for part in range(1000):
            value = self.low + (self.high - self.low) * (part + 0.5) / 1000
            for name in self.through:
                value = _THROUGH[name](value)
            squares.append(value * value)
        return math.sqrt(math.fsum(squares) / len(squares))


# Of one number; ``lrm.model.init`` has them for tensors.
_THROUGH: dict[str, Callable[[float], float]] = {
    "log": math.log,
    "exp": math.exp,
    "inverse_softplus": lambda x: x + math.log(-math.expm1(-x)),
}


@dataclass(frozen=True)
class Address:
    """One tensor: a parameter, or rows ``[rows[0], rows[1])`` of one.

    ``role`` is matrix, embedding, norm, conv (filters by channel) or vector. ``side`` tells of a
    norm whether a matrix reads what it gives out (input), or gives what it takes in (output). A
    block declares its tensors without a layer, and their parameters by the name within its own
    module. ``present`` is false for a tensor that this model goes without, while others of the
    family have it. ``apart``: its parameter holds several by storage alone, which are never taken
    for one matrix. ``share`` is the share of the tokens that pass through it.
    """

    name: str
    parameter: str
    shape: tuple[int, ...]
    role: str = "matrix"
    initial: Normal | Constant | Uniform = Normal()
    rows: tuple[int, int] | None = None
    present: bool = True
    layer: int | None = None
    side: str | None = None
    apart: bool = False
    share: float = 1.0

    @property
    def key(self) -> str:
        """``name`` for global tensors, ``name@layer`` for those of a layer."""
        return self.name if self.layer is None else f"{self.name}@{self.layer}"

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Changes:
    """How the activation at one end of a tensor may change its scale, channel by channel.

    Channel i changes by e^(sign · a[channels[i]]), where a holds the unknown changes that
    ``freedom`` names: those of one layer, or of the whole model where ``everywhere``. Channels of
    one number change alike; ends with one freedom are ends of one activation.
    """

    freedom: str
    channels: Sequence[int]
    sign: float = 1.0
    everywhere: bool = False


# What a tensor gives out, by row, and what it takes in, by column; None: it cannot change.
Ends = tuple[Changes | None, Changes | None]


def stream(config: ModelConfig, sign: float = 1.0) -> Changes:
    """The residual stream, which changes its scale as a whole."""
    return Changes("residual", [0] * config.hidden_size, sign, everywhere=True)


@dataclass(frozen=True)
class Behind:
    """An RMSNorm that ``model.norms_behind`` may put behind a matrix: in front of its reader.

    ``module`` holds it in the torch module. ``heads`` is the field of ModelConfig by which the
    output falls into heads, each of which may be normalised by itself.
    """

    module: str
    heads: str | None = None

    def groups(self, config: ModelConfig, how: str) -> int:
        """Parts of the output that are normalised apart, ``how`` being head or full."""
        return getattr(config, self.heads) if how == "head" and self.heads else 1


# The freedom of what an RMSNorm behind a matrix takes in, in the steps in which they are counted.
NORMALISED = "normalised"
_APART = 1 << 24
# The first number for what is normalised in a block that counts by itself; beyond all others'.
NORMS_APART = 1 << 40


class Block(ABC):
    """Base of all declarations; what a block does not have keeps the value that stands here."""

    name: str
    # Of the torch module, as transformers calls it.
    module: str
    # Sizes that grow in proportion with the model's width.
    widths: tuple[str, ...] = ()
    # Changes of activations that this block allows, each with a line for people.
    freedoms: Mapping[str, str] = {}
    # Fields of ModelConfig for a small model whose symmetries are to be found: no two sides of its
    # matrices are alike by chance, so that none is taken for another.
    small: Mapping[str, Any] = {}

    # Activations that no tensor gives out alone; a rule that names one may give it a factor.
    points: tuple[str, ...] = ()
    # By address of a matrix, the RMSNorm that may stand behind it.
    behind: Mapping[str, Behind] = {}

    @abstractmethod
    def tensors(self, config: ModelConfig) -> list[Address]:
        """Every tensor, in forward order, also those that are not ``present`` in this model."""

    def every_tensor(self, config: ModelConfig) -> list[Address]:
        """``tensors``, and ``norm.<address>`` behind each matrix that may be normalised."""
        found = []
        for address in self.tensors(config):
            found.append(address)
            if (norm := self.behind.get(address.name)) is not None:
                name = f"norm.{address.name}"
                of_norm = Address(name, f"{norm.module}.weight", address.shape[:1], "norm")
                present = address.present and address.name in config.norms_behind
                found.append(replace(of_norm, initial=Constant(), present=present, side="output"))
        return found

    def every_end(self, config: ModelConfig) -> dict[str, Ends]:
        """``ends``, where a norm stands behind a matrix with the norm's as well.

        The norm's weights then have the matrix's end, and the matrix may change its output in each
        part that is normalised by itself.
        """
        found = self.ends(config)
        for number, (name, how) in enumerate(sorted(config.norms_behind.items())):
            if name not in self.behind or name not in found:
                continue
            [rows] = [a.shape[0] for a in self.tensors(config) if a.name == name]
            out, into = found[name]
            each = rows // self.behind[name].groups(config, how)
            channels = [number * _APART + row // each for row in range(rows)]
            found |= {name: (Changes(NORMALISED, channels), into), f"norm.{name}": (out, None)}
        return found

    def ends(self, config: ModelConfig) -> dict[str, Ends]:
        """By address, which changes of scale the two ends of the tensor may undergo.

        A matrix that maps an activation of scale e^a to one of scale e^b can make up for both.
        What is not listed cannot change (``lrm.symmetry.derived``).
        """
        return {}


class Mixer(Block):
    """What mixes tokens: declared here, registered in ``lrm.model.blocks.MIXERS``.

    Its addresses begin with its name and a dot. ``model.mixer`` chooses by the name.
    """

    # Its own sizes with their defaults, which are set as ``model.mixer_sizes.<name>.<size>``.
    sizes: Mapping[str, int | float | bool | str] = {}

    def sizes_of(self, config: ModelConfig) -> dict[str, Any]:
        """Its own sizes in this model."""
        return {**self.sizes, **config.mixer_sizes.get(self.name, {})}

    def check_sizes(self, given: Mapping[str, Any]) -> None:
        """Raise ValueError where a size is unknown, of another type, or no possible count."""
        for name, value in given.items():
            where = f"mixer_sizes.{self.name}.{name} = {shown(value)}"
            if name not in self.sizes:
                raise ValueError(f"{where}: the sizes are {', '.join(self.sizes) or 'none'}")
            default = self.sizes[name]
            if type(value) is not type(default) and (type(default), type(value)) != (float, int):
                raise ValueError(f"{where}: write a value such as {default!r}")
            if type(default) is int and not 1 <= value <= 1 << 20:
                raise ValueError(f"{where}: write a size from 1 to {1 << 20}")
            if type(default) is float and abs(value) > 1.0e12:
                raise ValueError(f"{where}: write a number up to 1e12")

    def check(self, config: ModelConfig) -> None:
        """Raise ValueError, with one line, where these sizes make no such mixer."""

    def flops_per_token(self, config: ModelConfig, sequence_length: int) -> float:
        """Forward and backward of one token in one layer, beside 6 for each entry of a matrix."""
        return 0.0

    @abstractmethod
    def build(
        self, config: ModelConfig, layer: int, factors: Mapping[str, float], implementations: Any
    ) -> nn.Module:
        """The torch module of one layer, which maps (u, activations) to the mixer's output.

        u and the output are (batch, length, d). ``factors`` are the forward multipliers by
        address key; ``implementations`` says what computes the costly operations.
        """

    def trials(self) -> dict[str, Callable]:
        """The kernels of ``KernelConfig`` that it uses, each with what tries it.

        A trial maps (config, device, dtype) to named inputs and a function of them that takes
        ``implementation`` (``lrm.model.gpu.selection``).
        """
        return {}

    def statistics(self, activations: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
        """What else is worth knowing of one layer: (stat, tensor) → a value for each head (heads,).

        ``activations`` are the layer's by the names of tensors, (sequences, length, …) each.
        """
        return {}

    def reads(self, config: ModelConfig) -> Changes:
        """The columns of what reads the layer's normalised input."""
        return Changes("mixer_input", range(config.hidden_size))
