"""Where a training step's time goes: by parts of the model, and by torch's operations."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from lrm.bench.parts import Marks
from lrm.bench.throughput import random_batch, wait
from lrm.bench.trainers import SuiteTrainer
from lrm.plan.run import TrainRun
from lrm.train.device import equip

# Operations by what their name contains; the first that fits.
_KINDS = {
    "matrix products": ("mm", "matmul", "linear"),
    "attention": ("attention", "flash"),
    "convolution": ("conv",),
    "optimizer": ("_foreach", "_fused", "adam"),
    "compiled code": ("triton", "inductor", "cpp_fused", "CompiledFunction"),
    "copies and casts": (
        "copy",
        "::cat",
        "CatArray",
        "clone",
        "pad",
        "contiguous",
        "fill_",
        "zero_",
        "Mem",
    ),
}
_REST = "elementwise and sums"
# Operations that the record lists by name.
_MOST = 25


def of_step(run: TrainRun, steps: int, warmup: int) -> dict[str, Any]:
    """Profile ``steps`` steps of ``run`` on random tokens, after ``warmup`` others.

    ``step`` is the seconds of a step that nothing watches. ``parts`` has the seconds of each
    [part, direction] with the device waited for at each mark, and is left out for compiled layers,
    which have no parts. ``operations`` has [name, calls, seconds] of a step, the longest first,
    ``kinds`` their sums; ``busy`` is the share of a watched step in which the device had work.
    """
    equipment = equip(run.execution, run.settings.model)
    device = equipment.device
    torch.set_num_threads(run.execution.threads)
    trainer = SuiteTrainer(run, 0, equipment)
    batch = random_batch(run, device)

    def take(count: int) -> float:
        wait(device)
        began = time.perf_counter()
        for step in range(count):
            trainer.step(batch, step)
        wait(device)
        return (time.perf_counter() - began) / count

    take(max(warmup, 1))
    found: dict[str, Any] = {"device": device.type, "steps": steps, "step": take(steps)}
    if not trainer.is_compiled:
        with Marks(trainer.model, lambda: wait(device)) as marks:
            marks.enter("optimizer")
            found["step_with_marks"] = take(steps)
        found["parts"] = [[*key, seconds / steps] for key, seconds in marks.seconds().items()]
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        watched = take(steps)
    rows = _operations(profiler.key_averages(), cuda)
    kinds: Counter[str] = Counter()
    for name, _, seconds in rows:
        kinds[_kind(name)] += seconds / steps
    found["operations"] = [[name, n / steps, t / steps] for name, n, t in rows[:_MOST]]
    found["kinds"] = dict(kinds.most_common())
    return found | {"step_watched": watched, "busy": sum(kinds.values()) / watched}


def _operations(events: Any, cuda: bool) -> list[tuple[str, int, float]]:
    """(name, calls, seconds) of every operation, without those that it calls; the longest first.

    On a GPU the seconds of the kernels that it started.
    """
    on_cpu = torch.autograd.DeviceType.CPU
    rows = []
    for event in events:
        if event.device_type == on_cpu:
            time_in = event.self_device_time_total if cuda else event.self_cpu_time_total
            if time_in > 0:
                rows.append((event.key, event.count, 1e-6 * time_in))
    return sorted(rows, key=lambda row: -row[2])


def _kind(name: str) -> str:
    return next((kind for kind, words in _KINDS.items() if any(w in name for w in words)), _REST)
