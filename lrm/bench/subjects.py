"""The two sides of the benchmark: this suite's own step, and a plain loop over transformers'.

The one place that knows how a training step is taken.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from lrm import hub, train
from lrm.bench.plan import Candidate
from lrm.rules import resolve
from lrm.schedule import lr_factor

DEVICE = "cpu"


class Suite:
    """This suite, by the same two calls as the training loop's."""

    def __init__(self, candidate: Candidate, seed: int, autocast: Any):
        self.settings, self.execution = candidate.run.settings, candidate.run.execution
        self.autocast = autocast
        self.learner = train.build(self.settings, seed, DEVICE)
        self.model = self.learner.model
        if self.execution.compile == "always":
            torch._dynamo.reset()  # variants of one configuration follow each other
            rows = self.execution.micro_batch or self.settings.train.batch_size
            train.compile_layers(self.learner, self.settings, rows, autocast, required=True)

    def step(self, batch: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """One update on ``batch`` (sequences, length + 1); cross-entropy and gradient norm."""
        loss, norm, _ = train.train_step(
            self.learner, batch, self.settings, step, self.autocast, self.execution.micro_batch
        )
        return loss, norm


class Peer:
    """transformers' ``FalconH1ForCausalLM`` from the same initial weights, in a plain loop.

    The same parameter groups, clipping and schedule; fused AdamW; its own loss.
    """

    def __init__(self, candidate: Candidate, seed: int, autocast: Any):
        self.settings = candidate.run.settings
        self.autocast = autocast
        self.model = hub.to_transformers(train.build(self.settings, seed, DEVICE).model).train()
        self.model.set_attn_implementation(candidate.attention)
        parameters = dict(self.model.named_parameters())
        said = {
            plan.address.parameter: (plan.lr, plan.weight_decay) for plan in resolve(self.settings)
        }
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

    def step(self, batch: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """One update on ``batch`` (sequences, length + 1); cross-entropy and gradient norm."""
        targets = batch[:, 1:].contiguous()
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast or contextlib.nullcontext():
            # Already shifted, so that both sides have a target for every position.
            loss = self.model(
                input_ids=batch[:, :-1], labels=targets, shift_labels=targets, use_cache=False
            ).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(
            self.parameters, self.settings.train.clip_norm or float("inf")
        )
        factor = lr_factor(self.settings.schedule, self.settings.train.steps, step)
        for group, lr in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = lr * factor
        self.optimizer.step()
        return loss.detach(), norm


SUBJECTS = {"suite": Suite, "transformers": Peer}
