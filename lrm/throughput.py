"""Speed of training steps on random tokens, for any settings and machine.

In Python, for Falcon-H1-0.5B on a GPU:

    from lrm.compose import load
    from lrm.throughput import throughput
    run = load(Path("experiments/projector/config.yaml")).runs("paper", [0])[0]
    print(throughput(run.settings, run.execution, peak_flops=989e12))  # an H100 in bfloat16
"""

from __future__ import annotations

import time
from typing import Any

import torch

from lrm import cost
from lrm.config import Execution, Settings
from lrm.machine import autocast, equip
from lrm.train import build, train_step


def throughput(
    settings: Settings,
    execution: Execution,
    steps: int = 20,
    warmup: int = 5,
    peak_flops: float | None = None,
) -> dict[str, Any]:
    """Train ``warmup + steps`` steps from a fresh start and time the last ``steps``.

    The model, multipliers, optimizer, micro-batches, precision and kernels are those of a run;
    data, probes, validation and checkpoints are left out. ``utilisation`` is the share of
    ``peak_flops`` (per second) that goes into ``lrm.cost.flops_per_token``; it is None without
    a peak, and ``peak_memory`` (bytes that torch held at once) is None off CUDA.

    Raises UserError where the execution asks for what is not usable here.
    """
    device, precision, kernels, line = equip(execution, settings.model)
    torch.set_num_threads(execution.threads)
    learner = build(settings, 0, device, kernels=kernels)
    context = autocast(device, precision)
    shape = (settings.train.batch_size, settings.train.sequence_length + 1)
    generator = torch.Generator().manual_seed(0)
    batch = torch.randint(settings.model.vocab_size, shape, generator=generator).to(device)
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    began = 0.0
    for step in range(warmup + steps):
        if step == warmup:
            _wait(device)
            began = time.perf_counter()
        at = step % settings.train.steps
        loss, _, _ = train_step(learner, batch, settings, at, context, execution.micro_batch)
    _wait(device)
    seconds = time.perf_counter() - began
    tokens_per_second = steps * settings.train.batch_size * settings.train.sequence_length / seconds
    flops = tokens_per_second * cost.flops_per_token(settings.model, settings.train.sequence_length)
    return {
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        "precision": precision,
        "kernels": kernels.record(),
        "note": line,
        "steps": steps,
        "seconds_per_step": seconds / steps,
        "tokens_per_second": tokens_per_second,
        "flops_per_second": flops,
        "utilisation": None if peak_flops is None else flops / peak_flops,
        "peak_memory": torch.cuda.max_memory_allocated(device) if cuda else None,
        "loss": loss.item(),
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
