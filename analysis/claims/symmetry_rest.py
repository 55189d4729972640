"""Judging functions of S2.2, S2.3 and S4.3: drift, and weight decay with time to act (4.1).

As S2 and S4.2, with a sum Σηλ of 2 over the training. FREE has no weight decay on multipliers.
"""

from __future__ import annotations

import numpy as np

from analysis.claims.judging import Judgement, at_least, at_most, judgement, reads
from analysis.quantities import symmetry
from analysis.quantities.symmetry import FREE
from analysis.tables.results import Tables

AT_REST = "AT_REST"


@reads(symmetry.Q, symmetry.K)
def s2_2(tables: Tables, criterion: dict) -> Judgement:
    """How far ratios of Q's and K's multipliers spread, with weight decay over without."""
    free, held = (symmetry.spread(symmetry.pairs(tables, arm))["ratio"] for arm in (FREE, AT_REST))
    less = at_most("ln of the spread of ln (Q / K) with weight decay over that without",
                   np.log(held / free), criterion["thresholds"]["less"],
                   matters=criterion["smallest_effect"])  # fmt: skip
    noise = [
        symmetry.spread(symmetry.brownian_pairs(tables, arm), "draw")["ratio"].mean()
        for arm in (FREE, AT_REST)
    ]
    return judgement(criterion, [less], f"Brownian motion {np.log(noise[1] / noise[0]):+.3f}")


@reads(symmetry.Q, symmetry.K)
def s2_3(tables: Tables, criterion: dict) -> Judgement:
    """How far the scales of Q and K of a layer lie apart, with weight decay over without.

    Ours: less than noise alone would leave under the same decay; and within layers, as S2.2.
    """
    limits, matters = criterion["thresholds"], criterion["smallest_effect"]
    free, held = (symmetry.layer_spread(tables, arm) for arm in (FREE, AT_REST))
    noise = [np.log(symmetry.brownian_layer_spread(tables, arm)).mean() for arm in (FREE, AT_REST)]
    within = [symmetry.spread(symmetry.pairs(tables, arm))["ratio"] for arm in (FREE, AT_REST)]
    name = "ln of the RMS over layers of ln (Q / K), with weight decay over without"
    layers, less = "scales of layers", np.log(held / free)
    parts = [
        at_most(name, less, limits["less"], layers, matters=matters),
        at_most(f"{name}, less Brownian motion's", less - (noise[1] - noise[0]), limits["less"],
                "less than noise alone would leave", ours=True, matters=matters),
        at_most("ln of the spread of ln (Q / K) over rotated pairs, with weight decay over without",
                np.log(within[1] / within[0]), limits["less"], "within layers", ours=True,
                matters=matters),
    ]  # fmt: skip
    contrast = [at_least("RMS over layers of ln (Q / K) without weight decay", free,
                         limits["drifts"], layers)]  # fmt: skip
    note = f"RMS with: {held.mean():.3f}; Brownian motion {noise[1] - noise[0]:+.3f}"
    return judgement(criterion, parts, note, contrast)


def s4_3(tables: Tables, criterion: dict) -> Judgement:
    """Growth of what is written to the residual stream; ours: beside noise under the same decay."""
    limit = criterion["thresholds"]["growth"]
    free, held = (symmetry.mean_growth(tables, arm) for arm in (FREE, AT_REST))
    noise = {arm: symmetry.brownian_growth(tables, arm) for arm in (FREE, AT_REST)}
    name = "late change of ln norms, mean over the four writers"
    parts = [
        at_least(f"half of the {name}, without weight decay, less that with", free / 2 - held, 0.0,
                 "slows the growth"),
        at_most(f"{name}, with weight decay", held, limit, "stops the growth"),
        at_most(f"{name}, with weight decay, less Brownian motion's", held - noise[AT_REST], 0.0,
                "falls by more than noise alone would", ours=True,
                matters=criterion["smallest_effect"]),
    ]  # fmt: skip
    contrast = [at_least(f"{name}, without weight decay", free, limit)]
    return judgement(
        criterion,
        parts,
        f"without: {free.mean():+.3f}; Brownian motion without {noise[FREE]:+.3f}, "
        f"with {noise[AT_REST]:+.3f}",
        contrast,
    )
