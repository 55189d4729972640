"""Controls of the projector sweep: what FPN loses to VPN, and ‖W‖, with one thing changed.

a, b: loss of FPN less that of VPN under the same change, at either S. The grey strip has the middle
90% of the same difference over the seeds of the published sweep. FPN with a fixed output factor of
1/S, or with the factor that SPN had learned, is compared with the sweep's VPN, and so is FPN at
S = 1, the dashed line in these rows; there the strip, hatched, is of the sweep's FPN at S = 1/2 and
2. c, d: ‖W‖ over that of Brownian motion.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from analysis.drawing.page import caption, headline, key, label, legend_below, page, written_of
from analysis.drawing.style import (
    ARM_COLOURS,
    ARM_LOOKS,
    NEUTRAL,
    S_MEANS,
    plain_log_axis,
    power_of_two,
)
from analysis.quantities.losses import final_losses
from analysis.quantities.norms import at_stage_ends
from analysis.tables.context import Context
from analysis.tables.results import FIRST_JUDGING_SEED, Tables

EXPERIMENTS = ("projector_controls",)
# What is changed, from top to bottom, by the end of the arms' names after FPN or VPN.
CONTROLS = {
    "": "as in the sweep",
    "_BATCH_QUARTER": "batch, tokens × 1/4",
    "_BATCH_FOURFOLD": "batch, tokens × 4",
    "_INIT_QUARTER": "initial norm × 1/4",
    "_INIT_FOURFOLD": "initial norm × 4",
    "_BETA2": r"$\beta_2$ = 0.99",
    "_CLIPPED": "clipped at norm 1",
    "_LONG": "steps × 4",
    "_LEARNED_SMALL": "factor as SPN learned it",
    "_LEARNED_LARGE": "factor as SPN learned it",
    "_COMPENSATED": "factor 1/S (identity)",
}
# The rows of FPN with a fixed factor, which have no VPN of their own.
FACTORS = ("_LEARNED_SMALL", "_LEARNED_LARGE", "_COMPENSATED")
# After these a group of rows ends: the reference, the optimizer changed, the factor repaired.
GROUPS_END = ("", "_LONG")
NAMES = {"FPN": "frozen scale (FPN)", "VPN": "learned vector (VPN)"}
CENTRE = "FPN_CENTRE"  # at S = 1, compared with VPN at either S
# FPN − VPN in nats over the twenty seeds of the projector sweep as published at tiny, quantiles 5%
# and 95%: as it is, and with FPN at S = 1/2 and 2, which are near its best (a test computes them).
SPREAD = {0.125: ((0.189, 0.249), (-0.079, 0.026)), 8.0: ((0.114, 0.182), (0.004, 0.068))}
MESSAGE = (
    "{n}With another start, β₂ or clipping freezing costs as in the sweep, with\n"
    "another batch mostly less. Against FPN at S = 1, a factor of 1/S removes the cost; the\n"
    "factor SPN learned removes most of it at S = 1/8, and a third of it at S = 8"
)
# What the panels show, by S.
NORMS = {0.125: "frozen > 2 × noise\nwithout a factor", 8.0: "frozen below\nnoise"}
RECOVERED = {"color": "#222222", "lw": 0.9, "ls": (0, (3, 2))}
# Look and name of the strips, in the order of ``SPREAD``.
STRIPS = (
    ({"color": "#e2e2e2", "lw": 0}, "the sweep's FPN − VPN: middle 90% of 20 seeds"),
    (
        {"fc": "white", "ec": "#bbbbbb", "hatch": "/////", "lw": 0},
        "FPN at S = 1/2 and 2, less VPN at this\npanel's S: middle 90%",
    ),
)
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
    motions = table.runs[table.runs["kind"] == "brownian"]
    noise = at_stage_ends(noise, motions).set_index(["arm", "S"])["value"]
    twins = rows["arm"].map(lambda arm: "VPN_BETA2" if arm.endswith("_BETA2") else "VPN")
    # The centre, S = 1, has no Brownian twin and needs none.
    noise = noise.reindex(pd.MultiIndex.from_arrays([twins, rows["S"]]))
    ratio = rows["weight_norm"] / noise.to_numpy()
    return rows.assign(over_noise=ratio.astype(float)).reset_index(drop=True)


def draw(numbers: pd.DataFrame, context: Context):
    """Panels with the same rows: for each S the losses, then for each S the norms."""
    swept = sorted(numbers.loc[numbers["arm"] != CENTRE, "S"].unique())
    figure, axes = page(1, 2 * len(swept), 3.8, w_pad=0.03, sharey=True)
    alone = "One seed. " * (len(context.seeds) == 1)
    headline(figure, MESSAGE.format(n=alone), context)
    names = list(dict.fromkeys(reversed(CONTROLS.values())))
    losses = numbers.pivot_table("loss", "arm", "S")
    explores = max(context.seeds) < FIRST_JUDGING_SEED
    letters, spread = iter("abcdefgh"), SPREAD if context.scale == "tiny" else {}
    norms_say = NORMS if written_of(context) else {}
    of_loss, of_norm = axes[: len(swept)], axes[len(swept) :]
    for axis, s in zip(of_loss, swept, strict=True):
        _losses(axis, losses, s, names, explores, spread.get(s, ()))
        title = f"{next(letters)}   Loss, S = {power_of_two(s)}"
        label(axis, title, xlabel="FPN − VPN (nats)")
    for axis, s in zip(of_norm, swept, strict=True):
        own = numbers[numbers["S"] == s]
        for suffix, name in CONTROLS.items():
            for arm in NAMES:
                rows = own.loc[own["arm"] == f"{arm}{suffix}", "over_noise"]
                look = _look(arm, explores)
                axis.plot(rows, [names.index(name)] * len(rows), **look)
        axis.axvline(1, **NEUTRAL)
        title = _title(rf"{next(letters)}   $\|W\|$", s, norms_say)
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
    handles.append(key("frozen scale at S = 1 (not in c, d)", **RECOVERED))
    handles += [Patch(**look, label=name) for look, name in STRIPS if spread]
    legend_below(figure, handles, 2)
    note = "no intervals; " if len(context.seeds) == 1 else ""
    note += "SPN: learned scalar; "
    note += (
        f"noise: Brownian motion; factor: of the output, fixed\n{S_MEANS}, of the LM head\n"
        "runs with a fixed factor have no VPN of their own, those of 4 times the steps no FPN"
    )
    return caption(figure, context, note)


def _title(what: str, s: float, told: dict[float, str]) -> str:
    return f"{what}, S = {power_of_two(s)}" + (f":\n{told[s]}" if s in told else "")


def _losses(
    axis, losses: pd.DataFrame, s: float, names: list[str], explores: bool, spread: tuple
) -> None:
    """What FPN loses to VPN under each change at S, with what it loses at S = 1.

    ``spread``, an entry of ``SPREAD`` or nothing, is drawn behind.
    """
    vpn = losses[s].get("VPN", np.nan)
    # Rows of factors are the lowest.
    border = max(names.index(CONTROLS[suffix]) for suffix in FACTORS) + 0.5
    of_rows = ([border, len(names) - 0.5], [-0.5, border])
    for rows, ends, (look, _) in zip(of_rows, spread, STRIPS, strict=False):
        axis.fill_betweenx(rows, *ends, **look, zorder=0)
    if CENTRE in losses.index:
        axis.plot([losses.loc[CENTRE, 1.0] - vpn] * 2, of_rows[1], **RECOVERED)
    for suffix, name in CONTROLS.items():
        fpn = losses[s].get(f"FPN{suffix}", np.nan)
        if np.isfinite(fpn):
            twin = losses[s].get(f"VPN{suffix}", np.nan)
            gap, height = fpn - (twin if np.isfinite(twin) else vpn), names.index(name)
            # Rows of factors are compared with the dashed line.
            from_ = losses.loc[CENTRE, 1.0] - vpn if suffix in FACTORS else 0.0
            axis.plot([from_, gap], [height] * 2, color=ARM_COLOURS["FPN"], lw=0.8, alpha=0.5)
            axis.plot(gap, height, **_look("FPN", explores))
    axis.axvline(0, **NEUTRAL)


def _look(arm: str, explores: bool) -> dict:
    """Points of an arm, hollow where seeds explore."""
    hollow = {"markerfacecolor": "white"} if explores else {}
    return ARM_LOOKS[arm] | {"ls": "", "ms": 3.8, "mew": 0.9} | hollow
