"""Typed, frozen and strict settings of one run, with their defaults.

``lrm.plan.experiment`` composes YAML files, arms and grids; this module says what a complete and
valid run looks like. Defaults of the model stand in ``lrm.model.config``, those of searches,
evaluations, theories and costs in the modules of ``lrm.plan`` that are called after them.
"""

from __future__ import annotations

import difflib
import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from lrm.errors import UserError, shown
from lrm.model.config import KernelConfig, ModelConfig, Strict
from lrm.multipliers.multiplier import AXES, LR
from lrm.multipliers.parametrization import PARAMETRIZATIONS
from lrm.plan.theory import Theory

# What moves a tensor, by rules; ``lrm.optim`` says what each does.
OptimizerKind = Literal["adamw", "muon", "sgd", "sign", "normalized", "per_token"]
_Package = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class DataConfig(Strict):
    """Where the tokens come from.

    ``source``: ``stdlib`` is the running Python's own standard library, ``packages`` the Python
    sources of installed packages, ``folder`` the text files below ``path``, ``jsonl`` JSON lines
    (also .gz and .zst), ``parquet`` Parquet files, ``synthetic`` a seeded Markov chain for tests,
    ``huggingface`` a data set by name, streamed.
    """

    source: Literal[
        "stdlib", "packages", "folder", "jsonl", "parquet", "synthetic", "huggingface"
    ] = "stdlib"
    # Only ``packages`` uses this. What is named is installed and imported under that name.
    packages: Annotated[tuple[_Package, ...], Field(min_length=1)] = (
        "torch", "sympy", "scipy", "pandas", "numpy", "matplotlib",
    )  # fmt: skip
    # Of local files: one file, a folder, or a pattern. Of huggingface: the data set's name.
    path: str | None = None
    # Files below a folder; left out, those with the usual endings of the source.
    pattern: str | None = None
    validation_fraction: float = Field(0.05, gt=0, lt=1)
    # Only the synthetic corpus uses these two.
    synthetic_documents: int = Field(200, ge=2, le=10_000_000)
    synthetic_seed: int = 0
    # Only a Hugging Face data set uses these.
    subset: str | None = None
    split: str = "train"
    # The field or column of the documents in JSON lines, Parquet and Hugging Face data sets.
    text_field: str = "text"
    # Read only the first so many documents; stop with the document in which the training split
    # reaches so many tokens.
    documents: int | None = Field(None, ge=2)
    tokens: int | None = Field(None, ge=1)
    # A trained tokenizer.json to use in place of one trained on the corpus.
    tokenizer: str | None = None

    @model_validator(mode="after")
    def _source_is_complete(self) -> DataConfig:
        without = self.source in ("stdlib", "packages", "synthetic")
        if not without and not self.path:
            raise ValueError(f"source = {self.source} needs data.path")
        if without and (self.path or self.pattern):
            raise ValueError(
                f"source = {self.source} reads no data.path or data.pattern; set data.source too"
            )
        return self


class TrainConfig(Strict):
    """Length and batch of one run; clipping and z-loss."""

    steps: int = Field(1000, ge=1, le=2_000_000)
    batch_size: int = Field(16, ge=1, le=1 << 20)  # sequences a step
    sequence_length: int = Field(128, ge=2, le=1 << 24)
    # Global L2 norm of all gradients but those of multipliers (section 4.3); 0 turns it off.
    clip_norm: float = Field(1.0, ge=0)
    clip_includes_multipliers: bool = False
    z_loss: float = Field(1.0e-4, ge=0)
    # "forward": the reparametrized forward with autograd. "optimizer": the model runs on the
    # effective weights, built once a step, and the gradient relations (4) pass theirs on.
    multiplier_implementation: Literal["forward", "optimizer"] = "forward"
    # Another number, another order of the data under the same initial values.
    data_order: int = Field(0, ge=0)
    validation_sequences: int = Field(256, ge=1)
    validation_every: int = Field(0, ge=0)  # 0: only at the end of each stage
    # Weights are kept at so many steps, evenly spaced: the first after ``snapshots_after`` steps,
    # the last at the end. They are validated there too, and can be exported and evaluated.
    snapshots: int = Field(0, ge=0, le=1000)
    snapshots_after: int = Field(0, ge=0)
    # A folder with transformers' Falcon-H1, whose weights take the place of random ones.
    start: str | None = None
    # What a loss that is not finite makes of the run: an error, after which it is not finished, or
    # a result, with which it ends (its last training loss is then no number).
    divergence: Literal["error", "result"] = "error"


