"""Quantities of the MLP sweep (appendix B), for its claims and its figures.

Tables have seeds in rows and S in columns. Norms are root mean squares, read at the end of the
constant stage; losses are nats per token after the decay.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd

from analysis.quantities.norms import at_step, geometric_mean
from analysis.quantities.sweep import Sweep
from analysis.tables.results import Tables, kept

OPTIMIZERS = {"Adam": "ADAM", "Muon": "MUON"}
# The arm without multipliers, and the one with three scalar multipliers.
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


class MlpSweep(Sweep):
    """The experiment's tables: seeds in rows, S in columns."""

    learned = tuple(learned for _, learned in ARMS.values())

    @cached_property
    def sizes(self) -> dict[str, float]:
        """Numbers of entries of matrices, by address."""
        rules = self.tables.trained.iloc[0]["description"]["rules"]
        rules = [rule for rule in rules if rule["multiplier"] is None]
        return {rule["tensor"]: float(np.prod(rule["shape"])) for rule in rules}

    @kept
    def measured(self, arm: str, tensor: str, stat: str) -> pd.DataFrame:
        """Columns seed, S, layer, value of one tensor as the constant stage ends."""
        rows = self.tables.pick(kind="train", arm=arm, tensor=tensor, stat=stat)
        return at_step(rows, self.stage_end)[["seed", "S", "layer", "value"]]

    @kept
    def table(self, arm: str, tensor: str, stat: str, layer: int | None = None) -> pd.DataFrame:
        """Geometric mean over layers, or one layer's value."""
        rows = self.measured(arm, tensor, stat)
        rows = rows if layer is None else rows[rows["layer"] == layer]
        return rows.groupby(["seed", "S"])["value"].apply(geometric_mean).unstack("S")

    def layers(self, arm: str, tensor: str, stat: str) -> list[int]:
        """The layers that have this measurement."""
        return sorted(self.measured(arm, tensor, stat)["layer"].unique())

    def matrices(self, arm: str, block: str) -> pd.DataFrame:
        """‖W‖ of a block's matrices: geometric mean over layers and matrices."""
        return _mean([self.merged(arm, names) for names in MATRICES[block]])

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
        return _mean([self.table(arm, name, "scalar_multiplier_norm") for name in MLP])

    def is_multiplier(self, rule: dict) -> bool:
        """The scalars."""
        return rule["multiplier"] == "scalar"


def _mean(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Geometric mean of tables, entry by entry."""
    return np.exp(sum(np.log(table) for table in tables) / len(tables))


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


def by_frequency(tables: Tables, deciles: int = 10) -> pd.DataFrame:
    """Columns arm, S, seed, decile, norm, noise, share: the embedding's rows by frequency.

    RMS of the rows of each decile of tokens, from rare (0) to frequent (9), as training ends;
    ``noise`` that of Brownian motion masked by the same occurrences, ``share`` the mean share of
    steps whose batch holds a token. Tokens never seen are left out.
    """
    rows = tables.pick_vectors(tensor="embedding")
    rows = rows[rows["step"] == rows["step"].max()]
    noise = rows[rows["kind"] == "brownian"]
    frequency = noise.loc[noise["stat"] == "frequency", "value"].iloc[0]
    twin = noise.loc[noise["stat"] == "row_norms", "value"].iloc[0]
    seen = np.flatnonzero(frequency > 0)
    groups = np.array_split(seen[np.argsort(frequency[seen], kind="stable")], deciles)

    def norm(values: np.ndarray, group: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.square(values[group], dtype=np.float64))))

    trained = rows[(rows["kind"] == "train") & (rows["stat"] == "row_norms")]
    parts = []
    for row in trained.itertuples():
        of_run = {"arm": row.arm, "S": row.S, "seed": row.seed, "decile": range(deciles)}
        part = pd.DataFrame(of_run, index=range(deciles))
        part["norm"] = [norm(row.value, group) for group in groups]
        part["noise"] = [norm(twin, group) for group in groups]
        parts.append(part.assign(share=[float(frequency[group].mean()) for group in groups]))
    return pd.concat(parts, ignore_index=True)


def living(sweep: MlpSweep, arm: str, block: str, points: list[float]) -> pd.DataFrame:
    """Whether each layer's output at the last of ``points`` is there; by seed and layer.

    It is not where it is below a tenth of what the same layer puts out at S = 1.
    """
    outputs = {
        int(layer): sweep.output(arm, block, layer)
        for layer in sweep.layers(arm, BLOCKS[block], "activation_norm")
    }
    return pd.DataFrame({n: ~(t[points[-1]] < 0.1 * t[1.0]) for n, t in outputs.items()})


def switched_off(sweep: MlpSweep, arm: str, block: str, points: list[float]) -> pd.Series:
    """In how many seeds each layer is not among ``living``; indexed by layer."""
    return (~living(sweep, arm, block, points)).sum()


def over_living(
    sweep: MlpSweep, arm: str, points: list[float], stat: str = "weight_norm"
) -> pd.DataFrame:
    """Geometric mean of ``stat`` over Adam's MLP matrices and each seed's ``living`` layers.

    The layers are those of the arm with multipliers, at all S and in both arms.
    """
    on = living(sweep, ARMS["Adam"][1], "MLP", points).stack()
    logs = []
    for name in MLP:
        rows = sweep.measured(arm, name, stat)
        table = np.log(rows.pivot_table("value", ["seed", "layer"], "S")[points])
        logs.append(table[on.reindex(table.index)].groupby("seed").mean())
    return np.exp(sum(logs) / len(logs))
