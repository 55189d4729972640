"""A Gated Delta Network that takes a few steps, and whose activations keep their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lrm import data
from lrm.errors import UserError
from lrm.model.activations import WithGradients
from lrm.model.blocks.gdn_module import GatedDeltaNetModule
from lrm.noise.tensor import seed_of
from lrm.optim.groups import attach, entries, initial_model
from lrm.optim.optimizer import Optimizer
from lrm.plan.run import TheoryRun
from lrm.plan.schedule import lr_factor


@dataclass(frozen=True)
class Network:
    """A model of ``run`` as ``draw`` begins it, its optimizer, and the batch of each step."""

    run: TheoryRun
    model: nn.Module
    optimizer: Optimizer
    batch: Callable[[int], Tensor]

    @classmethod
    def begin(
        cls, run: TheoryRun, batches: data.Batches, draw: int, dtype: torch.dtype = torch.float32
    ) -> Network:
        """Draws of one seed have other initial values, and batches that follow each other.

        Neither depends on the width: what has one number for each head begins alike. Raises
        UserError where a tensor is frozen or has multipliers.
        """
        settings, train = run.settings, run.settings.train
        for plan in run.plans:
            if not plan.trainable or plan.multipliers:
                raise UserError(
                    f"theory.simulate = {settings.theory.simulate}: every tensor learns and none "
                    f"has multipliers; take the rule for {plan.address.name} out"
                )
        seed = seed_of(run.seed, f"gated_delta/{draw}")
        model = initial_model(settings, seed, run.plans, dtype=dtype)
        multipliers = attach(model, run.plans, train.multiplier_implementation)
        optimizer = Optimizer(entries(model, run.plans, multipliers), settings.optimizer, train)

        def batch(step: int) -> Tensor:
            return torch.from_numpy(batches.batch(draw * train.steps + step))

        return cls(run, model, optimizer, batch)

    @property
    def mixers(self) -> list[GatedDeltaNetModule]:
        """By layer."""
        return [each for each in self.model.modules() if isinstance(each, GatedDeltaNetModule)]

    def gradients(self, step: int) -> tuple[Tensor, WithGradients]:
        """Leave those of the batch of ``step`` in all parameters; (loss, activations)."""
        self.optimizer.zero_grad()
        found, batch = WithGradients(), self.batch(step)
        z_loss = self.run.settings.train.z_loss
        loss, objective = self.model(batch[:, :-1], batch[:, 1:], z_loss, found)
        objective.backward()
        return loss.detach(), found

    def move(self, step: int) -> None:
        """Update by the gradients that are there."""
        settings = self.run.settings
        self.optimizer.step(lr_factor(settings.schedule, settings.train.steps, step))


def rms(tensor: Tensor) -> float:
    """Root mean square of all entries."""
    return float(tensor.detach().double().square().mean().sqrt())
