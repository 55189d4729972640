"""The sides of the benchmark: this suite's own step, that of several runs at once, and a plain loop
over transformers'.

The one place that knows how a training step is taken.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from lrm.errors import UserError
from lrm.model.gpu.adapters import PLAIN
from lrm.model.transformers import to_transformers
from lrm.plan.run import TrainRun
from lrm.plan.schedule import lr_factor
from lrm.sweep.together import obstacle
from lrm.train import compilation, compiled
from lrm.train.batched import Batch
from lrm.train.device import Equipment
from lrm.train.learner import build
from lrm.train.sharding import recompute
from lrm.train.step import train_step


class SuiteTrainer:
    """This suite, by the same calls as the training loop's."""

    def __init__(self, run: TrainRun, seed: int, equipment: Equipment):
        self.settings, self.micro_batch = run.settings, run.execution.micro_batch
        self.autocast = equipment.autocast
        self.learner = build(self.settings, seed, equipment.device, kernels=equipment.kernels,
                             plans=run.plans)  # fmt: skip
        self.model = self.learner.model
        if run.execution.recompute:
            recompute(self.model.model.layers)
        self.is_compiled = compilation.compile_layers(self.learner, run, equipment).compiled

    def step(self, batch: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """One update on ``batch`` (sequences, length + 1); what ``train_step`` returns."""
        return train_step(self.learner, batch, self.settings, step, self.autocast, self.micro_batch)


class BatchTrainer:
    """This suite with as many runs at once as ``execution.batch_runs`` says: seeds from ``seed``.

    ``step`` takes batches (runs, sequences, length + 1) and returns what each run measured. Raises
    UserError where a sweep would train these one by one.
    """

    def __init__(self, run: TrainRun, seed: int, equipment: Equipment):
        if (why := obstacle(run)) is not None:
            raise UserError(f"execution.batch_runs: {why}; leave it out")
        if equipment.kernels != PLAIN:
            raise UserError("execution.batch_runs is not for GPU kernels; set execution.kernels")
        self.autocast, self.count = equipment.autocast, run.execution.at_once
        learners = [
            build(run.settings, seed + number, equipment.device, plans=run.plans)
            for number in range(self.count)
        ]
        self.model = learners[0].model
        self.batch = Batch(learners, self.count * [run.settings])
        runs = self.count * [run]
        self.is_compiled = compilation.compile_stack(self.batch, runs, equipment).compiled

    def step(self, batches: Tensor, step: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """One update of every run."""
        return self.batch.step(batches, step, self.count * [True], self.autocast)


class TransformersTrainer:
    """transformers' ``FalconH1ForCausalLM`` from the same initial weights, in a plain loop.

    The same parameter groups, clipping and schedule; fused AdamW; its own loss. Its layers are
    compiled as this suite's are where the run says ``always``.
    """

    def __init__(self, run: TrainRun, seed: int, equipment: Equipment, attention: str = "eager"):
        self.settings, self.autocast = run.settings, equipment.autocast
        self.model = to_transformers(build(self.settings, seed, plans=run.plans).model).train()
        self.model.set_attn_implementation(attention)
        settings = {plan.address.parameter: (plan.lr, plan.weight_decay) for plan in run.plans}
        groups: dict[tuple[float, float], list[Tensor]] = {}
        for name, parameter in self.model.named_parameters():
            groups.setdefault(settings[name], []).append(parameter)
        optimizer = self.settings.optimizer
        self.optimizer = torch.optim.AdamW(
            [
                {"params": parameters, "lr": lr, "initial_lr": lr, "weight_decay": weight_decay}
                for (lr, weight_decay), parameters in groups.items()
            ],
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            fused=True,
        )
        self.parameters = list(self.model.parameters())
        choice = run.execution.compile
        if choice in ("always", "graphs"):
            shape = (self.settings.train.batch_size, self.settings.train.sequence_length + 1)
            tokens = torch.zeros(shape, dtype=torch.int64)
            layers = self.model.model.layers
            compiled.compile_layers(layers, lambda: self.add_gradients(tokens), choice)

    def add_gradients(self, batch: Tensor) -> Tensor:
        """The gradients of ``batch`` (sequences, length + 1); its cross-entropy."""
        targets = batch[:, 1:].contiguous()
        self.optimizer.zero_grad(set_to_none=True)
        compiled.begin_step()
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
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        self.optimizer.step()
        return loss, norm, norm > clip_norm
