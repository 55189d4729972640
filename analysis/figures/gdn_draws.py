"""What the draw of a_log and dt_bias does to the loss of a Gated Delta Network (ours; GD15.2).

a: the loss of each run less the mean of its seed, by draw, in the order of the means; points are
runs, bars means with 95% intervals. b: the same by seed, less the mean of the draw. Grey: where a
mean would lie by chance alone. Titles have the standard deviation of the means without chance.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.patches import Patch

from analysis.drawing.page import caption, headline, label, legend_below, page
from analysis.drawing.style import NEUTRAL, NOT_JUDGED
from analysis.quantities.gdn_draws import chance_of_mean, losses, share_of_draws
from analysis.quantities.stats import interval
from analysis.tables.context import Context
from analysis.tables.results import Tables

EXPERIMENTS = {"gdn_draws": "GD15.2"}
_POINT = {"marker": "o", "ls": "", "color": "#777777", "ms": 2.8, "alpha": 0.5, "mew": 0}


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: seed, draw, value (nats per token)."""
    return losses(tables["gdn_draws"]).stack().rename("value").reset_index()


def draw(numbers: pd.DataFrame, context: Context):
    """Two panels with one axis of losses."""
    figure, axes = page(1, 2, 2.7, w_pad=0.05, sharey=True)
    table = numbers.pivot(index="seed", columns="draw", values="value")
    seeds, draws = table.shape
    chance = chance_of_mean(table), chance_of_mean(table.T)
    _means(axes[0], "a   By draw", table.sub(table.mean(axis=1), axis=0), chance[0],
           "draws", "loss − mean of its seed (nats)")  # fmt: skip
    _means(axes[1], "b   By seed", table.sub(table.mean(axis=0), axis=1).T, chance[1],
           "seeds", "loss − mean of its draw (nats)")  # fmt: skip
    if seeds > 1:
        headline(figure, _message(table))
        sizes = " and ".join(
            f"{size:.4f} ({name})" for name, size in zip("ab", chance, strict=True)
        )
        said = f"where chance alone puts means: ± 2 standard deviations of {sizes} nats"
        legend_below(figure, [Patch(**NOT_JUDGED, label=said)], 1)
    n = f"{draws} draws × {seeds} seed{'s' * (seeds > 1)} = {table.size} runs"
    note = (
        f"points: runs; bars: means{' with 95% intervals' * (min(table.shape) > 1)}; "
        "titles: standard deviation of the means, less chance\n"
        "draw: initial a_log and dt_bias of the heads; a seed draws everything else"
    )
    return caption(figure, context, note, n=n)


def _message(table: pd.DataFrame) -> str:
    """What the draw explains of the variance, and whether its interval holds 0 and a quarter."""
    share = share_of_draws(table)
    ends = f"{share.low:.0%} to {share.high:.0%}".replace("-", "−")
    said = f"The draw explains {share.mean:.0%} of the variance over runs (95%: {ends})"
    if share.low < 0 and share.high > 0.25:
        return (
            "How much of the variance over runs the draw explains is open:\n"
            f"{share.mean:.0%} (95%: {ends})"
        )
    parts = ["less than the quarter that was asked for (GD15.2)"] if share.high < 0.25 else []
    parts += ["whether it is more than chance is open"] if share.low < 0 else []
    return ",\n".join([said, "; ".join(parts)]) if parts else said


def _means(axis, title: str, values: pd.DataFrame, chance: float, of: str, ylabel: str) -> None:
    """Columns of ``values`` in the order of their means, and the ``chance`` of such a mean."""
    means = values.mean().sort_values()
    for place, name in enumerate(means.index):
        axis.plot([place] * len(values), values[name], **_POINT)
        mean = interval(values[name])
        axis.plot([place - 0.35, place + 0.35], [mean.mean] * 2, color="black", lw=1.2)
        if mean.n > 1:
            axis.plot([place, place], [mean.low, mean.high], color="black", lw=0.8)
    if chance > 0:
        axis.axhspan(-2 * chance, 2 * chance, **NOT_JUDGED, lw=0, zorder=0)
        beyond = max(means.var() - chance**2, 0) ** 0.5
        open_ = " (may be 0)" if share_of_draws(values).low < 0 else ""
        title += f": s.d. {beyond:.3f} nats{open_}"
    axis.axhline(0, **NEUTRAL)
    axis.set_xticks([])
    axis.tick_params(axis="y", labelleft=True)
    label(axis, title, xlabel=f"{of}, in the order of their means", ylabel=ylabel)
