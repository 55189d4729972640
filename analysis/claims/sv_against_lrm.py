"""Judging functions of X1, X2, X4, X5 and X5.2: a freed scale, or preconditioning? (ours)

Differences of the loss after the decay in nats per token, paired by seed.
"""

from __future__ import annotations

from analysis.claims.judging import Judgement, Part, at_least, at_most, judgement, within
from analysis.quantities.designs import gap, scale_gap
from analysis.tables.results import Tables


def x1(tables: Tables, criterion: dict) -> Judgement:
    """A row vector on the LM head makes the unified design worse."""
    name = "with a row vector on the LM head − without (nats)"
    limit = criterion["thresholds"]["worse"]
    gaps = gap(tables, "UNIFIED_HEAD", "UNIFIED")
    return judgement(criterion, [at_least(name, gaps, limit, matters=criterion["smallest_effect"])])


def x2(tables: Tables, criterion: dict) -> Judgement:
    """Weight decay on input vectors alone is better than on all, and than on none."""
    limit, matters = criterion["thresholds"]["better"], criterion["smallest_effect"]
    parts = [
        at_most(f"on input vectors alone − {name} (nats)", gap(tables, "UNIFIED", arm), limit, name,
                matters=matters)
        for arm, name in (("UNIFIED_ALIKE", "on all"), ("UNIFIED_FREE", "on none"))
    ]  # fmt: skip
    return judgement(criterion, parts)


def x4(tables: Tables, criterion: dict) -> Judgement:
    """The gain of vectors is that of a freed scale.

    It goes without weight decay on matrices; vectors that are frozen at what they learned keep it,
    and one number for each matrix has much of it.
    """
    limits = criterion["thresholds"]
    gain = gap(tables, "NONE", "HG")
    undecayed = gap(tables, "NONE_UNDECAYED", "HG_UNDECAYED")
    kept, much = limits["kept"], limits["much"]
    parts = [
        at_least(f"{limits['left']:g} × gain − gain without weight decay on matrices (nats)",
                 limits["left"] * gain - undecayed, 0.0, "no weight decay, no gain"),
        at_least(f"gain of frozen vectors − {kept:g} × gain (nats)",
                 gap(tables, "NONE", "HG_LEARNED") - kept * gain, 0.0, "frozen vectors keep it"),
        at_least(f"gain of scalars − {much:g} × gain (nats)",
                 gap(tables, "NONE", "SCALAR") - much * gain, 0.0, "scalars have much of it"),
    ]  # fmt: skip
    contrast = [at_least("no vectors − vectors (nats)", gain, limits["gain"])]
    return judgement(criterion, parts, contrast=contrast)


def x5(tables: Tables, criterion: dict) -> Judgement:
    """With a norm behind each matrix the loss does not depend on the scale of the matrices.

    Where matrices without such a norm lose nothing, that says nothing.
    """
    return _flat(tables, criterion, {0.25: "¼", 4.0: "4"})


def x5_2(tables: Tables, criterion: dict) -> Judgement:
    """As X5, with a small scale at which matrices without a norm lose."""
    return _flat(tables, criterion, {0.0625: "1/16", 4.0: "4"})


def _flat(tables: Tables, criterion: dict, sizes: dict[float, str]) -> Judgement:
    limits = criterion["thresholds"]
    parts: list[Part] = []
    contrast: list[Part] = []
    for size, written in sizes.items():
        group = f"S = {written}"
        flat, lost = (scale_gap(tables, arm, size) for arm in ("NORMED", "PLAIN"))
        parts.append(within(f"with a norm: {group} − S = 1 (nats)", flat, -limits["flat"],
                            limits["flat"], group))  # fmt: skip
        name = f"without a norm: {group} − S = 1 (nats)"
        contrast.append(at_least(name, lost, limits["lost"], group))
    return judgement(criterion, parts, contrast=contrast)
