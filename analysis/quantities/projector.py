"""Quantities of the projector sweep (section 3), for its claims and its figure."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.quantities.norms import at_step
from analysis.quantities.sweep import Sweep

LEARNED = ("SPN", "VPN")
ARMS = ("FPN", *LEARNED)


class ProjectorSweep(Sweep):
    """Tables with seeds in rows and S in columns; norms are root mean squares."""

    learned = LEARNED

    def table(
        self, arm: str, tensor: str, stat: str, step: int | None = None, kind: str = "train"
    ) -> pd.DataFrame:
        """``stat`` of ``tensor`` at the last probe up to ``step``, by default the stage's end."""
        chosen = self.tables.pick(arm=arm, kind=kind, tensor=tensor, stat=stat)
        return at_step(chosen, step or self.stage_end).pivot_table("value", "seed", "S")

    def weight(self, arm: str, step: int | None = None) -> pd.DataFrame:
        """‖W‖ of the projector."""
        return self.table(arm, "projector", "weight_norm", step)

    def logits(self, arm: str) -> pd.DataFrame:
        """Root mean square of the centred logits."""
        return self.table(arm, "projector", "centred_norm")

    def multiplier(self, arm: str) -> pd.DataFrame:
        """‖c‖, |s| for the scalar."""
        return self.table(arm, "norm.final", "effective_norm")

    def is_multiplier(self, rule: dict) -> bool:
        """The weights of the final norm, where they learn."""
        return rule["tensor"] == "norm.final" and rule["trainable"]

    def noise(self, tensor: str, arm: str = "VPN", stat: str = "weight_norm") -> pd.Series:
        """The Brownian twin's norm (or its sd over draws) as the constant stage ends, by S."""
        return self.table(arm, tensor, stat, kind="brownian").iloc[0]

    def distance(self, arm: str, s: float) -> pd.Series:
        """Root mean square over time of ln(‖W‖ / ‖W‖ of Brownian motion) at ``s``, by seed."""
        rows = self.tables.pick(tensor="projector", stat="weight_norm", S=s)
        noise = rows[rows["kind"] == "brownian"].set_index("step")["value"]
        trained = rows[(rows["kind"] == "train") & (rows["arm"] == arm)]
        paths = trained.pivot_table("value", "step", "seed")
        both = paths.index.intersection(noise.index)
        both = both[both > 0]
        ratio = np.log(paths.loc[both].div(noise.loc[both], axis=0))
        return ratio.pow(2).mean().pow(0.5)
