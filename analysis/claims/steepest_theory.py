"""Judging functions of BM0 to BM0d: steepest descent by layer, computed (Beyond MuP 3).

A value of a seed is its worst over six gradients, or over five heads.
"""

from __future__ import annotations

import numpy as np

from analysis.claims.judging import Judgement, at_least, at_most, judgement
from analysis.quantities import steepest_theory as found
from analysis.quantities.steepest_theory import HEADS, LAYERS
from analysis.tables.results import Tables

_OWN = {"linear": "msign", "embedding": "rows over their norms", "head": "rows over their norms",
        "gain": "signs", "bias": "the vector over its norm"}  # fmt: skip


def bm0(tables: Tables, criterion: dict) -> Judgement:
    """Each layer's own direction is the steepest by its criterion."""
    limits = criterion["thresholds"]
    parts = []
    for layer in LAYERS:
        parts += [
            at_most(f"{layer}: |slope of {_OWN[layer]} over the dual norm − 1|",
                    found.largest(tables, layer, "own_error"), limits["exact"], layer),
            at_most(f"{layer}: largest slope of another of the five, over the dual norm",
                    found.largest(tables, layer, "largest_other"), limits["others"], layer),
            at_most(f"{layer}: largest slope of random directions, over the dual norm",
                    found.largest(tables, layer, "largest_random"), limits["random"], layer),
        ]  # fmt: skip
    return judgement(criterion, parts)


def bm0b(tables: Tables, criterion: dict) -> Judgement:
    """A gain is a diagonal linear layer."""
    name = "largest entry of msign(diag g) − diag(sign g)"
    values = found.largest(tables, "gain", "diagonal_error")
    return judgement(criterion, [at_most(name, values, criterion["thresholds"]["exact"])])


def bm0c(tables: Tables, criterion: dict) -> Judgement:
    """The inequality of log-sum-exp, and the bounds on the loss of a head."""
    limits = criterion["thresholds"]
    most = 1 + limits["exact"]
    places = [found.place(tables, head) for head in HEADS]
    bracket = "D to D + log V"
    return judgement(criterion, [
        at_most("largest |lse(a) − lse(b)| / max |a − b|", found.largest_of_logits(tables), most,
                "log-sum-exp"),
        at_least("place of the supremum between D (0) and D + log V (1), least of five heads",
                 np.min(places, axis=0), -limits["exact"], bracket),
        at_most("place of the supremum between D (0) and D + log V (1), largest of five heads",
                np.max(places, axis=0), most, bracket),
        at_most("change of the loss between two inputs over its bound",
                found.largest_of_heads(tables, "dependence"), most, "dependence"),
        at_most("change of the loss by an update over its bound",
                found.largest_of_heads(tables, "update"), most, "update"),
    ])  # fmt: skip


def bm0d(tables: Tables, criterion: dict) -> Judgement:
    """What the head's own direction is not: the steepest for D itself (ours)."""
    limits = criterion["thresholds"]
    return judgement(criterion, [
        at_least("by how much ascent surpasses rows over their norms, with D as the norm, relative",
                 found.gain_in_differences(tables), limits["gain"], "not the steepest for D",
                 matters=criterion["smallest_effect"]),
        at_most("largest slope of the four other directions over that of rows, with D as the norm",
                found.rival_in_differences(tables), limits["rival"], "the steepest of the five"),
    ])  # fmt: skip
