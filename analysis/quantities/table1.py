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

from analysis.quantities.norms import at_stage_ends
from analysis.quantities.stats import log_slope
from analysis.tables.results import Tables, kept, stage_end

# (e_η, e_λ, e_s) of each recipe.
RECIPES = {"LR": (-1.0, 0.0, 0.0), "LR_WD": (-1.0, 1.0, 0.0), "S": (0.0, 0.0, -1.0)}
OPTIMIZERS = ("ADAM", "MUON", "JORDAN")
CASES = {"one_input": 0.0, "fresh_inputs": -0.5}  # and their a
# u of each optimizer.
_UPDATE = {
    "one_input": {"ADAM": 0.0, "MUON": -0.5, "JORDAN": -1.0},
    "fresh_inputs": {"ADAM": 0.0, "MUON": 0.0, "JORDAN": -0.5},
}
# The layer under noise, and that of a model: its input is a frozen norm's output.
LAYER, IN_MODEL = "attention.q", "mlp.up"
# The optimizer and the recipe of each arm.
MODELS = {f"{o}_{r}": (o, r) for o in OPTIMIZERS for r in RECIPES}
LAYERS = {f"LAYER_{arm}": names for arm, names in MODELS.items()}
STATS = ("output_norm", "relative_update", "alignment")


def derived(optimizer: str, recipe: str, case: str) -> dict[str, float]:
    """The exponents of ``STATS`` and of ``weight_norm``."""
    (lr, decay, multiplier), alignment = RECIPES[recipe], CASES[case]
    norm = _UPDATE[case][optimizer] + (lr - decay) / 2
    return {
        "weight_norm": norm,
        "output_norm": multiplier + 1 + alignment + norm,
        "relative_update": (lr + decay) / 2,
        "alignment": alignment,
    }


def layer_values(tables: Tables) -> pd.DataFrame:
    """Columns optimizer, recipe, case, draw, width, stat, value: of a layer under noise.

    Values are means up to the end of the constant stage.
    """
    chosen = tables.pick_vectors(arm=tuple(LAYERS))
    chosen = chosen[chosen["stat"].str.endswith("_draws")]
    cases = chosen["tensor"].str.removeprefix(f"{LAYER}.")
    chosen = chosen.assign(case=cases)[cases.isin(CASES)]
    ends = {row.run: stage_end(row.description["settings"]) for row in tables.runs.itertuples()}
    last = chosen[chosen["step"] == chosen["run"].map(ends)]
    draws = last.explode("value").assign(stat=last["stat"].str.removesuffix("_draws"))
    # Each seed has draws of its own.
    draws = draws.sort_values("seed", kind="stable")
    same = ["arm", "width", "case", "stat"]
    draws["draw"] = draws.groupby(same, observed=True).cumcount()
    draws["value"] = draws["value"].astype(float)
    keys = ["arm", "case", "draw", "width"]
    return _with_alignment(draws.pivot_table("value", keys, "stat"), LAYERS, STATS)


@kept
def model_values(tables: Tables) -> pd.DataFrame:
    """Columns optimizer, recipe, seed, width, stat, value: means over layers of ``IN_MODEL``."""
    stats = ("activation_norm", "weight_norm")
    chosen = tables.pick(arm=tuple(MODELS), tensor=IN_MODEL, stat=stats)
    last = at_stage_ends(chosen, tables.trained)
    logs = last.assign(value=np.log(last["value"].astype(float)))
    wide = np.exp(logs.pivot_table("value", ["arm", "seed", "width"], "stat"))
    wide = wide.rename(columns={"activation_norm": "output_norm"})
    return _with_alignment(wide, MODELS, ("weight_norm", "output_norm", "alignment"))


def _with_alignment(wide: pd.DataFrame, arms: dict, stats: tuple[str, ...]) -> pd.DataFrame:
    """Long, with α = ‖y‖ / (s d ‖W‖) but for what no width changes, and arms told apart."""
    wide = wide.reset_index()
    wide["optimizer"], wide["recipe"] = zip(*wide.pop("arm").map(arms), strict=True)
    exponent = 1 + wide["recipe"].map(lambda recipe: RECIPES[recipe][2])
    scale = wide["width"].astype(float) ** exponent
    wide["alignment"] = wide["output_norm"] / (scale * wide["weight_norm"])
    keys = [name for name in wide.columns if name not in (*stats, *STATS, "weight_norm")]
    return wide.melt(keys, list(stats), "stat")


def exponents(values: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The exponent of d in ``value`` for every group of ``by``, least squares over widths."""
    ordered = values.sort_values("width").astype({"width": float, "value": float})
    slopes = ordered.groupby(by, observed=True)[["width", "value"]].apply(
        lambda rows: log_slope(rows["width"], rows["value"])
    )
    return slopes.rename("exponent").reset_index()
