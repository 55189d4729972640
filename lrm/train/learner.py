"""A model with its multipliers and optimizer, built from settings and a seed."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from lrm.errors import UserError, first_line
from lrm.model.gpu.adapters import PLAIN, Kernels
from lrm.model.init import named_generator
from lrm.multipliers.attach import Multipliers
from lrm.multipliers.sharding import reshard
from lrm.optim.groups import attach, entries, initial_model
from lrm.optim.optimizer import Optimizer
from lrm.plan.config import Parallel, Settings
from lrm.plan.rules import TensorPlan, resolve
from lrm.plan.run import BrownianRun, Run
from lrm.store.rundir import is_complete, read_file, read_outcome
from lrm.train import sharding
from lrm.train.distributed import ALONE, Group

# Fills tensors, by name, from a checkpoint.
Fill = Callable[[dict[str, Tensor]], None]


@dataclass
class Learner:
    """A model with its multipliers, optimizer and plans: everything that a step touches."""

    model: nn.Module
    multipliers: Multipliers
    optimizer: Optimizer
    plans: Sequence[TensorPlan]
    # What a training step calls: the model, or what averages its gradients over processes.
    call: nn.Module
    group: Group = ALONE

    @property
    def is_shared(self) -> bool:
        """Whether its parameters lie in parts on several processes."""
        return self.call is self.model and self.group.world > 1

    def join(self, group: Group, parallel: Parallel | None = None) -> None:
        """Train together with the other processes of ``group`` from now on.

        Each has all of the model, or its part of it where ``parallel`` asks for that.
        """
        self.group = group
        self.__dict__.pop("_parameters", None)
        if parallel is None or group.world == 1:
            self.call = group.wrap(self.model)
            return
        sharding.shard(self.model, self.multipliers, parallel)
        self.optimizer = self.optimizer.of(entries(self.model, self.plans, self.multipliers))

    def settle(self) -> None:
        """Behind a backward pass: gradients are those of the whole batch."""
        if self.is_shared:
            sharding.average_gradients(self.multipliers)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it, where its parameters lie whole."""
        # With a part torch would write all that it is a part of: the models of a whole batch.
        model = {name: _apart(value) for name, value in self.model.state_dict().items()}
        return {"model": model, **self.optimizer.state()}

    @torch.no_grad()
    def spread(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The same where they lie in parts: an outline, and by name the tensors that it lacks."""
        outline, tensors = self.optimizer.spread(self._names())
        return outline, self._model_tensors() | tensors

    def _model_tensors(self) -> dict[str, Tensor]:
        return {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}

    def _names(self) -> dict[Tensor, str]:
        reshard(self.model)  # behind a validation its parameters still are the gathered ones
        return {parameter: name for name, parameter in self.model.named_parameters()}

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self._parameters:
            parameter.grad = None
        self.optimizer.zero_grad()

    @functools.cached_property
    def _parameters(self) -> list[nn.Parameter]:
        # Walking through the modules for them takes 2% of a small model's step.
        return list(self.model.parameters())

    @torch.no_grad()
    def load(self, state: dict[str, Any], fill: Fill | None = None) -> None:
        """Take the state of a checkpoint, whether ``state`` or the outline of ``spread`` is in it.

        ``fill`` reads the tensors that an outline lacks, whatever part of each lies here; what
        ``state`` gave needs none.
        """
        if "model" not in state:
            names = self._names()
            tensors = self.optimizer.blank(state, names)
            fill(self._model_tensors() | tensors)
            self.optimizer.load_spread(state, tensors, names)
            return
        if self.is_shared:
            sharding.load_whole(self.model, state["model"])
        else:
            self.model.load_state_dict(state["model"])
        self.optimizer.load({name: state[name] for name in self.optimizer.parts})


def _apart(value: Any) -> Any:
    """``value``; a copy of a tensor that shares its memory with others."""
    if isinstance(value, Tensor) and value.untyped_storage().nbytes() > value.nbytes:
        return value.clone()
    return value


def build(
    settings: Settings,
    seed: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    kernels: Kernels = PLAIN,
    plans: Sequence[TensorPlan] | None = None,
) -> Learner:
    """Model, multipliers and optimizer of one run, freshly initialised from ``seed``.

    ``plans`` are those that the run carries; without a run they are resolved here. Raises UserError
    where the rules do not fit the model.
    """
    plans = resolve(settings) if plans is None else plans
    model = initial_model(settings, seed, plans, device, dtype, kernels)
    multipliers = attach(model, plans, settings.train.multiplier_implementation)
    if settings.train.start is not None and torch.device(device).type != "meta":
        _make_up_for(multipliers)
    found = entries(model, plans, multipliers)
    optimizer = Optimizer(found, settings.optimizer, settings.train)
    return Learner(model, multipliers, optimizer, plans, model)


@torch.no_grad()
def _make_up_for(multipliers: Multipliers) -> None:
    """Divide weights by where their multipliers begin, so that the model computes the same."""
    for name, weight in multipliers.weights.items():
        weight.div_(multipliers.effective[name].write(torch.ones_like(weight)))


def begin_with_predecessor(multipliers: Multipliers, run: Run, path: Path) -> None:
    """Set multipliers to those with which ``run.after``, which lies in ``path``, ended.

    Raises UserError where that run is not finished or cannot be read, or lacks a multiplier.
    """
    noise = isinstance(run.after, BrownianRun)
    begin_with(multipliers, _read_multipliers(path, run, noise), noise)


def _read_multipliers(path: Path, run: Run, noise: bool) -> dict[str, Tensor]:
    """By key and axis; of ``noise`` what is kept of its draws."""
    if not is_complete(path):
        raise UserError(
            f"{run.label} begins with the multipliers of {run.after.label}, which is not "
            "finished; run that too (without --only)"
        )
    if "diverged" in read_outcome(path):
        raise UserError(
            f"{run.label} begins with the multipliers of {run.after.label}, which diverged: that "
            "is its result, and it keeps none; leave this run out"
        )
    name = "vectors.parquet" if noise else "weights.pt"
    content = io.BytesIO(read_file(path, name))
    try:
        if not noise:
            return torch.load(content, weights_only=True, map_location="cpu")
        rows = pd.read_parquet(content)
    except Exception as error:  # a damaged file raises whatever its reader likes
        raise UserError(
            f"{run.label} begins with the multipliers in {path / name}, which cannot be read "
            f"({first_line(error)}); remove {path} and run again"
        ) from None
    rows = rows[(rows["stat"] == "values") & (rows["step"] == rows["step"].max())]
    return {key: torch.tensor(v) for key, v in zip(rows["tensor"], rows["value"], strict=True)}


@torch.no_grad()
def begin_with(multipliers: Multipliers, values: dict[str, Tensor], noise: bool) -> None:
    """Set multipliers' parameters to ``values``.

    Those of noise are the multipliers themselves, not what their parametrization learns. The RMS of
    all that are kept is made 1, so that they differ from none in spread and hardly in level. Where
    fewer are kept than a multiplier has entries, they are drawn from those: entries of such a walk
    are alike and independent. Raises UserError where one is missing.
    """
    for name, multiplier, parameter in multipliers.named():
        key, axis, size = name.rpartition(".")[0], multiplier.axis, parameter.numel()
        if name not in values:
            raise UserError(f"the run to begin with has no {axis} multiplier of {key}")
        value = values[name].flatten()
        if noise:
            value = value / value.square().mean().sqrt()
            if len(value) < size:
                generator = named_generator(0, name)
                value = value[torch.randint(len(value), (size,), generator=generator)]
            value = multiplier.parametrization.raw(value)
        elif len(value) != size:
            raise UserError(
                f"the run to begin with has {len(value)} {axis} multipliers of {key}, not {size}"
            )
        parameter.copy_(value[:size].view_as(parameter))