class OptimizerConfig(Strict):
    """Base optimizer; weight decay is decoupled and multiplied by the raw LR (torch's AdamW).

    ``muon`` moves the hidden matrices (attention, SSM and MLP projections); the embedding, the
    projector, convolutions, vectors and multipliers stay with AdamW, at the same base LR. A rule
    may give any tensor another kind (``OptimizerKind``).
    """

    name: Literal["adamw", "muon"] = "adamw"
    lr: float = Field(1.0e-3, gt=0)
    # Where ``lr`` was tuned in runs of another length: their steps, and the power of the number of
    # steps by which the best LR falls. The base LR is then ``Settings.base_lr``. Multipliers, and
    # rules with an ``lr`` of their own, keep theirs.
    lr_tuned_at: int | None = Field(None, ge=1)
    lr_power: float = Field(0.0, ge=0, le=2)
    weight_decay: float = Field(0.1, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1.0e-8, gt=0)  # at 0 rows that were never seen would be 0 / 0
    # Of sgd, sign, normalized and per_token, where a rule does not give its own momentum.
    momentum: float = Field(0.95, ge=0, le=0.999)
    nesterov: bool = True
    # Only Muon uses what follows.
    muon_momentum: float = Field(0.95, ge=0, le=0.999)
    muon_nesterov: bool = True
    # What multiplies the LR of a step, in torch's words: "original" is Jordan's
    # sqrt(max(1, rows / columns)), "match_rms_adamw" Moonlight's 0.2 sqrt(max(rows, columns)).
    # "spectral" is sqrt(rows / columns): inputs of RMS 1 change the output by an RMS of at most
    # the LR. Weight decay keeps the raw LR.
    shape_factor: Literal["original", "match_rms_adamw", "spectral"] = "match_rms_adamw"
    # Mamba2's merged in_proj as one matrix of its learning rows, or its slices (z, x, B, C, dt)
    # each for itself. As one, ``compensate`` is exact only with the same S on all its slices.
    muon_matrices: Literal["whole", "slices"] = "whole"
    newton_schulz_steps: int = Field(5, ge=1, le=50)
    newton_schulz_eps: float = Field(1.0e-7, gt=0)
    # As in torch.optim.Muon; float32 where bfloat16 is slow. A float64 model is always float64.
    newton_schulz_precision: Literal["bfloat16", "float32"] = "bfloat16"


class BatchStage(Strict):
    """Before ``until_step`` a batch is this fraction of ``train.batch_size``."""

    until_step: int = Field(ge=1)
    fraction: float = Field(gt=0, lt=1)


class ScheduleConfig(Strict):
    """Linear warmup, constant stage, decay to ``1 / decay_factor`` of the peak.

    ``shape`` is that of the decay. Without a constant stage, ``decay_steps`` is ``train.steps``
    less ``warmup_steps``.
    """

    shape: Literal["exponential", "linear", "cosine"] = "exponential"
    warmup_steps: int = Field(0, ge=0)
    decay_steps: int = Field(0, ge=0)
    decay_factor: Annotated[float, Field(ge=1)] | None = 8.0  # None: to zero
    # The last of the ``decay_steps``, which stay at the LR that the decay has come to.
    minimum_steps: int = Field(0, ge=0)
    # Smaller batches at the beginning; the LR follows the square root of the batch.
    batch_ramp: tuple[BatchStage, ...] = ()

    @model_validator(mode="after")
    def _shape_is_possible(self) -> ScheduleConfig:
        if self.decay_factor is None and self.shape == "exponential":
            raise ValueError("decay_factor = null: an exponential never reaches zero; use linear")
        if self.minimum_steps and self.minimum_steps >= self.decay_steps:
            raise ValueError(
                f"minimum_steps = {self.minimum_steps} are the last of decay_steps = "
                f"{self.decay_steps}; make them fewer"
            )
        if self.minimum_steps and self.decay_factor is None:
            raise ValueError("decay_factor = null: at an LR of zero minimum_steps would be idle")
        for name in BatchStage.model_fields:
            values = [getattr(stage, name) for stage in self.batch_ramp]
            if sorted(set(values)) != values:
                raise ValueError(f"batch_ramp: {name} must grow from stage to stage, not {values}")
        return self


