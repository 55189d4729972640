"""Quantities of the MLP sweep (appendix B), for its claims and its figures.

Tables have seeds in rows and S in columns. Norms are root mean squares, read at the end of the
constant stage; losses are nats per token after the decay.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.norms import at_step, geometric_mean, stage_end
from analysis.stats import log_slope

OPTIMIZERS = {"Adam": "ADAM", "Muon": "MUON"}
# Without multipliers, with three scalar ones.
ARMS = {name: (arm, f"{arm}_LRM") for name, arm in OPTIMIZERS.items()}
BLOCKS = {"MLP": "mlp.down", "SSM": "ssm.out", "attention": "attention.out"}
MLP = ("mlp.gate", "mlp.up", "mlp.down")
# Merged matrices count as one.
MATRICES = {
    "MLP": tuple((name,) for name in MLP),
    "SSM": (("ssm.z", "ssm.x", "ssm.B", "ssm.C", "ssm.dt"), ("ssm.out",)),
    "attention": (("attention.q", "attention.k", "attention.v"), ("attention.out",)),
    "embedding": (("embedding",),),
}


class MlpSweep:
    """The tidy frame of the experiment, asked for tables."""

    def __init__(self, frame: pd.DataFrame, runs: pd.DataFrame):
        self.frame, self.runs = frame[frame["kind"] == "train"], runs
        description = runs[runs["kind"] == "train"].iloc[0]["description"]
        settings = description["settings"]
        self.steps = settings["train"]["steps"]
        self.stage_end = stage_end(settings)
        rules = [rule for rule in description["rules"] if rule["multiplier"] is None]
        self.sizes = {rule["tensor"]: float(np.prod(rule["shape"])) for rule in rules}
        self._kept: dict[tuple, pd.DataFrame] = {}

    def measured(self, arm: str, tensor: str, stat: str) -> pd.DataFrame:
        """Columns seed, S, layer, value of one tensor as the constant stage ends."""
        key = (arm, tensor, stat)
        if key not in self._kept:
            f = self.frame
            chosen = f[(f["arm"] == arm) & (f["tensor"] == tensor) & (f["stat"] == stat)]
            last = at_step(chosen, self.stage_end)
            self._kept[key] = last[["seed", "S", "layer", "value"]]
        return self._kept[key]

    def table(self, arm: str, tensor: str, stat: str, layer: int | None = None) -> pd.DataFrame:
        """Geometric mean over layers, or one layer's value."""
        found = self.measured(arm, tensor, stat)
        if layer is not None:
            found = found[found["layer"] == layer]
        return found.groupby(["seed", "S"])["value"].apply(geometric_mean).unstack("S")

    def layers(self, arm: str, tensor: str, stat: str) -> list[int]:
        """The layers that have this measurement."""
        return sorted(self.measured(arm, tensor, stat)["layer"].unique())

    def matrices(self, arm: str, block: str) -> pd.DataFrame:
        """‖W‖ of a block's matrices: geometric mean over layers and matrices."""
        parts = [self.merged(arm, names) for names in MATRICES[block]]
        return np.exp(sum(np.log(part) for part in parts) / len(parts))

    def merged(self, arm: str, names: tuple[str, ...]) -> pd.DataFrame:
        """‖W‖ of slices as the one matrix that they are, geometric mean over layers."""
        if len(names) == 1:
            return self.table(arm, names[0], "weight_norm")
        squares, total = 0.0, 0.0
        for name in names:
            rows = self.measured(arm, name, "weight_norm").set_index(["seed", "S", "layer"])
            size = self.sizes[f"{name}@0"]
            squares, total = squares + size * rows["value"] ** 2, total + size
        norms = np.sqrt(squares / total)
        return norms.groupby(["seed", "S"]).apply(geometric_mean).unstack("S")

    def output(self, arm: str, block: str, layer: int | None = None) -> pd.DataFrame:
        """Norm of a block's output, or of the embedding's."""
        return self.table(arm, BLOCKS.get(block, block), "activation_norm", layer)

    def multiplier(self, arm: str) -> pd.DataFrame:
        """|s|: geometric mean over layers and the three matrices."""
        parts = [self.table(arm, name, "scalar_multiplier_norm") for name in MLP]
        return np.exp(sum(np.log(part) for part in parts) / len(parts))

    def loss(self, arm: str) -> pd.DataFrame:
        """Validation loss after the decay."""
        f = self.frame
        chosen = f[(f["arm"] == arm) & (f["stat"] == "validation_loss")]
        return at_step(chosen, self.steps).pivot_table("value", "seed", "S")

    def multiplier_lr(self, arm: str) -> float:
        """LR of the multipliers, from the stored rule table."""
        rows = self.runs[(self.runs["arm"] == arm) & (self.runs["kind"] == "train")]
        rules = rows.iloc[0]["description"]["rules"]
        return max(rule["lr"] for rule in rules if rule["multiplier"] == "scalar")

    def judged(self, criterion: dict) -> list[float]:
        """S from ``range`` at which every learned arm's multipliers can travel to their place.

        Needed is the value learned at S = 1 over S. Not judged: a change beyond a third of Ση,
        or a step of more than a tenth of the value. The extremes outside of ``range`` are shown
        only.
        """
        limits, (low, high) = criterion["travel"], criterion["range"]
        allowed: set[float] | None = None
        for arm in set(self.frame["arm"]) & {learned for _, learned in ARMS.values()}:
            values, lr = self.multiplier(arm), self.multiplier_lr(arm)
            at_one = float(np.exp(np.log(values[1.0]).mean()))
            good = {
                s
                for s in values.columns
                if low <= s <= high
                and abs(at_one / s - 1) <= limits["fraction"] * lr * self.stage_end
                and lr <= limits["step"] * at_one / s
            }
            allowed = good if allowed is None else allowed & good
        return sorted(allowed or ())


def slopes(table: pd.DataFrame, points: list[float]) -> pd.Series:
    """Log-log slope against S over ``points``, one per seed."""
    return table[points].apply(lambda row: log_slope(row.index, row), axis=1)


def growth(table: pd.DataFrame, points: list[float]) -> pd.Series:
    """ln of the value at the last of ``points`` over that at the first, one per seed."""
    return np.log(table[points[-1]] / table[points[0]])


def growths(sweep: MlpSweep, arm: str, points: list[float]) -> pd.DataFrame:
    """``growth`` from S = 1 to the last of ``points``: seeds in rows, what grows in columns.

    Outputs and matrices of every block, Q, K and V apart from attention's last matrix, and what
    else can change its scale in the SSM: conv1d and D.
    """
    matrices = {name: sweep.matrices(arm, name) for name in ("MLP", "SSM", "embedding")}
    qkv = sweep.merged(arm, ("attention.q", "attention.k", "attention.v"))
    tables = {
        **{f"{name} output": sweep.output(arm, name) for name in (*BLOCKS, "embedding")},
        **{f"{name} ‖W‖": table for name, table in matrices.items()},
        "attention QKV ‖W‖": qkv,
        "attention out ‖W‖": sweep.merged(arm, ("attention.out",)),
        "conv1d": sweep.table(arm, "ssm.conv", "weight_norm"),
        "D": sweep.table(arm, "ssm.D", "weight_norm"),
    }
    return pd.DataFrame({name: growth(table, [1.0, points[-1]]) for name, table in tables.items()})


def excess(losses: pd.DataFrame, s: float, points: list[float]) -> pd.Series:
    """Loss at ``s`` over the arm's own best mean among ``points``, paired by seed."""
    return losses[s] - losses[losses[points].mean().idxmin()]
