"""Controls of the projector sweep: loss and ‖W‖ / ABM with one thing changed at a time."""

from __future__ import annotations

import pandas as pd

from analysis.drawing.page import caption, key, page
from analysis.drawing.style import ARM_COLOURS, ARM_LOOKS, power_of_two
from analysis.quantities.losses import final_losses
from analysis.quantities.norms import at_stage_ends, at_step
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("projector_controls",)
# What is changed, from top to bottom, by the end of the arms' names after FPN or VPN.
CONTROLS = {
    "": "as in the sweep",
    "_COMPENSATED": "output factor 1/S",
    "_LEARNED_SMALL": "learned factor, fixed from the start",
    "_LEARNED_LARGE": "learned factor, fixed from the start",
    "_BATCH_QUARTER": "batch × 1/4",
    "_BATCH_FOURFOLD": "batch × 4",
    "_INIT_QUARTER": "initial norm × 1/4",
    "_INIT_FOURFOLD": "initial norm × 4",
    "_BETA2": r"$\beta_2$ = 0.99",
    "_CLIPPED": "clipped at every step",
    "_LONG": "4 times as long",
}
NAMES = {"FPN": "FPN (no multiplier)", "VPN": "VPN (learned vector)"}
CENTRE = "FPN_CENTRE"  # S = 1, drawn as a line


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: arm, S, seed, loss, weight_norm, over_noise.

    ‖W‖ is read at the end of each run's constant stage; Brownian motion is that of the same
    optimizer, batch and length do not enter it.
    """
    table = tables["projector_controls"]
    trained, noise = (
        table.pick(kind=kind, tensor="projector", stat="weight_norm")
        for kind in ("train", "brownian")
    )
    last = final_losses(table).set_index("run")
    rows = last[["arm", "S", "seed"]].assign(
        loss=last["value"],
        weight_norm=at_stage_ends(trained, table.trained).set_index("run")["value"],
    )
    noise = at_step(noise, table.stage_end).set_index(["arm", "S"])["value"]
    twins = rows["arm"].map(lambda arm: "VPN_BETA2" if arm.endswith("_BETA2") else "VPN")
    # The centre, S = 1, has no Brownian twin and needs none.
    noise = noise.reindex(pd.MultiIndex.from_arrays([twins, rows["S"]]))
    ratio = rows["weight_norm"] / noise.to_numpy()
    return rows.assign(over_noise=ratio.astype(float)).reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Losses at both S, then ‖W‖ over Brownian motion at both S."""
    centre = numbers.loc[numbers["arm"] == CENTRE, "loss"].mean()
    numbers = numbers[numbers["arm"] != CENTRE]
    scales = sorted(numbers["S"].unique())
    figure, axes = page(1, 4, 3.1, below=0.05, above=0.06, sharey=True)
    names = list(dict.fromkeys(reversed(CONTROLS.values())))
    at_best = {"color": ARM_COLOURS["FPN"], "lw": 0.8, "ls": ":"}
    for s, of_loss, of_norm in zip(scales, axes[:2], axes[2:], strict=True):
        for axis, quantity in ((of_loss, "loss"), (of_norm, "over_noise")):
            for arm, rows in numbers[numbers["S"] == s].groupby("arm"):
                height = names.index(CONTROLS[arm[3:]]) + 1
                axis.plot(rows[quantity], [height] * len(rows), ls="", **ARM_LOOKS[arm[:3]])
        of_loss.axvline(centre, **at_best)
        of_loss.set(title=f"loss, S = {power_of_two(s)}", xlabel="nats per token")
        of_norm.axvline(1.0, color="#555555", lw=0.8, ls=":")
        of_norm.set(title=rf"$\|W\|$ / ABM, S = {power_of_two(s)}", xscale="log")
        of_norm.xaxis.set_major_formatter("{x:g}")
        of_norm.xaxis.set_minor_formatter("")
        of_norm.set_xticks([0.5, 1, 2, 4])
    axes[0].set_yticks(range(1, len(names) + 1), names)
    handles = [key(name, ls="", **ARM_LOOKS[arm]) for arm, name in NAMES.items()]
    handles.append(key("FPN at S = 1", **at_best))
    figure.legend(handles=handles, loc="upper center", ncols=3)
    return caption(figure, context)
