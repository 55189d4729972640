"""Memory of one process that trains a run, alone or with others, before it runs. No torch here.

Counted from the shapes of all tensors; fragmentation and the library's own memory come on top. So
does the copy from which a model in parts writes its checkpoints: weights and the optimizer's state,
in the memory of the host, for as long as that takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from lrm.plan.run import TrainRun

_FLOAT = 4  # bytes; weights, gradients and the optimizer's state are float32


@dataclass(frozen=True)
class Memory:
    """Bytes of one process.

    ``state`` holds weights, gradients and the optimizer's state. ``gathered`` is the largest part
    of the model while it is whole: its weights, their copy in the precision that computes, and
    their gradients. In half precision a copy of all weights stays until the backward pass. For the
    backward pass ``entering`` keeps what enters each layer, and ``within`` what its matrices take
    and give. ``copy`` is what the first process needs more: the weights and gradients of the whole
    copy on which a model in parts is measured.
    """

    state: int
    gathered: int
    entering: int
    within: int
    copy: int

    @property
    def total(self) -> int:
        """Of every process; the first needs ``copy`` more."""
        return self.state + self.gathered + self.entering + self.within

    @property
    def least(self) -> int:
        """Without which the run cannot be, however it is computed."""
        return self.state + self.entering


def of_process(run: TrainRun, processes: int = 1) -> Memory:
    """What a process of ``run.execution.parallel`` needs; where that is None one of ``processes``.

    Each of those has all of the model and its share of the batch.
    """
    parallel, parts, entries = run.execution.parallel, 1, 0
    if parallel is not None:
        parts, processes = parallel.shard, parallel.replicate * parallel.shard
    half = run.execution.precision != "float32"
    state, layers, outside, kept, copy = 0, {}, 0, {}, 0
    for plan in run.plans:
        size, layer = plan.address.size, plan.address.layer
        # Weights, and of what learns gradients with two moments (AdamW), one, or none (SGD).
        moments = 2 if plan.optimizer == "adamw" else int(dict(plan.options).get("momentum") != 0)
        copies = 1 + plan.trainable * (1 + moments)
        state += copies * _FLOAT * size
        entries += size
        multipliers = sum(each.size for each in plan.multipliers)
        state += 4 * _FLOAT * multipliers * parts  # they lie whole on each process
        copy += _FLOAT * ((1 + plan.trainable) * size + multipliers)
        if layer is None:
            outside += size
        else:
            layers[layer] = layers.get(layer, 0) + size
            if plan.address.role == "matrix":
                kept[layer] = kept.get(layer, 0) + plan.address.share * sum(plan.address.shape)
    train, model = run.settings.train, run.settings.model
    rows = run.execution.micro_batch or -(-train.batch_size // processes)
    tokens = rows * train.sequence_length
    width = 2 if half else _FLOAT
    entering = tokens * model.hidden_size * _FLOAT
    inside = [tokens * numbers * width for numbers in kept.values()]
    within = max(inside) if run.execution.recompute else sum(inside)
    largest = max([outside, *layers.values()])
    gathered = largest * (2 * _FLOAT + 2 * half) if parts > 1 else largest * 2 * half
    if parts > 1 and half:  # autocast's casts of all weights stay until they were used backwards
        gathered += 2 * entries
    copy = copy if parallel is not None and processes > 1 else 0
    return Memory(state // parts, gathered, entering * len(layers), within, copy)
