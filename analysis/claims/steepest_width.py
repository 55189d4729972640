"""Judging functions of BM1, BM4, BM7 and BM8: criteria and learning rates over the width.

A value of a seed is an exponent of the width, the logarithm of a ratio, or a difference of losses
in nats per token.
"""

from __future__ import annotations

import numpy as np

from analysis.claims.judging import Judgement, at_least, at_most, judgement, within
from analysis.quantities import steepest_width as found
from analysis.quantities.stats import in_its_direction
from analysis.quantities.transfer import best_loss, drift, losses, regret, steepness, widths
from analysis.tables.results import Tables

STEEPEST, FIXED = "STEEPEST", "HEAD_FIXED"
ADAMW, MUP, SCALARS = "ADAMW", "ADAMW_MUP", "ADAMW_SCALARS"
DECAYED = "ADAMW_DECAY"


def bm1(tables: Tables, criterion: dict) -> Judgement:
    """Criteria of layers and of updates do not depend on the width, and AdamW's do."""
    limits = criterion["thresholds"]
    margin, u, parts = limits["margin"], limits["u"], []
    for of in found.STATS:
        for moment, step in found.moments(tables, of).items():
            for kind in found.KINDS:
                own = found.exponent(tables, of, kind, STEEPEST, u, step)
                parts.append(within(f"steepest descent, {of} {moment}: exponent of {kind}", own,
                                    -margin, margin, f"{of}: {kind}"))  # fmt: skip
    end = found.moments(tables, "layers")["at the end"]
    contrast = [
        at_least(f"AdamW at one LR, layers at the end: exponent of {kind}",
                 found.exponent(tables, "layers", kind, ADAMW, u, end), limits["contrast"],
                 f"layers: {kind}")
        for kind in ("linear layers", "head")
    ]  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)


def bm4(tables: Tables, criterion: dict) -> Judgement:
    """One factor on all LRs: its best value stays with steepest descent; ours: not with AdamW."""
    limits = criterion["thresholds"]
    of_widths = widths(losses(tables, STEEPEST, "u"))
    own, name = drift(tables, STEEPEST, "u"), "exponent of the width in the best factor"
    parts = [
        within(f"steepest descent: {name}", own, -limits["margin"], limits["margin"],
               "steepest descent"),
        at_most(f"AdamW at one LR: {name}", drift(tables, ADAMW, "u"), -limits["margin"],
                "AdamW's falls", ours=True),
        within(f"AdamW with muP: {name}", drift(tables, MUP, "u"), -limits["margin"],
               limits["margin"], "AdamW's stays with muP", ours=True),
        at_least(f"steepest descent − with a head that ignores the width: {name}",
                 own - drift(tables, FIXED, "u"), 0.0, "the head's 1/d matters", ours=True,
                 matters=criterion["smallest_effect"]),
    ]  # fmt: skip
    contrast = [
        at_least(f"steepest descent: loss at twice and half the best factor − at it, width "
                 f"{width:g} (nats)", steepness(tables, STEEPEST, width, 2.0, "u"),
                 limits["steep"], "steepest descent")
        for width in (of_widths[0], of_widths[-1])
    ]  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)


def bm7(tables: Tables, criterion: dict) -> Judgement:
    """Ours: the bound on the head's loss grows while it trains, also times what the head reads."""
    limits = criterion["thresholds"]
    u, end, parts = limits["u"], tables.settings["train"]["steps"], []
    for arm, name in ((STEEPEST, "steepest descent"), (ADAMW, "AdamW")):
        for width in widths(losses(tables, arm, "u")):
            grown, norms = (
                np.log(of(tables, *place, u, width, end) / of(tables, *place, u, width, 0))
                for of, place in ((found.of_width, ("head", arm)), (found.input_norm, (arm,)))
            )
            parts += [
                at_least(f"{name}, width {width:g}: growth of D (ln)", grown, limits["growth"],
                         name),
                at_least(f"{name}, width {width:g}: growth of D ‖x‖ (ln)", grown + norms,
                         limits["growth"], f"{name}, times ‖x‖"),
            ]  # fmt: skip
    return judgement(criterion, parts)


def bm8(tables: Tables, criterion: dict) -> Judgement:
    """Ours: two more answers to the question of width do as well as muP: learned, and steepest."""
    limits = criterion["thresholds"]
    largest = widths(losses(tables, MUP, "u"))[-1]
    parts = []
    for arm, name in ((SCALARS, "learned scalars"), (STEEPEST, "steepest descent")):
        gap = best_loss(tables, arm, largest, "u") - best_loss(tables, MUP, largest, "u")
        parts += [
            within(f"{name}: exponent of the width in the best factor", drift(tables, arm, "u"),
                   -limits["margin"], limits["margin"], f"{name}: the factor stays"),
            at_most(f"{name}: what the best factor of the smallest width costs at {largest:g} "
                    "(nats)", regret(tables, arm, largest, "u"), limits["worse"],
                    f"{name}: it costs little"),
            at_most(f"{name} − muP at width {largest:g}, each at its best factor (nats)", gap,
                    limits["worse"], f"{name}: no worse than muP"),
        ]  # fmt: skip
    without, learned = (in_its_direction(drift(tables, arm, "u")) for arm in (DECAYED, SCALARS))
    parts.append(at_least("exponent in the direction of its mean: with the same weight decay and "
                          "no scalars − with learned scalars", without - learned, 0.0,
                          "scalars do it, not their decay", ours=True))  # fmt: skip
    contrast = [at_most("AdamW at one LR: exponent of the width in the best factor",
                        drift(tables, ADAMW, "u"), -limits["margin"])]  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)
