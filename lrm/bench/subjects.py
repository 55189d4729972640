"""The two sides of the benchmark: this suite's own step, and a plain loop over transformers'.

The one place that knows how a training step is taken.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from lrm.bench.plan import Candidate
from lrm.model.transformers import to_transformers
from lrm.plan.schedule import lr_factor
from lrm.train import compiled, loop
from lrm.train.device import Equipment
from lrm.train.learner import build
from lrm.train.step import train_step


class Suite:
    """This suite, by the same calls as the training loop's."""

    def __init__(self, candidate: Candidate, seed: int, equipment: Equipment):
        self.settings, self.execution = candidate.run.settings, candidate.run.execution
        self.autocast = equipment.autocast
        self.learner = build(self.settings, seed, equipment.device, plans=candidate.run.plans)
        self.model = self.learner.model
        loop.compile_layers(self.learner, candidate.run, equipment)

    def step(self, batch: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """One update on ``batch`` (sequences, length + 1); what ``train_step`` returns."""
        return train_step(
            self.learner, batch, self.settings, step, self.autocast, self.execution.micro_batch
        )


class Peer:
    """transformers' ``FalconH1ForCausalLM`` from the same initial weights, in a plain loop.

    The same parameter groups, clipping and schedule; fused AdamW; its own loss. Its layers are
    compiled as this suite's are where the candidate says ``always``.
    """

    def __init__(self, candidate: Candidate, seed: int, equipment: Equipment):
        self.settings = candidate.run.settings
        self.autocast = equipment.autocast
        plans = candidate.run.plans
        self.model = to_transformers(build(self.settings, seed, plans=plans).model).train()
        self.model.set_attn_implementation(candidate.attention)
        parameters = dict(self.model.named_parameters())
        said = {plan.address.parameter: (plan.lr, plan.weight_decay) for plan in plans}
        groups: dict[tuple[float, float], list[Tensor]] = {}
        for name, parameter in parameters.items():
            groups.setdefault(said[name], []).append(parameter)
        self.rates = [lr for lr, _ in groups]
        optimizer = self.settings.optimizer
        self.optimizer = torch.optim.AdamW(
            [
                {"params": members, "lr": lr, "weight_decay": decay}
                for (lr, decay), members in groups.items()
            ],
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            fused=True,
        )
        self.parameters = list(parameters.values())
        if candidate.run.execution.compile == "always":
            train_shape = self.settings.train
            rows = (train_shape.batch_size, train_shape.sequence_length + 1)
            tokens = torch.zeros(rows, dtype=torch.int64)
            layers = self.model.model.layers
            compiled.compile_layers(layers, lambda: self.add_gradients(tokens), required=True)

    def add_gradients(self, batch: Tensor) -> Tensor:
        """The gradients of ``batch`` (sequences, length + 1); its cross-entropy."""
        targets = batch[:, 1:].contiguous()
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast or contextlib.nullcontext():
            # Already shifted, so that both sides have a target for every position.
            loss = self.model(
                input_ids=batch[:, :-1], labels=targets, shift_labels=targets, use_cache=False
            ).loss
        loss.backward()
        return loss.detach()

    def step(self, batch: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """One update on ``batch`` (sequences, length + 1); the same of transformers' model."""
        loss = self.add_gradients(batch)
        clip_norm = self.settings.train.clip_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, clip_norm)
        factor = lr_factor(self.settings.schedule, self.settings.train.steps, step)
        for group, lr in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = lr * factor
        self.optimizer.step()
        return loss, norm, norm > clip_norm


SUBJECTS = {"suite": Suite, "transformers": Peer}
