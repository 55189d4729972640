"""Judging functions of GD3, GD4, GD5, GD9 and GD16: Gated Delta Networks under SGD over the width.

A value of a seed is an exponent of the width, a difference of losses in nats per token, or a share
of steps.
"""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_least, judgement, within
from analysis.quantities import gdn_transfer as found
from analysis.quantities.stats import in_its_direction
from analysis.quantities.transfer import drift, losses, regret, steepness, typical_rate, widths
from analysis.tables.results import Tables

SP, ORIGINAL, PAPER = "SP", "ORIGINAL", "PAPER"
UNCLIPPED = "_UNCLIPPED"
NAMES = {SP: "SP", ORIGINAL: "muP before the paper", PAPER: "the paper's"}


def gd3(tables: Tables, criterion: dict) -> Judgement:
    """With the paper's recipe the best LR stays; ours: it costs less than muP before it."""
    limits, of_widths = criterion["thresholds"], widths(losses(tables, PAPER))
    largest = of_widths[-1]
    parts = [
        within("the paper's: exponent of the width in the best LR", drift(tables, PAPER),
               -limits["margin"], limits["margin"], "it stays"),
        at_least(f"before − the paper's: what the base's LR costs at width {largest:g} (nats)",
                 regret(tables, ORIGINAL, largest) - regret(tables, PAPER, largest), 0.0,
                 "it costs less than before", ours=True, matters=criterion["smallest_effect"]),
    ]  # fmt: skip
    contrast = [
        at_least(f"the paper's: loss at twice and half the best LR − at it, width {width:g} (nats)",
                 steepness(tables, PAPER, width, 2.0), limits["steep"], "it stays")
        for width in (of_widths[0], largest)
    ]  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)


def gd4(tables: Tables, criterion: dict) -> Judgement:
    """With SP the best LR moves, in either direction."""
    limits = criterion["thresholds"]
    name = "SP: exponent of the width in the best LR, in the direction of its mean"
    return judgement(
        criterion, [at_least(name, in_its_direction(drift(tables, SP)), limits["moves"])]
    )


def gd5(tables: Tables, criterion: dict) -> Judgement:
    """With muP as it was before the paper the best LR moves more than with the paper's."""
    limits = criterion["thresholds"]
    more = in_its_direction(drift(tables, ORIGINAL)) - in_its_direction(drift(tables, PAPER))
    name = "before − the paper's: exponent of the best LR, each in the direction of its mean"
    return judgement(criterion, [at_least(name, more, limits["more"])])


def gd9(tables: Tables, criterion: dict) -> Judgement:
    """Gradients by q̃ and k̃ fall as 1/d with the paper's recipe, and not with muP before it."""
    limits, parts = criterion["thresholds"], []
    margin = limits["margin"]
    for quantity in ("∂q̃", "∂k̃"):
        derived = found.QUANTITIES[quantity][2]
        own = found.exponent(tables, quantity, PAPER, limits["lr"])
        before = found.exponent(tables, quantity, ORIGINAL, limits["lr"])
        parts += [
            within(f"the paper's: exponent of {quantity}", own, derived - margin, derived + margin,
                   "the paper's"),
            at_least(f"before: exponent of {quantity} − derived, in the direction of its mean",
                     in_its_direction(before - derived), limits["other"], "before it"),
        ]  # fmt: skip
    return judgement(criterion, parts)


def gd16(tables: Tables, criterion: dict) -> Judgement:
    """Ours: most steps are clipped; without clipping both recipes keep their order."""
    limits, parts = criterion["thresholds"], []
    for arm in (SP, ORIGINAL, PAPER):
        lr = typical_rate(tables, arm, widths(losses(tables, arm))[0])
        for width in widths(losses(tables, arm)):
            share = found.clipped_share(tables, arm, lr, width)
            parts.append(at_least(f"{NAMES[arm]}: share of clipped steps at width {width:g}", share,
                                  limits["share"], NAMES[arm]))  # fmt: skip
    both = (set(widths(losses(tables, arm))) for arm in (PAPER, PAPER + UNCLIPPED))
    largest = max(set.intersection(*both))
    gap = {
        clip: regret(tables, ORIGINAL + clip, largest) - regret(tables, PAPER + clip, largest)
        for clip in ("", UNCLIPPED)
    }
    parts.append(within("what the paper's recipe saves, unclipped − clipped (nats)",
                        gap[UNCLIPPED] - gap[""], -limits["changes"], limits["changes"],
                        "the comparison stays"))  # fmt: skip
    return judgement(criterion, parts)
