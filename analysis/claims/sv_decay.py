"""Judging functions of SV5 to SV7b and of SV15: weight decay of scale vectors (second paper).

Differences of the loss after the decay of the LR, in nats per token, paired by seed.
"""

from __future__ import annotations

from analysis.claims.judging import Judgement, Part, at_least, at_most, judgement
from analysis.quantities.designs import gap
from analysis.quantities.vector_decay import (
    KINDS,
    OF_THE_PAPER,
    curvature,
    decay_effect,
    growth,
    room,
)
from analysis.tables.results import Tables

# The kinds of runs, and whether a median judges: in short runs with Muon single seeds jump.
ALL_MEANS = dict.fromkeys(KINDS, False)
SHORT = {"MUON": True, "ADAM": False}


def sv5(tables: Tables, criterion: dict) -> Judgement:
    """Weight decay on input vectors lowers the loss."""
    return _effects(tables, criterion, "input", at_most, "better")


def sv5b(tables: Tables, criterion: dict) -> Judgement:
    """As SV5, in short runs alone, on more seeds."""
    return _effects(tables, criterion, "input", at_most, "better", SHORT)


def sv6(tables: Tables, criterion: dict) -> Judgement:
    """Weight decay on output vectors raises the loss."""
    return _effects(tables, criterion, "output", at_least, "worse")


def sv6b(tables: Tables, criterion: dict) -> Judgement:
    """As SV6, in short runs alone, on more seeds."""
    return _effects(tables, criterion, "output", at_least, "worse", SHORT)


def _effects(tables: Tables, criterion: dict, side: str, bound, limit: str,
             kinds: dict[str, bool] = ALL_MEANS) -> Judgement:  # fmt: skip
    """By kind the effect of decay on one side; it means something only where decay leaves room.

    ``kinds`` says of each whether it is judged by its median.
    """
    limits, matters = criterion["thresholds"], criterion["smallest_effect"]
    parts: list[Part] = []
    contrast: list[Part] = []
    for kind, robust in kinds.items():
        name = KINDS[kind]
        effect = decay_effect(tables, kind, side)
        parts.append(bound(f"with decay on {side} vectors − without, {name} (nats)", effect,
                           limits[limit], name, matters=matters, robust=robust,
                           ours=kind not in OF_THE_PAPER))  # fmt: skip
        contrast.append(_has_room(tables, criterion, f"{kind}_NONE", f"{kind}_ALL", name))
    return judgement(criterion, parts, contrast=contrast)


def _has_room(tables: Tables, criterion: dict, free: str, decayed: str, group: str | None) -> Part:
    name = "1/λ over the largest vector that does not decay" + (f", {group}" if group else "")
    return at_least(name, room(tables, free, decayed), criterion["thresholds"]["room"], group)


def sv7(tables: Tables, criterion: dict) -> Judgement:
    """Without decay input vectors and the curvature grow, with it they do not; outputs shrink."""
    limits = criterion["thresholds"]
    grows, shrinks = limits["grows"], limits["shrinks"]
    curved = {arm: curvature(tables, f"LONG_{arm}") for arm in ("NONE", "INPUT")}
    rise = {arm: found["end"] - found["begin"] for arm, found in curved.items()}
    parts = [
        at_least("input vectors without decay: ln of their size, end over start",
                 growth(tables, "LONG_NONE", "input"), grows, "input vectors"),
        at_most("input vectors with decay: the same", growth(tables, "LONG_INPUT", "input"), grows,
                "input vectors"),
        at_least("curvature without decay: ln of that at the end over that after the warmup",
                 rise["NONE"], grows, "curvature"),
        at_most("curvature with decay on input vectors: the same", rise["INPUT"], grows,
                "curvature"),
        at_most("output vectors: ln of their size at the end, with decay over without",
                growth(tables, "LONG_OUTPUT", "output") - growth(tables, "LONG_NONE", "output"),
                -shrinks, "output vectors"),
        at_most("curvature at the end: ln, with decay on input vectors over without",
                curved["INPUT"]["end"] - curved["NONE"]["end"], 0.0, "decay lowers the curvature",
                ours=True),
        at_least("input vectors but the final one, without decay: the same as for all",
                 growth(tables, "LONG_NONE", "block"), grows, "those of blocks", ours=True),
        at_most("input vectors but the final one, with decay: the same as for all",
                growth(tables, "LONG_INPUT", "block"), grows, "those of blocks", ours=True),
    ]  # fmt: skip
    contrast = [_has_room(tables, criterion, "LONG_NONE", "LONG_ALL", None)]
    return judgement(criterion, parts, contrast=contrast)


def sv7b(tables: Tables, criterion: dict) -> Judgement:
    """Behind norms of DNP the vectors of v and up may decay, those of q, k and gate may not."""
    limits = criterion["thresholds"]
    parts = [
        at_most("decay on those of v and up too − on input vectors alone (nats)",
                gap(tables, "DNP_ABSORBED", "DNP_INPUT"), limits["same"], "v and up may decay"),
        at_least("decay on those of q, k and gate too − on input vectors alone (nats)",
                 gap(tables, "DNP_NEEDED", "DNP_INPUT"), limits["worse"],
                 "q, k and gate may not", matters=criterion["smallest_effect"]),
    ]  # fmt: skip
    contrast = [_has_room(tables, criterion, "DNP_INPUT", "DNP_NEEDED", None)]
    return judgement(criterion, parts, contrast=contrast)


def sv7b_2(tables: Tables, criterion: dict) -> Judgement:
    """As SV7b, on new seeds of the runs that it reads."""
    return sv7b(tables, criterion)


def sv15(tables: Tables, criterion: dict) -> Judgement:
    """With DNP and OR decay on input vectors alone is the best of the four settings."""
    limit, matters = criterion["thresholds"]["better"], criterion["smallest_effect"]
    parts = [
        at_most(f"decay on input vectors alone − {name} (nats)",
                gap(tables, "DNP_OR_INPUT", f"DNP_OR_{arm}"), limit, name, matters=matters)
        for arm, name in (("NONE", "on none"), ("OUTPUT", "on output vectors alone"),
                          ("ALL", "on all"))
    ]  # fmt: skip
    contrast = [_has_room(tables, criterion, "DNP_OR_NONE", "DNP_OR_ALL", None)]
    return judgement(criterion, parts, contrast=contrast)


def sv15_2(tables: Tables, criterion: dict) -> Judgement:
    """As SV15, on new seeds of the runs that it reads."""
    return sv15(tables, criterion)
