"""Judging functions of SV13 to SV15d: magnitude and direction apart (second paper, section 3.3).

Differences of the loss after the decay in nats per token, paired by seed.
"""

from __future__ import annotations

from analysis.claims.judging import Judgement, at_least, at_most, judgement, within
from analysis.quantities.designs import gap
from analysis.tables.results import Tables

_NAMES = {"HG": "inputs", "DP": "both sides"}


def sv13(tables: Tables, criterion: dict) -> Judgement:
    """OR and ER lower the loss, of vectors on the inputs and of those on both sides."""
    limit, matters = criterion["thresholds"]["better"], criterion["smallest_effect"]
    parts = [
        at_most(f"{how} − direct, vectors on {name} (nats)", gap(tables, f"{design}_{how}", design),
                limit, f"{how} on {name}", matters=matters)
        for how in ("OR", "ER")
        for design, name in _NAMES.items()
    ]  # fmt: skip
    return judgement(criterion, parts)


def sv13b(tables: Tables, criterion: dict) -> Judgement:
    """OR lowers the loss of vectors on both sides."""
    limit, matters = criterion["thresholds"]["better"], criterion["smallest_effect"]
    name, gaps = "OR − direct, vectors on both sides (nats)", gap(tables, "DP_OR", "DP")
    return judgement(criterion, [at_most(name, gaps, limit, matters=matters)])


def sv14(tables: Tables, criterion: dict) -> Judgement:
    """DNP with OR is the best: clearly better than DP with either, slightly than DNP with ER."""
    limits = criterion["thresholds"]
    parts = [
        at_most(f"DNP with OR − {name} (nats)", gap(tables, "DNP_OR", arm), limits[size], name)
        for arm, name, size in (
            ("DP_OR", "DP with OR", "clearly"), ("DP_ER", "DP with ER", "clearly"),
            ("DNP_ER", "DNP with ER", "slightly"),
        )
    ]  # fmt: skip
    return judgement(criterion, parts)


def sv15b(tables: Tables, criterion: dict) -> Judgement:
    """The magnitude of an input vector behind which a norm stands changes nothing."""
    same = criterion["thresholds"]["same"]
    gaps = gap(tables, "DNP_OR_STILL", "DNP_OR")
    return judgement(criterion, [within("magnitude fixed − learned (nats)", gaps, -same, same)])


def sv15d(tables: Tables, criterion: dict) -> Judgement:
    """What OR's gain is made of: a number beside the vector does it, without any norm.

    A number alone, faster vectors, OR on the final vector and on the blocks are beside it.
    """
    limits = criterion["thresholds"]
    same = limits["same"]
    gain = gap(tables, "HG", "HG_OR")
    parts = [
        at_most("vector times a number − OR (nats)", gap(tables, "HG_PRODUCT", "HG_OR"), same,
                "a number beside the vector"),
        at_most("a number alone − OR (nats)", gap(tables, "SCALAR", "HG_OR"), same,
                "a number alone"),
        at_least("vectors with a larger LR − OR (nats)", gap(tables, "HG_FAST", "HG_OR"),
                 limits["worse"], "not a larger LR of vectors"),
        at_least("direct − OR on the final vector (nats)", gap(tables, "HG", "HG_OR_FINAL"),
                 limits["gain"], "OR on the final vector"),
        at_least("direct − OR on the blocks (nats)", gap(tables, "HG", "HG_OR_BLOCKS"),
                 limits["gain"], "OR on the blocks"),
        within("one magnitude − two, vectors on both sides (nats)",
               gap(tables, "DP_OR_ONE", "DP_OR"), -same, same, "one magnitude is enough"),
    ]  # fmt: skip
    contrast = [at_least("direct − OR (nats)", gain, limits["gain_of_or"])]
    return judgement(criterion, parts, contrast=contrast)


def sv15d_2(tables: Tables, criterion: dict) -> Judgement:
    """Arms that have at least half of OR's gain, and one that has not."""
    share = criterion["thresholds"]["share"] * gap(tables, "HG", "HG_OR")
    parts = [
        at_least(f"gain of {name} − half of that of OR (nats)", gap(tables, "HG", arm) - share,
                 0.0, group)
        for arm, name, group in (
            ("HG_PRODUCT", "a vector times a number", "a number beside the vector"),
            ("SCALAR", "a number alone", "a number alone"),
            ("HG_OR_FINAL", "OR on the final vector", "OR on the final vector"),
        )
    ]  # fmt: skip
    parts.append(
        at_most("gain of OR on the blocks − half of that of OR (nats)",
                gap(tables, "HG", "HG_OR_BLOCKS") - share, 0.0, "not OR on the blocks")
    )  # fmt: skip
    contrast = [at_least("direct − OR (nats)", gap(tables, "HG", "HG_OR"), 0.0)]
    return judgement(criterion, parts, contrast=contrast)
