"""Signal and noise of gradients (section 2), and how far matrices leave ‖W‖ ∝ S."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.quantities.norms import at_step
from analysis.quantities.stats import log_slope
from analysis.tables.results import Tables

# What a gradient is taken with respect to, by the name of its measurement.
OF = {"gradient": "W", "scalar_gradient": "s", "row_gradient": "r", "column_gradient": "c"}
# Signals are averaged over the measurements after this share of the constant stage.
LATE = 0.4
_KEYS = ["seed", "tensor", "layer"]


def ratios(tables: Tables) -> pd.DataFrame:
    """Signal-to-noise ratios at S = 1: columns seed, tensor, layer, and W, s, r and c.

    ‖E g‖² over the variance of one batch's gradient, both per entry and averaged over the
    measurements late in the constant stage. Signals are estimated without bias, and may be
    negative where there is none. Only matrices that S moves are in the table.
    """
    end = tables.stage_end

    def late(stat: str) -> pd.Series:
        rows = tables.pick(S=1.0, stat=stat)
        return rows[rows["step"].between(LATE * end, end)].groupby(_KEYS)["value"].mean()

    columns = {name: late(f"{stat}_signal") / late(f"{stat}_noise") for stat, name in OF.items()}
    return pd.DataFrame(columns).dropna().reset_index()


def departures(tables: Tables) -> pd.DataFrame:
    """Columns seed, tensor, layer, slope: of ln ‖W‖ against ln S as the constant stage ends.

    Noise alone gives 1.
    """
    norms = at_step(tables.pick(stat="weight_norm"), tables.stage_end).dropna(subset=["layer"])
    slopes = norms.groupby(_KEYS)[["S", "value"]].apply(
        lambda rows: log_slope(rows["S"], rows["value"]), include_groups=False
    )
    return slopes.rename("slope").reset_index()


def together(tables: Tables) -> pd.DataFrame:
    """``ratios`` and ``departures`` of the same tensors."""
    return ratios(tables).merge(departures(tables), on=_KEYS)


def log_gains(table: pd.DataFrame, name: str) -> pd.Series:
    """ln of the ratio of a multiplier (``s``, ``r`` or ``c``) over its matrix's, by seed.

    The median over the matrices of ``together``. A signal that is estimated as 0 or less is as
    small as can be: its logarithm is −∞, which a median bears as long as most signals are positive.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(table[[name, "W"]].clip(lower=0.0).to_numpy())
        gain = logs[:, 0] - logs[:, 1]
    gains = pd.Series(np.where(np.isnan(gain), 0.0, gain), table.index)  # neither has a signal
    return gains.groupby(table["seed"]).median()
