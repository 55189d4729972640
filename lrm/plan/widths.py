"""Another width of a model, and stages that keep their shares of the steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from lrm.errors import UserError
from lrm.model import blocks
from lrm.model.blocks.block import Block, Mixer
from lrm.model.config import Strict
from lrm.plan.yaml import merge

_STAGES = ("warmup_steps", "decay_steps", "minimum_steps", "batch_ramp")


class Width(Strict):
    """Another width of the model that the settings state: all sizes grow in proportion.

    ``base_width`` stays, so that ``width_exponent`` of rules speaks of the ratio. The number of
    steps, and with it every stage, grows by the ratio to the power of ``steps_exponent``: where
    η ∝ 1/d, as many times e of forgetting take d times the steps.
    """

    hidden_size: int = Field(ge=1)
    steps_exponent: float = Field(0.0, ge=-2, le=2)


def at_width(merged: dict[str, Any], width: Width, where: str) -> dict[str, Any]:
    """The settings with the model made as wide as ``width`` asks for.

    Raises UserError where ``model.hidden_size`` is not stated, and where a size would be none.
    """
    model = merged.get("model", {})
    stated = model.get("hidden_size")
    if not isinstance(stated, int) or stated < 1:
        raise UserError(f"{where}: state model.hidden_size too, and all sizes at that width")
    wider, there = merged, _there(model)
    for block, path, size in _growing(model):
        grown, rest = divmod(size * width.hidden_size, stated)
        if (rest or not grown) and block not in there:
            continue  # it says nothing; but where it can it grows, since ids of runs hold it
        if rest or not grown:
            raise UserError(
                f"{where}: hidden_size {width.hidden_size} makes {'.'.join(path)} "
                f"{size * width.hidden_size / stated:g}; it is {size} at "
                f"{stated}, so choose another width or other sizes"
            )
        for name in reversed(path):
            grown = {name: grown}
        wider = merge(wider, {"model": grown})
    steps = merged.get("train", {}).get("steps")
    if isinstance(steps, int) and width.steps_exponent:
        longer = round(steps * (width.hidden_size / stated) ** width.steps_exponent)
        wider = keep_stages(merged, merge(wider, {"train": {"steps": longer}}), {})
    return wider


def _there(model: dict[str, Any]) -> list[Block]:
    """The blocks of such a model; all, where its mixer is not known, which validation tells."""
    try:
        return blocks.every(blocks.named(model.get("mixer", "both")))
    except (AttributeError, ValueError):
        return blocks.every()


def _growing(model: dict[str, Any]) -> Iterator[tuple[Block, tuple[str, ...], int]]:
    """The stated sizes that grow with the width: the block that declares each, where it stands.

    Those of one head, one state and the vocabulary do not grow.
    """
    for block in blocks.every():
        for name in block.widths:
            own = isinstance(block, Mixer) and name in block.sizes
            path = ("mixer_sizes", block.name, name) if own else tuple(name.split("."))
            size: Any = model
            for key in path:
                size = size.get(key) if isinstance(size, dict) else None
            if isinstance(size, int):
                yield block, path, size


def keep_stages(
    planned: dict[str, Any], merged: dict[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """An overridden train.steps keeps the stages' shares, unless one is overridden too.

    ``given`` are the overrides alone: one that repeats what was planned is meant, too.
    """
    steps, before = (m.get("train", {}).get("steps") for m in (merged, planned))
    if steps == before or any(_has(given, "schedule", name) for name in _STAGES):
        return merged
    stages = {name: planned.get("schedule", {}).get(name) for name in _STAGES}
    if not all(isinstance(n, int) and n > 0 for n in (steps, before)):
        return merged

    def scaled(step: int) -> int:
        return round(step * steps / before)

    # What is of a wrong type is left to the validation. The steps at which stages begin and end
    # are rounded, not their lengths, which might add up to more than there are.
    shares: dict[str, Any] = {}
    warmup, decay, minimum, ramp = (stages[name] for name in _STAGES)
    if isinstance(warmup, int):
        shares["warmup_steps"] = scaled(warmup)
    if isinstance(decay, int):
        shares["decay_steps"] = steps - scaled(before - decay)
    if isinstance(minimum, int):
        shares["minimum_steps"] = steps - scaled(before - minimum)
    if isinstance(ramp, list) and all(isinstance(_until_step(stage), int) for stage in ramp):
        # A stage that would last no step goes.
        ends = {scaled(_until_step(stage)): stage for stage in reversed(ramp)}
        shares["batch_ramp"] = [
            {**ends[end], "until_step": end} for end in sorted(ends) if 0 < end < steps
        ]
    after = planned.get("train", {}).get("snapshots_after")
    is_kept = isinstance(after, int) and not _has(given, "train", "snapshots_after")

    longer = {"snapshots_after": scaled(after)} if is_kept else {}
    return merge(merged, {"schedule": shares, "train": longer})


def _has(given: dict[str, Any], section: str, name: str) -> bool:
    return isinstance(given.get(section), dict) and name in given[section]


def _until_step(stage: Any) -> Any:
    return stage.get("until_step") if isinstance(stage, dict) else None
