"""What a run simulates or measures of a theory, beside the training loop. No torch here.

Of scale vectors (arXiv 2605.26895): a student W with scale vectors learns a linear teacher W⋆ of
shape (``outputs``, ``inputs``) from inputs with E zzᵀ = I, so that the loss is ½‖A − W⋆‖²_F of the
effective matrix A. The number of samples or of steps is ``train.steps``.

Of steepest descent by layer (*Beyond MuP 3*, Su, https://kexue.fm/archives/11647): directions are
compared on gradients that are drawn, and bounds on the loss are asked of heads that are drawn.

Of Gated Delta Networks (*Unlocking Feature Learning in Gated Delta Networks at Scale*, Liu and Gu,
2026): a whole model is measured as it begins and in its first steps of SGD, on text.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lrm.model.config import Strict

# How a student's matrix is scaled; ``lrm.noise.scale_vectors.designs`` says what each is.
# ``none`` has no scales, and is compared with nothing.
_Compared = Literal["standard", "ap", "dp", "or", "er", "hg"]
# Those of one matrix: ``hg`` has several.
_Single = Literal["none", "standard", "ap", "dp", "or", "er"]
_Positive = Annotated[float, Field(gt=0)]
# What one evaluation of a gradient takes on arrays as small as these, whatever their size.
_CALL = 1.0e6  # FLOPs of one core in that time


class _Theory(Strict):
    # The function that carries it out (``lrm.plan.run.Run.performed_by``).
    performed_by: ClassVar[str]
    # The mixer of the settings' model, if it is about a model and its text, and not about layers.
    mixer: ClassVar[str | None] = None

    @property
    def of_model(self) -> bool:
        return self.mixer is not None


class _ScaleVectors(_Theory):
    performed_by: ClassVar[str] = "lrm.noise.scale_vectors.run:run"


class _Teacher(_ScaleVectors):
    outputs: int = Field(16, ge=1, le=1 << 10)
    inputs: int = Field(32, ge=2, le=1 << 10)


class FlowTheory(_Teacher):
    """Gradient flow of one design from W(0) = 0 beside that of the design it is compared with.

    The loss is sampled at ``train.steps`` times up to ``horizon``; ``states`` random states are
    tried as well. Heterogeneous vectors (``hg``) belong to ``branches`` stacked teachers.
    """

    simulate: Literal["flow"]
    design: _Compared
    horizon: float = Field(3.0, gt=0, le=100)
    states: int = Field(1000, ge=1, le=1 << 16)
    branches: int = Field(3, ge=2, le=64)

    @property
    def flops(self) -> float:
        """Of one sample: about 25 evaluations for each of eight teachers, and their references."""
        return 25 * 16 * _CALL


class StartTheory(_Teacher):
    """Gradient flows of all designs from a W(0) of norm ``start`` · ‖W⋆‖_F."""

    simulate: Literal["start"]
    start: _Positive
    horizon: float = Field(3.0, gt=0, le=100)

    @property
    def flops(self) -> float:
        """Of one sample: about 20 evaluations for each of six designs."""
        return 20 * 6 * _CALL


class AdamTheory(_Teacher):
    """Adam on one design, with noise of standard deviation ``noise`` on the gradient of A.

    Betas, epsilon, LR and schedule are the run's. Weight decay is left out, whatever the run has.
    """

    simulate: Literal["adam"]
    design: _Single
    noise: float = Field(1.0, ge=0)

    @property
    def flops(self) -> float:
        """Of one step, for each of two teachers."""
        return 2 * 3 * _CALL


class _Coordinate(_ScaleVectors):
    """One coordinate a = γw with the loss ½(a − ``target``)².

    γ is simulated without weight decay and with that of w; both see the same noise.
    """

    target: float = 1.0
    weight_decay: float = Field(0.1, ge=0)
    paths: int = Field(1000, ge=1, le=1 << 20)

    @property
    def flops(self) -> float:
        """Of one step."""
        return _CALL + 2 * 600.0 * self.paths


class SdeTheory(_Coordinate):
    """The stochastic equations (17) and (18), by a split step of length ``dt``.

    ``noise`` is q = ησ².
    """

    simulate: Literal["sde"]
    weight_decay: _Positive = 0.1  # the bounds are over it
    noise: float = Field(0.1, ge=0)
    dt: _Positive = 0.01


class SgdTheory(_Coordinate):
    """SGD at the run's LR, with noise of standard deviation ``noise`` in every step.

    It ``enters`` the gradients of both ``parameters`` alike, or the ``target``.
    """

    simulate: Literal["sgd"]
    noise: float = Field(0.5, ge=0)
    enters: Literal["parameters", "target"]


class _Steepest(_Theory):
    """A layer of ``width`` inputs with ``tokens`` rows, or a vector of that width."""

    performed_by: ClassVar[str] = "lrm.noise.steepest.run:run"
    width: int = Field(16, ge=3, le=1 << 12)
    tokens: int = Field(48, ge=2, le=1 << 12)


class DirectionsTheory(_Steepest):
    """Five directions on drawn gradients of five kinds of layers, by each layer's criterion.

    ``train.steps`` random directions are tried beside them for each gradient.
    """

    simulate: Literal["directions"]

    @property
    def flops(self) -> float:
        """Of one random direction: for 30 gradients its criterion, of which some are SVDs."""
        return 30 * (0.1 * _CALL + 20.0 * self.width**2 * self.tokens)


class HeadTheory(_Steepest):
    """Bounds on the loss of LM heads; its supremum by ``train.steps`` steps of ascent.

    The ascent begins at ``starts`` random inputs for each token, and at the token's farthest row.
    ``points`` random inputs, pairs of them and pairs of logits are asked for each bound.
    """

    simulate: Literal["head"]
    starts: int = Field(4, ge=1, le=1 << 10)
    points: int = Field(2000, ge=1, le=1 << 20)

    @property
    def flops(self) -> float:
        """Of one step of ascent, for each of five heads."""
        return 5 * (_CALL + 4.0 * self.tokens**2 * self.width * (1 + self.starts))


class _GatedDelta(_Theory):
    """A model whose tensors are what the rules make of them; all of them learn."""

    performed_by: ClassVar[str] = "lrm.noise.gated_delta.run:run"
    mixer: ClassVar[str | None] = "gdn"

    def models(self, batch_size: int) -> int:
        """How many models take the run's steps, each on batches of this size."""
        return 1


