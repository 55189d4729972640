"""Controls of the projector sweep: what freezing costs, and ‖W‖, with one thing changed.

Top: loss of FPN less that of VPN under the same change, at either S. The grey strip has the middle
90% of the same difference over the seeds of the published sweep. Bottom: loss of FPN less that of
FPN at S = 1, without a fixed output factor, with the factor that SPN had learned, and with 1/S. At
the right of both: ‖W‖ over that of Brownian motion.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from analysis.drawing.page import caption, headline, key, label, legend_below, sheet, written_of
from analysis.drawing.style import (
    ARM_COLOURS,
    ARM_LOOKS,
    NEUTRAL,
    S_MEANS,
    SMALL,
    plain_log_axis,
    power_of_two,
)
from analysis.quantities.losses import final_losses
from analysis.quantities.norms import at_stage_ends
from analysis.tables.context import Context
from analysis.tables.results import FIRST_JUDGING_SEED, Tables

EXPERIMENTS = ("projector_controls",)
# What is changed, from top to bottom, by the end of the arms' names after FPN or VPN.
CHANGES = {
    "": "as in the sweep",
    "_BATCH_QUARTER": "batch, tokens × 1/4",
    "_BATCH_FOURFOLD": "batch, tokens × 4",
    "_INIT_QUARTER": "initial norm × 1/4",
    "_INIT_FOURFOLD": "initial norm × 4",
    "_BETA2": r"$\beta_2$ = 0.99",
    "_CLIPPED": "clipped at norm 1",
    "_LONG": "steps × 4",
}
# Fixed factors of FPN's output: these arms have no VPN of their own.
FACTORS = {
    "": "no factor",
    "_LEARNED_SMALL": "factor SPN learned",
    "_LEARNED_LARGE": "factor SPN learned",
    "_COMPENSATED": "factor 1/S (identity)",
}
NAMES = {"FPN": "frozen scale (FPN)", "VPN": "learned vector (VPN)"}
CENTRE = "FPN_CENTRE"  # at S = 1: the zero of factors
# FPN − VPN in nats over the twenty seeds of the projector sweep as published at tiny, quantiles 5%
# and 95% (a test computes them).
SPREAD = {0.125: (0.189, 0.249), 8.0: (0.114, 0.182)}
# Of the two rows of panels: their message, and against what FPN's loss stands.
ROWS = (
    (
        "One seed: start, β₂ and clipping keep the cost of freezing, other batches mostly lower it",
        "FPN − VPN (nats)",
    ),
    (
        "A fixed factor of 1/S removes the cost; SPN's most of it at S = 1/8, a third at S = 8",
        "FPN − FPN at\nS = 1 (nats)",
    ),
)
# What the panels of norms show, by S.
NORMS = {0.125: "FPN > 2× noise", 8.0: "FPN below noise"}
STRIP = {"color": "#e2e2e2", "lw": 0}
# The least range of norms, so that no point stands on a spine.
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
    motions = table.runs[table.runs["kind"] == "brownian"]
    noise = at_stage_ends(noise, motions).set_index(["arm", "S"])["value"]
    twins = rows["arm"].map(lambda arm: "VPN_BETA2" if arm.endswith("_BETA2") else "VPN")
    # The centre, S = 1, has no Brownian twin and needs none.
    noise = noise.reindex(pd.MultiIndex.from_arrays([twins, rows["S"]]))
    ratio = rows["weight_norm"] / noise.to_numpy()
    return rows.assign(over_noise=ratio.astype(float)).reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Above the changes, below the factors: for each S the losses, then for each S the norms."""
    swept = sorted(numbers.loc[numbers["arm"] != CENTRE, "S"].unique())
    figure = sheet(4.8, w_pad=0.03, h_pad=0.03)
    tall = [len(_rows_of(changed)) + 5 for changed in (CHANGES, FACTORS)]  # with the labels
    parts = figure.subfigures(2, 1, height_ratios=tall)
    losses = numbers.pivot_table("loss", "arm", "S")
    hollow = max(context.seeds) < FIRST_JUDGING_SEED
    letters = iter("abcdefgh")
    of_losses, of_norms = [], []
    for part, changed, (message, against) in zip(parts, (CHANGES, FACTORS), ROWS, strict=True):
        names = _rows_of(changed)
        headline(part, message, context)
        axes = part.subplots(1, 2 * len(swept), sharey=True)
        for axis, s in zip(axes, swept, strict=False):
            label(axis, f"{next(letters)}   Loss, S = {power_of_two(s)}", xlabel=against)
            _losses(axis, losses, s, changed, hollow)
            if changed is CHANGES and context.scale == "tiny":
                axis.axvspan(*SPREAD[s], **STRIP, zorder=0)
            of_losses.append(axis)
        for axis, s in zip(axes[len(swept) :], swept, strict=True):
            told = f":\n{NORMS[s]}" if changed is CHANGES and written_of(context) else ""
            label(axis, rf"{next(letters)}   $\|W\|$, S = {power_of_two(s)}{told}",
                  xlabel=r"$\|W\|$ / noise's $\|W\|$")  # fmt: skip
            _norms(axis, numbers[numbers["S"] == s], changed, hollow)
            of_norms.append(axis)
        for axis in axes:
            axis.grid(axis="y", visible=False)
            axis.tick_params(axis="y", length=0)
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set_ylim(-0.5, len(names) - 0.5)
    for group, least in ((of_losses, ()), (of_norms, RATIOS)):
        limits = np.concatenate([least, *(axis.get_xlim() for axis in group)])
        for axis in group:
            axis.set_xlim(limits.min(), limits.max())
    handles = [key(name, **_look(arm, hollow)) for arm, name in NAMES.items()]
    if context.scale == "tiny":
        handles.append(Patch(**STRIP, label="the sweep's FPN − VPN: middle 90% of 20 seeds"))
    legend_below(figure, handles, len(handles), columnspacing=1.0)
    note = "no intervals; " if len(context.seeds) == 1 else ""
    note += (
        "noise: Brownian motion; SPN: learned scalar; factor: of the output\n"
        f"{S_MEANS}, of the LM head"
    )
    return caption(figure, context, note)


