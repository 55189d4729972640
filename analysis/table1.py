"""Table 1: how ‖y‖ and ‖Δy‖/‖y‖ of y = s W x scale with the width in equilibrium (section 4.2).

With η ∝ d^e_η, λ ∝ d^e_λ, s ∝ d^e_s, an update of root mean square η d^u, and alignment α ∝ d^a,

    ‖W‖ ∝ d^(u + (e_η − e_λ)/2),   ‖y‖ = s d α ‖W‖ ‖x‖ ∝ d^(e_s + 1 + a + u + (e_η − e_λ)/2),

and ‖ΔW‖/‖W‖ ∝ sqrt(η λ), which is also ‖Δy‖/‖y‖ where ΔW and W are as aligned with x. Adam has
u = 0. Muon's update has singular values of 1, as many as the gradient has: of one input, its root
mean square is 1/d, of fresh inputs d^(−½), times Jordan's shape factor (constant for matrices whose
sides grow together) or Moonlight's (∝ d^½).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.norms import at_step, stage_end
from analysis.stats import log_slope

# (e_η, e_λ, e_s) of each recipe.
RECIPES = {"LR": (-1.0, 0.0, 0.0), "LR_WD": (-1.0, 1.0, 0.0), "S": (0.0, 0.0, -1.0)}
OPTIMIZERS = ("ADAM", "MUON", "JORDAN")
CASES = {"one_input": 0.0, "fresh_inputs": -0.5}  # and their a
_UPDATE = {
    ("ADAM", "one_input"): 0.0,
    ("ADAM", "fresh_inputs"): 0.0,
    ("MUON", "one_input"): -0.5,
    ("MUON", "fresh_inputs"): 0.0,
    ("JORDAN", "one_input"): -1.0,
    ("JORDAN", "fresh_inputs"): -0.5,
}
# The linear layer of both, and what it is in a model: its input is a frozen norm's output.
LAYER = "mlp.up"
STATS = ("output_norm", "relative_update", "alignment")


def derived(
    optimizer: str, recipe: str, case: str, alignment: float | None = None
) -> dict[str, float]:
    """The exponents of ``STATS`` and of ``weight_norm``; ``alignment`` in place of the case's."""
    lr, decay, multiplier = RECIPES[recipe]
    alignment = CASES[case] if alignment is None else alignment
    norm = _UPDATE[optimizer, case] + (lr - decay) / 2
    return {
        "weight_norm": norm,
        "output_norm": multiplier + 1 + alignment + norm,
        "relative_update": (lr + decay) / 2,
        "alignment": alignment,
    }


def layer_values(vectors: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Of the layer when the constant stage ends: columns arm, case, draw, width, stat, value."""
    chosen = vectors[(vectors["kind"] == "brownian") & vectors["stat"].str.endswith("_draws")]
    ends = _stage_ends(runs, "brownian")
    found = []
    for (run, arm, width, tensor, stat), rows in chosen.groupby(
        ["run", "arm", "width", "tensor", "stat"], observed=True
    ):
        case = tensor.removeprefix(f"{LAYER}.")
        if case not in CASES:
            continue
        rows = rows[rows["step"] <= ends[run]].sort_values("step")
        values = np.asarray(rows["value"].iloc[-1], dtype=float)
        found.append(
            pd.DataFrame(
                {"arm": arm, "case": case, "stat": stat.removesuffix("_draws"),
                 "draw": range(len(values)), "width": width, "value": values}
            )
        )  # fmt: skip
    table = pd.concat(found, ignore_index=True)
    wide = table.pivot_table("value", ["arm", "case", "draw", "width"], "stat").reset_index()
    scale = wide["arm"].map(lambda arm: RECIPES[arm.partition("_")[2]][2])
    factor = wide["width"].astype(float) ** (1 + scale)
    wide["alignment"] = wide["output_norm"] / (factor * wide["weight_norm"])
    return wide.melt(["arm", "case", "draw", "width"], list(STATS), "stat")


def model_values(frame: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Of ``LAYER`` in a model, averaged over layers: columns arm, seed, width, stat, value."""
    trained = frame[(frame["kind"] == "train") & (frame["tensor"] == LAYER)]
    ends = _stage_ends(runs, "train")
    parts = [at_step(rows, ends[run]) for run, rows in trained.groupby("run", observed=True)]
    chosen = pd.concat(parts)
    chosen = chosen[chosen["stat"].isin(["activation_norm", "weight_norm"])]
    logs = chosen.assign(value=np.log(chosen["value"].astype(float)))
    wide = np.exp(logs.pivot_table("value", ["arm", "seed", "width"], "stat")).reset_index()
    scale = wide["arm"].map(lambda arm: RECIPES[arm.partition("_")[2]][2])
    factor = wide["width"].astype(float) ** (1 + scale)
    wide["output_norm"] = wide["activation_norm"]
    wide["alignment"] = wide["activation_norm"] / (factor * wide["weight_norm"])
    return wide.melt(["arm", "seed", "width"], ["output_norm", "alignment", "weight_norm"], "stat")


def exponents(values: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The exponent of d in ``value`` for every group of ``by``, least squares over widths."""
    rows = []
    for group, of in values.groupby(by, observed=True):
        of = of.sort_values("width")
        slope = log_slope(of["width"].astype(float), of["value"].astype(float))
        rows.append({**dict(zip(by, group, strict=True)), "exponent": slope})
    return pd.DataFrame(rows)


def _stage_ends(runs: pd.DataFrame, kind: str) -> dict[str, int]:
    chosen = runs[runs["kind"] == kind]
    return {row.run: stage_end(row.description["settings"]) for row in chosen.itertuples()}