class ProbeConfig(Strict):
    """When norms are measured (in steps), and on how many fixed sequences."""

    every: int = Field(50, ge=1)
    vectors_every: int = Field(500, ge=1)  # a multiple of ``every``
    sequences: int = Field(4, ge=1)
    # Gradients of so many batches whenever vectors are taken, for their signal and noise; 0: none.
    gradient_batches: int = Field(0, ge=0)
    # The largest curvature of the loss on the fixed sequences, whenever vectors are taken, by so
    # many steps of Lanczos' method, each of which takes two gradients; 0: none.
    curvature: int = Field(0, ge=0, le=1000)
    # Gradients of the loss by activations on the fixed sequences; and, whenever vectors are taken,
    # what mixers tell of themselves, such as how long a head remembers.
    activation_gradients: bool = False
    # How much layers, and the update of the step before, may do in the worst case over inputs
    # (``lrm.optim.criteria``).
    criteria: bool = False

    @model_validator(mode="after")
    def _gradients_have_a_variance(self) -> ProbeConfig:
        if self.gradient_batches == 1:
            raise ValueError("gradient_batches = 1 has no variance; use 2 or more, or 0 for none")
        return self

    @model_validator(mode="after")
    def _vectors_are_probed_with_the_rest(self) -> ProbeConfig:
        if self.vectors_every % self.every:
            raise ValueError(
                f"vectors_every = {self.vectors_every} must be a multiple of every = {self.every}"
            )
        return self


def _registered(name: str) -> str:
    if name not in PARAMETRIZATIONS:
        raise ValueError(f"there is no such parametrization; use {', '.join(PARAMETRIZATIONS)}")
    return name


_Parametrization = Annotated[str, AfterValidator(_registered)]


class AxisRule(Strict):
    """What is said of the multipliers of rows, or of columns, alone."""

    parametrization: _Parametrization | None = None
    lr: float | None = Field(None, ge=0)
    weight_decay: float | None = Field(None, ge=0)
    init: float | None = Field(None, gt=0)
    # Of the one number that or, er and product set apart; as the vector's where not given.
    magnitude_lr: float | None = Field(None, ge=0)
    magnitude_weight_decay: float | None = Field(None, ge=0)


class MultiplierRule(AxisRule):
    """Learnable multipliers of one address; unset fields come from earlier rules or defaults.

    What stands under ``row`` or ``column`` is for that axis alone, in place of what the same rule
    says of both. A later rule that speaks of both speaks of that axis too.
    """

    kind: Literal["none", "scalar", "row", "column", "row_column"] | None = None
    row: AxisRule | None = None
    column: AxisRule | None = None

    @model_validator(mode="after")
    def _axes_are_there(self) -> MultiplierRule:
        for axis in ("row", "column"):
            if self.kind and getattr(self, axis) is not None and axis not in AXES[self.kind]:
                raise ValueError(f"kind = {self.kind} has no {axis} multipliers; drop {axis}")
        return self