def _rows_of(changed: dict[str, str]) -> list[str]:
    """The names of the rows, from below."""
    return list(dict.fromkeys(reversed(changed.values())))


def _losses(axis, losses: pd.DataFrame, s: float, changed: dict[str, str], hollow: bool) -> None:
    """What FPN loses at S: to VPN under the same change, or with a factor to FPN at S = 1."""
    names = _rows_of(changed)
    gaps = dict.fromkeys(names, np.nan)
    for suffix, name in changed.items():
        against = (f"VPN{suffix}", s) if changed is CHANGES else (CENTRE, 1.0)
        gap = _loss(losses, f"FPN{suffix}", s) - _loss(losses, *against)
        gaps[name] = gap if np.isfinite(gap) else gaps[name]
    for height, gap in enumerate(gaps.values()):
        if np.isfinite(gap):
            axis.plot([0, gap], [height] * 2, color=ARM_COLOURS["FPN"], lw=0.8, alpha=0.5)
            axis.plot(gap, height, **_look("FPN", hollow))
        else:
            axis.annotate("FPN not run", (0, height), (3, 0), textcoords="offset points",
                          va="center", fontsize=SMALL, color="#777777")  # fmt: skip
    axis.axvline(0, **NEUTRAL)
    axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))


def _loss(losses: pd.DataFrame, arm: str, s: float) -> float:
    """Of an arm at S, over seeds; NaN where it has not run."""
    return losses[s].get(arm, np.nan) if s in losses else np.nan


def _norms(axis, rows: pd.DataFrame, changed: dict[str, str], hollow: bool) -> None:
    """‖W‖ over the noise's, of the arms that have it."""
    names = _rows_of(changed)
    arms = NAMES if changed is CHANGES else ["FPN"]
    for suffix, name in changed.items():
        for arm in arms:
            own = rows.loc[rows["arm"] == f"{arm}{suffix}", "over_noise"]
            axis.plot(own, [names.index(name)] * len(own), **_look(arm, hollow))
    axis.axvline(1, **NEUTRAL)
    plain_log_axis(axis, x=True)


def _look(arm: str, hollow: bool) -> dict:
    """Points of an arm, hollow where seeds explore."""
    fill = {"markerfacecolor": "white"} if hollow else {}
    return ARM_LOOKS[arm] | {"ls": "", "ms": 3.8, "mew": 0.9} | fill
