"""Judging functions of Gated Delta Networks under AdamW over the width: claims of gdn_transfer.

A value of a seed is an exponent of the width, a difference of losses in nats per token, or a mean
over heads.
"""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_least, at_most, judgement, reads, within
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

SP, MUP, SCALARS = "SP", "MUP", "SP_SCALARS"


def gd1(tables: Tables, criterion: dict) -> Judgement:
    """With muP the best LR stays; where losses hardly depend on the LR, that says nothing."""
    limits = criterion["thresholds"]
    near = within("muP: exponent of the width in the best LR", drift(tables, MUP),
                  -limits["margin"], limits["margin"], "it stays")  # fmt: skip
    of_widths = widths(losses(tables, MUP))
    contrast = [
        at_least(f"muP: loss at twice and half the best LR − at it, width {width:g} (nats)",
                 steepness(tables, MUP, width, 2.0), limits["steep"], "it stays")
        for width in (of_widths[0], of_widths[-1])
    ]  # fmt: skip
    cost = at_most(f"muP: what the base's LR costs at width {of_widths[-1]:g} (nats)",
                   regret(tables, MUP, of_widths[-1]), limits["worse"], "it costs little",
                   ours=True)  # fmt: skip
    return judgement(criterion, [near, cost], contrast=contrast)


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


def gd2_2(tables: Tables, criterion: dict) -> Judgement:
    """As GD2, from the smallest and the largest width alone."""
    return gd2(tables, criterion)


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


@reads("gdn.alpha", "gdn.beta", "gdn.written")
def gd10(tables: Tables, criterion: dict) -> Judgement:
    """Gates stay unsaturated with muP, at every width; with SP they spread as it grows."""
    limits, end = criterion["thresholds"], tables.settings["train"]["steps"]
    lr, margin, parts, contrast = limits["lr"], limits["margin"], [], []
    written = found.by_width(found.of_heads(tables, "head_mean", "gdn.written", MUP, lr), end)
    for width in written:
        parts.append(within(f"muP: mean β at width {width:g}", written[width],
                            0.5 - limits["beta"], 0.5 + limits["beta"], "mean β"))  # fmt: skip
    for gate, name in (("gdn.alpha", "z_α"), ("gdn.beta", "z_β")):
        own, plain = (
            found.exponent_of_heads(found.of_heads(tables, "deviation", gate, arm, lr), end)
            for arm in (MUP, SP)
        )
        parts.append(within(f"muP: exponent of the standard deviation of {name}", own, -margin,
                            margin, name))  # fmt: skip
        contrast.append(at_least(f"SP: exponent of the standard deviation of {name}", plain,
                                 limits["contrast"], name))  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)


@reads("gdn.kept")
def gd10b(tables: Tables, criterion: dict) -> Judgement:
    """Ours: heads whose mean α is close to 0 or 1 are not more in wider models."""
    limits, end = criterion["thresholds"], tables.settings["train"]["steps"]
    heads = found.of_heads(tables, "head_mean", "gdn.kept", MUP, limits["lr"])
    out = ~heads["value"].between(limits["low"], limits["high"])
    shares = found.by_width(heads.assign(value=out.astype(float)), end)
    most, least = max(shares), min(shares)
    name = f"share of such heads, width {most:g} − width {least:g}"
    part = within(name, shares[most] - shares[least], -limits["margin"], limits["margin"])
    return judgement(criterion, [part])


@reads("gdn.q")
def gd11(tables: Tables, criterion: dict) -> Judgement:
    """Query and key of a token are hardly aligned with muP; ours: no more than those of others."""
    limits, end = criterion["thresholds"], tables.settings["train"]["steps"]
    lr, parts = limits["lr"], []
    own, plain = (found.largest_cosine(tables, arm, lr, end) for arm in (MUP, SP))
    beyond = found.beyond_unrelated(tables, MUP, lr, end)
    for width in own:
        parts += [
            at_most(f"muP: largest mean |cos(q, k)| of five places, width {width:g}", own[width],
                    limits["small"], "it is small"),
            within(f"muP: cos(q, k) of one token − of two, width {width:g}", beyond[width],
                   -limits["margin"], limits["margin"], "as between tokens", ours=True),
        ]  # fmt: skip
    largest = max(plain)
    contrast = [at_least(f"SP: largest mean |cos(q, k)| of five places, width {largest:g}",
                         plain[largest], limits["contrast"], "it is small")]  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)


@reads("gdn.kept")
def gd14(tables: Tables, criterion: dict) -> Judgement:
    """Ours: heads remember few tokens, at every width, at the start and after training."""
    limits, parts = criterion["thresholds"], []
    heads = found.of_heads(tables, "memory", "gdn.kept", MUP, limits["lr"])
    margin = limits["margin"]
    for step, moment in ((0, "at the start"), (tables.settings["train"]["steps"], "at the end")):
        medians = found.by_width(heads, step, "median")
        parts += [
            at_most(f"median memory of heads in tokens {moment}, width {width:g}", medians[width],
                    limits["tokens"], f"short {moment}")
            for width in medians
        ]  # fmt: skip
        parts.append(within(f"exponent of the memory {moment}",
                            found.exponent_of_heads(heads, step), -margin, margin,
                            f"no width {moment}"))  # fmt: skip
    return judgement(criterion, parts)


def gm1(tables: Tables, criterion: dict) -> Judgement:
    """Ours: one learned scalar for each matrix does for SP what muP does."""
    limits, of_widths = criterion["thresholds"], widths(losses(tables, SCALARS))
    largest = of_widths[-1]
    parts = [
        within("learned scalars: exponent of the width in the best LR", drift(tables, SCALARS),
               -limits["margin"], limits["margin"], "the LR stays"),
        at_most(f"learned scalars: what the base's LR costs at width {largest:g} (nats)",
                regret(tables, SCALARS, largest), limits["worse"], "it costs little"),
    ]  # fmt: skip
    parts += [
        at_most(f"learned scalars − muP at width {width:g} (nats)",
                best_loss(tables, SCALARS, width) - best_loss(tables, MUP, width),
                limits["worse"], "no worse than muP")
        for width in of_widths[1:]
    ]  # fmt: skip
    return judgement(criterion, parts)


def gm2(tables: Tables, criterion: dict) -> Judgement:
    """Ours: on the gates of SP a learned scalar finds about the factor that muP gives them."""
    limits = criterion["thresholds"]
    parts = [
        within(f"exponent of the width in |s| of {name}",
               found.exponent_of_scalar(tables, tensor, SCALARS, limits["lr"], limits["widest"]),
               limits["derived"] - limits["margin"], limits["derived"] + limits["margin"], name)
        for tensor, name in (("gdn.alpha", "W_α"), ("gdn.beta", "W_β"))
    ]  # fmt: skip
    return judgement(criterion, parts)
