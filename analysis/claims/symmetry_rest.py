"""Judging functions of S2.2 and S4.3: drift under a weight decay that has had time to act (4.1).

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
