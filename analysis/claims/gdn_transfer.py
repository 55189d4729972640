"""Judging functions of GD1, GD2, GD6, GD7 and GD8: Gated Delta Networks under AdamW over the width.

A value of a seed is an exponent of the width, or a difference of losses in nats per token.
"""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_least, at_most, judgement, within
from analysis.quantities import gdn_transfer as found
from analysis.quantities.transfer import (
    best_loss,
    drift,
    losses,
    regret,
    steepness,
    widths,
)
from analysis.tables.results import Tables

SP, MUP = "SP", "MUP"


def gd1(tables: Tables, criterion: dict) -> Judgement:
    """With muP the best LR stays; where losses hardly depend on the LR, that says nothing."""
    limits = criterion["thresholds"]
    near = within("muP: exponent of the width in the best LR", drift(tables, MUP),
                  -limits["margin"], limits["margin"])  # fmt: skip
    of_widths = widths(losses(tables, MUP))
    contrast = [
        at_least(f"muP: loss at twice and half the best LR − at it, width {width:g} (nats)",
                 steepness(tables, MUP, width, 2.0), limits["steep"])
        for width in (of_widths[0], of_widths[-1])
    ]  # fmt: skip
    return judgement(criterion, [near], contrast=contrast)


def gd2(tables: Tables, criterion: dict) -> Judgement:
    """With SP the best LR falls; ours: so that the LR of the base costs more than with muP."""
    limits, largest = criterion["thresholds"], widths(losses(tables, SP))[-1]
    own, other = drift(tables, SP), drift(tables, MUP)
    parts = [
        at_most("SP: exponent of the width in the best LR", own, 0.0, "it falls"),
        at_most("SP − muP: exponent of the width in the best LR", own - other, -limits["steeper"],
                "faster than with muP"),
        at_least(f"SP − muP: what the base's LR costs at width {largest:g} (nats)",
                 regret(tables, SP, largest) - regret(tables, MUP, largest), 0.0, "it costs",
                 ours=True, matters=criterion["smallest_effect"]),
    ]  # fmt: skip
    return judgement(criterion, parts)


def gd6(tables: Tables, criterion: dict) -> Judgement:
    """Each at its own best LR: muP is no worse than SP, and gains with every width."""
    matters, of_widths = criterion["smallest_effect"], widths(losses(tables, MUP))
    best = {width: best_loss(tables, MUP, width) for width in of_widths}
    parts = []
    for width in of_widths[1:]:
        gap = best[width] - best_loss(tables, SP, width)
        parts.append(at_most(f"muP − SP at width {width:g} (nats)", gap, 0.0,
                             f"width {width:g}", matters=matters))  # fmt: skip
    for narrow, wide in zip(of_widths, of_widths[1:], strict=False):
        parts.append(at_most(f"muP: width {wide:g} − width {narrow:g} (nats)",
                             best[wide] - best[narrow], 0.0, "wider is better"))  # fmt: skip
    return judgement(criterion, parts)


def gd7(tables: Tables, criterion: dict) -> Judgement:
    """Sizes in front of the delta rule do not depend on the width with muP, and do with SP."""
    limits, parts, contrast = criterion["thresholds"], [], []
    margin = limits["margin"]
    for quantity, (*_, derived) in found.SIZES.items():
        own = found.exponent(tables, quantity, MUP, limits["lr"])
        plain = found.exponent(tables, quantity, SP, limits["lr"])
        parts.append(within(f"muP: exponent of {quantity}", own, derived - margin,
                            derived + margin, quantity))  # fmt: skip
        away = (plain - derived).abs()
        contrast.append(at_least(f"SP: |exponent − derived| of {quantity}", away,
                                 limits["contrast"], quantity))  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)


def gd8(tables: Tables, criterion: dict) -> Judgement:
    """The gradient by the stream falls as 1/d with muP; ours: as d^-1/2 with SP."""
    limits, quantity = criterion["thresholds"], "∂h"
    own = found.exponent(tables, quantity, MUP, limits["lr"])
    plain = found.exponent(tables, quantity, SP, limits["lr"])
    margin, derived = limits["margin"], found.QUANTITIES[quantity][2]
    parts = [
        within(f"muP: exponent of {quantity}", own, derived - margin, derived + margin, "muP"),
        within(f"SP: exponent of {quantity}", plain, limits["sp"] - margin, limits["sp"] + margin,
               "SP"),
    ]  # fmt: skip
    return judgement(criterion, parts)