class SizesTheory(_GatedDelta):
    """Root mean squares of activations and of their gradients in ``train.steps`` initial models."""

    simulate: Literal["sizes"]


class GatesTheory(_GatedDelta):
    """What ``train.steps`` steps change of the gates, and of which tokens the first change comes.

    So many models are ``draws``, or as many as have ``sequences`` in one step together if they are
    fewer: larger batches average over more tokens.
    """

    simulate: Literal["gates"]
    draws: int = Field(8, ge=1, le=1 << 10)
    sequences: int = Field(512, ge=1, le=1 << 20)

    def models(self, batch_size: int) -> int:
        return min(self.draws, max(1, self.sequences // batch_size))


class ReadTheory(_GatedDelta):
    """A ``factor`` before the RMSNorm of what heads read, whose epsilon is ``eps``; in float64.

    Two models take ``train.steps`` steps beside one without the factor: one with the same epsilon,
    and one with that times the factor's square.
    """

    simulate: Literal["read"]
    factor: _Positive = 8.0
    eps: float = Field(0.0, ge=0)

    def models(self, batch_size: int) -> int:
        return 3


Theory = Annotated[
    FlowTheory | StartTheory | AdamTheory | SdeTheory | SgdTheory | DirectionsTheory | HeadTheory
    | SizesTheory | GatesTheory | ReadTheory,
    Field(discriminator="simulate"),
]  # fmt: skip
