"""What ``run.json`` says of a training: the run, what it computes with, and where."""

from __future__ import annotations

from typing import Any

import torch

from lrm.plan.rules import table
from lrm.plan.run import TrainRun
from lrm.plan.timescales import products
from lrm.train import compiled
from lrm.train.device import Equipment, environment
from lrm.train.learner import Learner


def describe(
    run: TrainRun, learner: Learner, corpus, equipment: Equipment, code: compiled.Code,
    beside: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """The content of ``run.json``; ``beside`` is how many runs are trained at once."""
    return {
        **run.describe(),
        "corpus": {"hash": corpus.hash, "name": corpus.name, **corpus.meta},
        "rules": table(learner.plans, run.settings),
        "groups": learner.optimizer.table(),
        "products": products(learner.plans, run.settings),
        "execution": {
            "device": equipment.device.type,
            "precision": equipment.precision,
            "kernels": equipment.kernels.record(),
            "compiled": code.compiled,
            "threads": run.execution.threads,
            "micro_batch": run.execution.micro_batch,
            "torch": torch.__version__,
        },
        # Not part of the way of computing: it may change on resume.
        "environment": {
            **environment(),
            "processes": learner.group.world,
            "runs_at_once": beside,
            "compiled_anew": code.made,
        },
    }
