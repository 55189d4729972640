"""Controls of the projector sweep: what FPN loses to VPN, and ‖W‖, with one thing changed.

a, b: loss of FPN less that of VPN under the same change, at either S. The grey strip tells how far
seeds differ: a row in it is as the sweep. FPN with a fixed output factor of 1/S, or with the factor
that SPN had learned, is compared with the sweep's VPN, and so is FPN at S = 1, the dashed line in
these rows; there the strip is that line's. c, d: ‖W‖ over that of Brownian motion.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from analysis.drawing.page import caption, headline, key, label, legend_below, page
from analysis.drawing.style import (
    ARM_COLOURS,
    ARM_LOOKS,
    NEUTRAL,
    plain_log_axis,
    power_of_two,
)
from analysis.quantities.losses import final_losses
from analysis.quantities.norms import at_stage_ends, at_step
from analysis.tables.context import Context
from analysis.tables.results import FIRST_JUDGING_SEED, Tables

EXPERIMENTS = ("projector_controls",)
# What is changed, from top to bottom, by the end of the arms' names after FPN or VPN.
CONTROLS = {
    "": "as in the sweep",
    "_BATCH_QUARTER": "batch × 1/4",
    "_BATCH_FOURFOLD": "batch × 4",
    "_INIT_QUARTER": "initial norm × 1/4",
    "_INIT_FOURFOLD": "initial norm × 4",
    "_BETA2": r"$\beta_2$ = 0.99",
    "_CLIPPED": "clipped at every step",
    "_LEARNED_SMALL": "output factor as SPN learned it",
    "_LEARNED_LARGE": "output factor as SPN learned it",
    "_COMPENSATED": "output factor 1/S (identity check)",
}
# The rows of FPN with a fixed factor, which have no VPN of their own.
FACTORS = ("_LEARNED_SMALL", "_LEARNED_LARGE", "_COMPENSATED")
# After these a group of rows ends: the reference, the optimizer changed, the factor repaired.
GROUPS_END = ("", "_CLIPPED")
LONG = "VPN_LONG"  # told in the caption: FPN has no twin of it
NAMES = {"FPN": "frozen scale (FPN)", "VPN": "learned vector (VPN)"}
CENTRE = "FPN_CENTRE"  # at S = 1, compared with VPN at either S
# How far the losses of two seeds of the sweep differ, in nats (the experiment's page).
BETWEEN_SEEDS = 0.06
MESSAGE = (
    "{n}Batch, start, β₂ and clipping leave most of what freezing costs at S = 1/8;\n"
    "a fixed output factor takes most of it away"
)
UNCHANGED = {"color": "#e2e2e2", "lw": 0, "zorder": 0}
RECOVERED = {"color": "#222222", "lw": 0.9, "ls": (0, (3, 2))}
NEAR_RECOVERED = {"color": "#56B4E9", "alpha": 0.28, "lw": 0, "zorder": 0.1}
# The least range of c and d, so that no point stands on a spine.
RATIOS = (0.6, 3.2)


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
    """Panels with the same rows: for each S the losses, then for each S the norms."""
    swept = sorted(numbers.loc[numbers["arm"] != CENTRE, "S"].unique())
    figure, axes = page(1, 2 * len(swept), 3.3, w_pad=0.03, sharey=True)
    headline(figure, MESSAGE.format(n="One seed. " * (len(context.seeds) == 1)))
    names = list(dict.fromkeys(reversed(CONTROLS.values())))
    losses = numbers.pivot_table("loss", "arm", "S")
    explores = max(context.seeds) < FIRST_JUDGING_SEED
    letters = iter("abcdefgh")
    of_loss, of_norm = axes[: len(swept)], axes[len(swept) :]
    for axis, s in zip(of_loss, swept, strict=True):
        _losses(axis, losses, s, names, explores)
        label(axis, f"{next(letters)}   Loss, S = {power_of_two(s)}", xlabel="FPN − VPN (nats)")
    for axis, s in zip(of_norm, swept, strict=True):
        own = numbers[numbers["S"] == s]
        for suffix, name in CONTROLS.items():
            for arm in NAMES:
                rows = own.loc[own["arm"] == f"{arm}{suffix}", "over_noise"]
                look = _look(arm, explores)
                axis.plot(rows, [names.index(name)] * len(rows), **look)
        axis.axvline(1, **NEUTRAL)
        title = rf"{next(letters)}   $\|W\|$, S = {power_of_two(s)}"
        label(axis, title, xlabel=r"$\|W\|$ / Brownian" + "\nmotion's " + r"$\|W\|$")
    for axis in of_norm:
        plain_log_axis(axis, x=True)
    for axis in of_loss:
        axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    for group, least in ((of_loss, ()), (of_norm, RATIOS)):
        limits = np.concatenate([least, *(axis.get_xlim() for axis in group)])
        for axis in group:
            axis.set_xlim(limits.min(), limits.max())
    for axis in axes:
        for suffix in GROUPS_END:
            axis.axhline(names.index(CONTROLS[suffix]) - 0.5, color="#bbbbbb", lw=0.6)
        axis.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(-0.5, len(names) - 0.5)
    handles = [key(name, **_look(arm, explores)) for arm, name in NAMES.items()]
    handles.append(key("frozen scale at S = 1 (no noise run)", **RECOVERED))
    handles += [
        Patch(**look, label=f"{name} ± {BETWEEN_SEEDS:g}")
        for name, look in (("as in the sweep", UNCHANGED), ("as at S = 1", NEAR_RECOVERED))
    ]
    legend_below(figure, handles, 3)
    notes = [f"± {BETWEEN_SEEDS:g}: how far seeds differ in the sweep"]
    if len(context.seeds) == 1:
        notes.insert(0, "no intervals")
    return caption(figure, context, "; ".join(notes) + _told_of_long(numbers))


def _told_of_long(numbers: pd.DataFrame) -> str:
    """‖W‖ of VPN over noise in runs of four times the length, if there are any."""
    found = numbers[numbers["arm"] == LONG].groupby("S")["over_noise"].mean()
    if found.empty:
        return ""
    said = ", ".join(f"{value:.2f} (S = {power_of_two(s)})" for s, value in found.items())
    return f"\nin 4 times as many steps VPN's ‖W‖ / Brownian motion's is {said}"


def _losses(axis, losses: pd.DataFrame, s: float, names: list[str], explores: bool) -> None:
    """What FPN loses to VPN under each change at S, with what it loses unchanged and at S = 1."""
    vpn = losses[s].get("VPN", np.nan)
    unchanged = losses[s].get("FPN", np.nan) - vpn
    # Rows of factors are the lowest.
    border = max(names.index(CONTROLS[suffix]) for suffix in FACTORS) + 0.5
    _strip(axis, unchanged, border, len(names) - 0.5, UNCHANGED)
    if CENTRE in losses.index:
        centre = losses.loc[CENTRE, 1.0] - vpn
        _strip(axis, centre, -0.5, border, NEAR_RECOVERED)
        axis.plot([centre] * 2, [-0.5, border], **RECOVERED)
    for suffix, name in CONTROLS.items():
        fpn = losses[s].get(f"FPN{suffix}", np.nan)
        if np.isfinite(fpn):
            twin = losses[s].get(f"VPN{suffix}", np.nan)
            gap, height = fpn - (twin if np.isfinite(twin) else vpn), names.index(name)
            axis.plot([0, gap], [height] * 2, color=ARM_COLOURS["FPN"], lw=0.8, alpha=0.5)
            axis.plot(gap, height, **_look("FPN", explores))
    axis.axvline(0, **NEUTRAL)


def _strip(axis, middle: float, low: float, high: float, look: dict) -> None:
    """How far seeds differ, around a value, in the rows from ``low`` to ``high``."""
    axis.fill_betweenx([low, high], middle - BETWEEN_SEEDS, middle + BETWEEN_SEEDS, **look)


def _look(arm: str, explores: bool) -> dict:
    """Points of an arm, hollow where seeds explore."""
    hollow = {"markerfacecolor": "white"} if explores else {}
    return ARM_LOOKS[arm] | {"ls": "", "ms": 3.8, "mew": 0.9} | hollow