class MultiplierDefaults(Strict):
    """What a multiplier gets where its rule says nothing; rows and columns may differ."""

    parametrization: _Parametrization = "direct"
    lr: float = Field(LR, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    init: float = Field(1.0, gt=0)
    magnitude_lr: float | None = Field(None, ge=0)
    magnitude_weight_decay: float | None = Field(None, ge=0)
    row: AxisRule | None = None
    column: AxisRule | None = None


_Exponent = Annotated[float, Field(ge=-4, le=4)] | None


class WidthExponent(Strict):
    """Powers of ``hidden_size / base_width`` that multiply the named quantity."""

    lr: _Exponent = None
    weight_decay: _Exponent = None
    forward: _Exponent = None
    init: _Exponent = None


class Rule(Strict):
    """One entry of the ordered list; the last match wins, field by field."""

    match: str
    # A rule of a preset may speak of addresses that this model does not have.
    optional: bool = False
    lr: float | None = Field(None, ge=0)
    lr_scale: float | None = Field(None, gt=0)
    weight_decay: float | None = Field(None, ge=0)
    wd_scale: float | None = Field(None, ge=0)
    # S of the paper: LR times S, weight decay over S, so that their product stays.
    relative_scale: float | None = Field(None, gt=0)
    # With relative_scale: start at S times the values and divide the output by S, which
    # reproduces S = 1 step by step for a scale-free optimizer (all but sgd).
    compensate: bool | None = None
    forward: float | None = Field(None, gt=0)
    forward_scale: float | None = Field(None, gt=0)
    init_scale: float | None = Field(None, ge=0)
    # Initial values that are drawn are drawn by this number in place of the run's seed.
    init_seed: int | None = Field(None, ge=0, le=1 << 31)
    width_exponent: WidthExponent | None = None
    weight: Literal["frozen", "scalar", "vector"] | None = None
    # Of the tensor itself. Without one Muon, if it is the run's optimizer, takes hidden matrices.
    optimizer: OptimizerKind | None = None
    # Of sgd, sign, normalized and per_token; without one ``optimizer.momentum``.
    momentum: float | None = Field(None, ge=0, le=0.999)
    # Of sign and per_token on a matrix: "seen" moves only rows that have a gradient in that step,
    # and "all" each row as far as any other, for as long as its momentum remembers a gradient.
    rows: Literal["all", "seen"] | None = None
    multiplier: MultiplierRule | None = None


class Settings(Strict):
    """Everything that changes the mathematics of one run, but its seed and corpus."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    probes: ProbeConfig = ProbeConfig()
    multipliers: MultiplierDefaults = MultiplierDefaults()
    base_width: int = Field(1024, ge=1, le=1 << 20)
    rules: tuple[Rule, ...] = ()
    # What a run of ``lrm.plan.run:TheoryRun`` simulates; others have none.
    theory: Theory | None = None

    @property
    def base_lr(self) -> float:
        """The LR of a run of this length: ``lr · (lr_tuned_at / train.steps) ** lr_power``."""
        given = self.optimizer
        if given.lr_tuned_at is None:
            return given.lr
        return given.lr * (given.lr_tuned_at / self.train.steps) ** given.lr_power

    @model_validator(mode="after")
    def _a_power_is_of_a_length(self) -> Settings:
        if self.optimizer.lr_power and self.optimizer.lr_tuned_at is None:
            raise ValueError(
                "optimizer.lr_power needs the number of steps that the LR was tuned at; set "
                "optimizer.lr_tuned_at, or take lr_power out"
            )
        return self

    @model_validator(mode="after")
    def _theory_is_of_this_model(self) -> Settings:
        wanted = self.theory and self.theory.mixer
        if wanted and wanted not in [mixer.name for mixer in self.model.mixers]:
            raise ValueError(
                f"theory.simulate = {self.theory.simulate} is about a model with mixer {wanted}, "
                f"and model.mixer is {self.model.mixer}; write use: [{wanted}/$scale]"
            )
        return self

    @model_validator(mode="after")
    def _stages_fit(self) -> Settings:
        ramp = self.schedule.warmup_steps + self.schedule.decay_steps
        if ramp > self.train.steps:
            raise ValueError(
                f"schedule.warmup_steps + schedule.decay_steps = {ramp} exceed "
                f"train.steps = {self.train.steps}"
            )
        if self.train.snapshots > self.train.steps - self.train.snapshots_after:
            raise ValueError(
                f"train.snapshots = {self.train.snapshots} are more than the steps after "
                f"train.snapshots_after = {self.train.snapshots_after}"
            )
        if self.probes.sequences > self.train.validation_sequences:
            raise ValueError(
                f"probes.sequences = {self.probes.sequences} are more than "
                f"train.validation_sequences = {self.train.validation_sequences}"
            )
        for stage in self.schedule.batch_ramp:
            size = stage.fraction * self.train.batch_size
            if abs(size - round(size)) > 1e-6 or not round(size):
                raise ValueError(
                    f"schedule.batch_ramp: fraction = {stage.fraction:g} of train.batch_size = "
                    f"{self.train.batch_size} is no whole number of sequences"
                )
            if stage.until_step >= self.train.steps:
                raise ValueError(
                    f"schedule.batch_ramp: until_step = {stage.until_step} must be below "
                    f"train.steps = {self.train.steps}"
                )
        return self


class Parallel(Strict):
    """Processes that train one run: ``replicate`` copies of the model, in ``shard`` parts each."""

    replicate: int = Field(1, ge=1, le=1 << 16)
    shard: int = Field(1, ge=1, le=1 << 16)

    def check(self, processes: int) -> None:
        """Raise UserError where there are more processes, or fewer."""
        if self.replicate * self.shard != processes:
            raise UserError(
                f"execution.parallel asks for {self.replicate} × {self.shard} processes, and there "
                f"are {processes}; start as many by torchrun"
            )


class Execution(Strict):
    """What changes how a run is computed, not what; recorded, and kept on resume."""

    threads: int = Field(1, ge=1, le=256)
    # "auto": bfloat16 where the processor multiplies it natively, else float32.
    # float16 has no gradient scaler here: it shows what overflows at 65504.
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$")
    kernels: KernelConfig = KernelConfig()
    # Sequences that go through the model at a time, in each process; 0: all. Gradients add up.
    micro_batch: int = Field(0, ge=0)
    # Compiled layers; "auto": where a run is long enough and a compiler is there (CPU, Linux);
    # "graphs": on CUDA, and their kernels are launched as one (CUDA graphs).
    compile: Literal["auto", "always", "graphs", "never"] = "auto"
    checkpoint_every: int = Field(200, ge=1)
    # None: each process that trains a run together with others has all of the model.
    parallel: Parallel | None = None
    # Compute layers again in the backward pass; less memory for a third more time.
    recompute: bool = False
    # Runs of one shape that a process of a sweep trains at once, as one (``lrm.train.batched``); 1:
    # none. "auto": on a GPU as many as fit, up to 16; on CPUs none (see ``lrm.sweep.together``).
    batch_runs: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] = "auto"
    # Also show the logs in ``<run>/tensorboard/``; needs lrm-suite[tensorboard].
    tensorboard: bool = False

    @property
    def at_once(self) -> int:
        """Runs that a process trains at once where nobody looks for companions: ``auto`` is 1."""
        return 1 if self.batch_runs == "auto" else self.batch_runs

    @model_validator(mode="after")
    def _parts_are_not_compiled(self) -> Execution:
        if self.parallel is not None and self.compile in ("always", "graphs"):
            raise ValueError(f"compile = {self.compile}: layers in parts are not compiled; write "
                             "auto, or leave execution.parallel out")  # fmt: skip
        return self


def validate(cls: type[Strict], data: Any, place: str) -> Any:
    """Build ``cls`` from plain YAML data.

    Raises UserError with one line that names ``place``, the key and the remedy.
    """
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        raise UserError(_one_line(cls, error, place)) from None


_TAG = re.compile(r"literal\[|constrained-|function-")


def _one_line(cls: type[Strict], error: ValidationError, place: str) -> str:
    first = max(error.errors(), key=_aptness)
    # Pydantic's names of alternatives that are no classes are left out.
    parts = [str(part) for part in first["loc"]]
    where = ".".join(part for part in parts if not _TAG.match(part)) or "the settings"
    value = first.get("input")
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(first["loc"][-1]), _keys(cls, first["loc"][:-1]), 1)
        return f"{place}: unknown key {shown(where, quoted=False)}" + (
            f"; did you mean {near[0]}?" if near else "; remove it"
        )
    if first["type"] == "missing":
        return f"{place}: {where} is missing; add it"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "tuple_type":
        like = shown(value, quoted=False) if isinstance(value, (str, int, float)) else "a, b"
        message = f"{shown(value)} is no list; write a list such as [{like}]"
    elif isinstance(value, str) and _is_number(value):
        right = _yaml_float(value) if math.isfinite(float(value)) else "one that is finite"
        message = f"{shown(value)} is text, not a number; write {right}"
    elif isinstance(value, (str, int, float, bool)):
        message = f"{message} (it is {shown(value)})"
    return f"{place}: {where}: {message}"


def _aptness(error: ErrorDetails) -> tuple[bool, int, bool]:
    """Unions report each alternative: greatest is the one that speaks of what the user wrote.

    That is the deepest, and of one word or a number the word where a word was written.
    """
    of_words = error["type"] == "literal_error"
    depth = len(error["loc"])
    return error["type"] == "extra_forbidden", depth, of_words == isinstance(error["input"], str)


def _keys(cls: type[Strict], path: tuple) -> list[str]:
    for part in path:
        field = cls.model_fields.get(part) if isinstance(part, str) else None
        if field is None:
            continue
        for option in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(option, type) and issubclass(option, BaseModel):
                cls = option
    return list(cls.model_fields)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _yaml_float(text: str) -> str:
    mantissa, mark, exponent = text.lower().partition("e")
    if mark and "." not in mantissa:
        mantissa += ".0"
    sign = "" if not mark or exponent[:1] in "+-" else "+"
    return mantissa + mark + sign + exponent
