"""What ``make gpu`` does, part by part, as lists of items that are taken one by one. No torch here.

An item is done when the record holds it, so that a part that was stopped goes on with the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lrm.bench.gpu.plan import GpuPlan
from lrm.model.config import KernelConfig


@dataclass(frozen=True)
class Item:
    """One measurement: the ``method`` of the worker that takes it, and its arguments.

    ``goes_on``: what was stopped is not lost, and the next call goes on from there. ``noted``
    stands beside what was found.
    """

    name: str
    method: str
    arguments: dict[str, Any] = field(default_factory=dict)
    goes_on: bool = False
    noted: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """A part of the day; ``said`` tells people what it is."""

    said: str
    items: Callable[[GpuPlan], list[Item]]


def _tests(plan: GpuPlan) -> list[Item]:
    return [Item(path, "tests", {"path": path}) for path in plan.measure.tests]


def _parity(plan: GpuPlan) -> list[Item]:
    """Every operation at the shapes of each scale, and then whole models."""
    found = []
    for scale in plan.measure.parity:
        found += [
            Item(f"{kernel}, {scale}", "parity", {"kernel": kernel, "scale": scale})
            for kernel in (*KernelConfig.model_fields, "norm", "rotation", "cross-entropy")
        ]
        found += [
            Item(f"model, {scale}, {variant}", "whole_model", {"variant": variant, "scale": scale})
            for variant in ("parity float32", "parity", "parity compiled")
        ]
    return found


def _speed(plan: GpuPlan) -> list[Item]:
    found = []
    for timed in plan.measure.speed:
        name = f"{timed.variant}, whole logits" if timed.whole_logits else timed.variant
        arguments = {"variant": timed.variant, "whole_logits": timed.whole_logits}
        found.append(Item(name, "speed", arguments))
    return found


def _shapes(plan: GpuPlan) -> list[Item]:
    """The longest first, with growing batches."""
    found = []
    for shapes in plan.measure.shapes:
        for length in sorted(shapes.length, reverse=True):
            for batch in sorted(shapes.batch):
                overrides = [f"train.batch_size={batch}", f"train.sequence_length={length}"]
                arguments = {"variant": shapes.variant, "overrides": overrides}
                found.append(Item(f"{shapes.variant}, {batch} × {length}", "speed", arguments))
    return found


def _profile(plan: GpuPlan) -> list[Item]:
    return [Item(name, "profile", {"variant": name}) for name in plan.measure.profile]


def _overhead(plan: GpuPlan) -> list[Item]:
    """Group by group, so that time may end between comparisons; of a group, round by round.

    The first variant of a group is what the others are set ``over``.
    """
    overhead = plan.measure.overhead
    return [
        Item(f"{group}, {variant}, round {number}", "speed", {"variant": variant},
             noted={"over": variants[0]})
        for group, variants in overhead.of.items()
        for number in range(1, overhead.rounds + 1)
        for variant in variants
    ]  # fmt: skip


def _at_once(plan: GpuPlan) -> list[Item]:
    asked = plan.measure.at_once
    return [
        Item(f"{variant}, {runs} runs", "speed",
             {"variant": variant, "scale": asked.scale,
              "overrides": [f"execution.batch_runs={runs}"]})
        for variant in asked.variants
        for runs in sorted(asked.runs)
    ]  # fmt: skip


def _projector(plan: GpuPlan) -> list[Item]:
    return [
        Item(f"S = {S:g}", "projector", {"S": S}, goes_on=True) for S in plan.measure.projector.S
    ]


PARTS = {
    "tests": Part("the tests that need a GPU", _tests),
    "parity": Part("every kernel against float64 on the CPU, forward and backward", _parity),
    "speed": Part("tokens per second, utilisation and memory of each variant", _speed),
    "shapes": Part("the same over batches and lengths", _shapes),
    "profile": Part("where the step goes", _profile),
    "overhead": Part("what both implementations of multipliers cost", _overhead),
    "together": Part("runs of one small shape, trained at once", _at_once),
    "projector": Part("a seed of the projector's sweep", _projector),
}
