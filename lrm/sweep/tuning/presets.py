"""What a search has found, as presets that an experiment's YAML can use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lrm.plan.search import Search, Stage
from lrm.sweep.tuning.points import Point
from lrm.sweep.tuning.stages import Decision


def text(
    name: str,
    command: str,
    decision: Decision,
    layer: Mapping[str, Any],
    search: Search,
    stages: Mapping[str, Stage],
    records: Sequence[Mapping[str, Any]],
) -> str:
    """The YAML file of a tier: where it comes from, what it cost, and its settings.

    ``command`` runs the search again. ``stages`` are those up to this tier, and ``records``
    those of the log for their trials.
    """
    trials, flops, tokens = cost(records)
    outcomes = [record["outcome"] for record in records]
    length = f"with {search.length:g} times the scale's steps"
    own = [f"{stage} {each.length:g}" for stage, each in stages.items() if each.length]
    seeds = " and ".join(
        f"{', '.join(map(str, seeds))} {how}"
        for seeds, how in (
            (search.seeds, f"{length} ({', '.join(own)})" if own else length),
            (search.confirm_seeds, "in full"),
        )
    )
    lines = [
        f"{name}, found by `{command}`. Not to be edited.",
        f"Cost up to this tier: {trials} trials, {tokens:.2e} tokens, {flops:.2e} FLOPs; "
        f"{outcomes.count('stopped')} trials were stopped early, {outcomes.count('diverged')} "
        "diverged.",
        f"Seeds {seeds}.",
        f"Base LR: {decision.point.lr:+d} steps of {search.lr_ratio:.4g} from the scale's.",
        f"Kept: {', '.join(decision.point.said) or 'no change of a group'}.",
        *(f"Note: {note}." for note in decision.notes),
    ]
    return "".join(f"# {line}\n" for line in lines) + _yaml(layer)


def cost(records: Sequence[Mapping[str, Any]]) -> tuple[int, float, int]:
    """Number of trials, FLOPs and tokens."""
    return (len(records), sum(record["flops"] for record in records),
            sum(record["tokens"] for record in records))  # fmt: skip


def record_of(point: Point) -> dict[str, Any]:
    """A point for the log."""
    return {"lr": point.lr, "factors": {f"{tune} {group}": value
                                        for (tune, group), value in point.factors}}  # fmt: skip


def _yaml(layer: Mapping[str, Any]) -> str:
    found = ""
    for key, value in layer.items():
        if isinstance(value, list):
            found += f"{key}:\n" + "".join(f"  - {_flow(entry)}\n" for entry in value)
        else:
            found += f"{key}: {_flow(value)}\n"
    return found


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, float):
        # YAML takes 1e-05 for text.
        shown = repr(value)
        return shown if "." in shown or "e" not in shown else shown.replace("e", ".0e")
    return f'"{value}"' if isinstance(value, str) and not value.isidentifier() else str(value)
