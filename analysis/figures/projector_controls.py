"""Controls of the projector sweep: what FPN loses to VPN, and ‖W‖, with one thing changed.

a: loss of FPN less that of VPN under the same change. Three rows are compared with the sweep's VPN:
FPN at S = 1, FPN with a fixed output factor of 1/S, and with the factor that SPN had learned. b:
‖W‖ over that of Brownian motion. Filled: S = 1/8; open: S = 8. A row without runs says so.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.drawing.page import caption, key, label, legend_below, page
from analysis.drawing.style import ARM_COLOURS, ARM_LOOKS, NEUTRAL, plain_log_axis, power_of_two
from analysis.quantities.losses import final_losses
from analysis.quantities.norms import at_stage_ends, at_step
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = ("projector_controls",)
# What is changed, from top to bottom, by the end of the arms' names after FPN or VPN.
CONTROLS = {
    "": "as in the sweep",
    "_CENTRE": "frozen scale at S = 1",
    "_COMPENSATED": "output factor 1/S",
    "_LEARNED_SMALL": "output factor that a scalar learned",
    "_LEARNED_LARGE": "output factor that a scalar learned",
    "_BATCH_QUARTER": "batch × 1/4",
    "_BATCH_FOURFOLD": "batch × 4",
    "_INIT_QUARTER": "initial norm × 1/4",
    "_INIT_FOURFOLD": "initial norm × 4",
    "_BETA2": r"$\beta_2$ = 0.99",
    "_CLIPPED": "clipped at every step",
    "_LONG": "4 times as long",
}
# After these a group of rows ends: the reference, S or the factor repaired, the optimizer changed.
GROUPS_END = ("", "_LEARNED_LARGE", "_CLIPPED")
NAMES = {"FPN": "frozen scale (FPN)", "VPN": "learned vector (VPN)"}
CENTRE = "FPN_CENTRE"  # at S = 1, compared with VPN at either S


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
    """Two panels with the same rows."""
    figure, (a, b) = page(1, 2, 3.1, w_pad=0.05, sharey=True)
    names = list(dict.fromkeys(reversed(CONTROLS.values())))
    losses = numbers.pivot_table("loss", "arm", "S")
    swept = sorted(numbers.loc[numbers["arm"] != CENTRE, "S"].unique())
    # The S nearest the middle lies a little higher: points of both would cover each other.
    for s, lift in zip(swept, np.linspace(0.13, -0.13, len(swept)), strict=True):
        fill = {"ls": "", "ms": 3.8, "mew": 0.9}
        fill |= {} if s < 1 else {"markerfacecolor": "white"}
        for suffix, name in CONTROLS.items():
            height, fpn = names.index(name) + lift, f"FPN{suffix}"
            where = 1.0 if fpn == CENTRE else s
            if fpn in losses.index and np.isfinite(losses[where][fpn]):
                twin = losses[s].get(f"VPN{suffix}", np.nan)
                gap = losses[where][fpn] - (twin if np.isfinite(twin) else losses[s]["VPN"])
                a.plot([0, gap], [height] * 2, color=ARM_COLOURS["FPN"], lw=0.8, alpha=0.5)
                a.plot(gap, height, **ARM_LOOKS["FPN"] | fill)
                if not suffix:
                    a.text(gap, len(names) - 0.52, f"S = {power_of_two(s)}", ha="center",
                           va="center", fontsize=6.5, color="#444444")  # fmt: skip
            for arm in ("FPN", "VPN"):
                rows = numbers[(numbers["arm"] == f"{arm}{suffix}") & (numbers["S"] == s)]
                b.plot(rows["over_noise"], [height] * len(rows), **ARM_LOOKS[arm] | fill)
    a.margins(x=0.09)
    a.axvline(0, **NEUTRAL)
    b.axvline(1, **NEUTRAL)
    for axis in (a, b):
        for suffix in GROUPS_END:
            axis.axhline(names.index(CONTROLS[suffix]) - 0.5, color="#bbbbbb", lw=0.6)
        axis.grid(axis="y", visible=False)
    a.set_yticks(range(len(names)), names)
    a.set_ylim(-0.6, len(names) - 0.15)
    loss = "loss of a frozen scale (FPN) −\nloss of a learned vector (VPN) (nats)"
    label(a, "a   What a frozen scale loses", xlabel=loss)
    label(b, "b   Matrix norm", xlabel=r"$\|W\|$ / $\|W\|$ of Brownian motion" + "\n")
    plain_log_axis(b, x=True)
    for axis, arm, said in ((a, "_LONG", "not run with a frozen scale"),
                            (b, "_CENTRE", "no Brownian motion at S = 1")):  # fmt: skip
        axis.text(0.97, names.index(CONTROLS[arm]), said, transform=axis.get_yaxis_transform(),
                  ha="right", va="center", fontsize=6.5, color="#777777")  # fmt: skip
    handles = [key(name, ls="", **ARM_LOOKS[arm]) for arm, name in NAMES.items()]
    for s in swept:
        said = f"{'filled' if s < 1 else 'open'}: S = {power_of_two(s)}"
        look = {"color": "#444444", "marker": "o", "ls": "", "mew": 0.9}
        look |= {} if s < 1 else {"markerfacecolor": "white"}
        handles.append(key(said, **look))
    legend_below(figure, handles, len(handles))
    return caption(figure, context, "no intervals" if len(context.seeds) == 1 else "")
