"""``python -m analysis.explore.checkpoint_norms DIR``: norms of rows and columns of a checkpoint.

``DIR`` is what ``lrm probe`` wrote. Each layer's norms are divided
by their mean and pooled over layers, as in figure 3.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn
from scipy.stats import norm

from analysis.drawing.page import key
from analysis.drawing.pictures import pictures
from analysis.drawing.style import ARM_COLOURS, STYLE_FILE
from analysis.explore.drawings import panels
from analysis.quantities.norms import geometric_mean, noise_spread, pooled_relative_norms
from analysis.tables.results import read_table
from lrm.cli import Parser, guarded
from lrm.errors import UserError
from lrm.store.digests import read_listed
from lrm.store.files import read_json, write_atomic

# A page holds so many kinds of matrices; the largest are drawn.
_PANELS = 15
_NAMES = {"row_norms": "rows", "column_norms": "columns"}
_COLOURS = {"row_norms": ARM_COLOURS["SPN"], "column_norms": ARM_COLOURS["FPN"]}


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row per kind of matrix and axis, of all layers together.

    ``norm`` is the geometric mean over layers of ‖W‖, a root mean square; ``spread`` the standard
    deviation of the pooled relative norms, ``noise`` that of a matrix of pure noise, and ``dead``
    counts rows or columns below a thousandth of the mean.
    """
    records = []
    for (tensor, stat), group in table.groupby(["tensor", "stat"], sort=False):
        relative, dead = pooled_relative_norms(group)
        overall = [np.sqrt(np.mean(np.square(value))) for value in group["value"]]
        records.append(
            {
                "tensor": tensor,
                "axis": _NAMES[stat],
                "layers": len(group),
                "count": len(relative) + dead,
                "norm": geometric_mean(overall),
                "spread": float(np.std(relative)),
                "noise": noise_spread(float(group["over"].median())),
                "dead": dead,
            }
        )
    return pd.DataFrame(records)


def draw(table: pd.DataFrame, name: str):
    """A figure with one panel per kind of matrix: densities of relative norms.

    Dotted: a matrix of pure noise of the same shape.
    """
    kinds = _largest(table, _PANELS)
    figure, axes = panels(len(kinds), 0.8, 1.4)
    groups = dict(tuple(table.groupby(["tensor", "stat"])))
    for axis, tensor in zip(axes, kinds, strict=True):
        ends = []
        for height, (stat, colour) in enumerate(_COLOURS.items()):
            if (tensor, stat) not in groups:  # stacks of matrices have rows only
                continue
            group = groups[tensor, stat]
            values, dead = pooled_relative_norms(group)
            if not len(values):  # as in adapters that begin at zero
                axis.text(0.98, 0.96 - 0.13 * height, f"all {dead} are 0", color=colour,
                          transform=axis.transAxes, ha="right", va="top", fontsize=7)  # fmt: skip
                continue
            seaborn.kdeplot(values, ax=axis, color=colour, bw_adjust=0.8, warn_singular=False)
            width = noise_spread(float(group["over"].median()))
            ends += [*np.quantile(values, [0.003, 0.997]), 1 - 3 * width, 1 + 3 * width]
            grid = np.linspace(1 - 4 * width, 1 + 4 * width, 200)
            axis.plot(grid, norm.pdf(grid, 1.0, width), color=colour, lw=0.8, ls=":")
            axis.text(0.98, 0.96 - 0.13 * height, f"{np.std(values):.2g}", color=colour,
                      transform=axis.transAxes, ha="right", va="top", fontsize=7)  # fmt: skip
        axis.set(yticks=[], ylabel="")
        if ends:
            axis.set_xlim(max(0.0, min(ends)), max(ends))
        axis.set_title(tensor.removeprefix("model.").removesuffix(".weight"), fontsize=7)
    for axis in axes[-axes[0].get_gridspec().ncols :]:
        axis.set_xlabel("norm / mean of its layer")
    handles = [key(_NAMES[stat], color=colour) for stat, colour in _COLOURS.items()]
    handles += [
        key("pure noise of that shape", color="#555555", ls=":", lw=0.8),
        key("numbers: standard deviations", ls=""),
    ]
    title = f"{name}: row and column norms, pooled over layers"
    figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=7, title=title,
                  title_fontsize=9, frameon=False)  # fmt: skip
    return figure


def _largest(table: pd.DataFrame, count: int) -> list[str]:
    """The kinds of matrices with the most entries, in the order of the table."""
    rows = table[table["stat"] == "row_norms"]
    sizes = (rows["value"].map(len) * rows["over"]).groupby(rows["tensor"]).sum()
    return [name for name in table["tensor"].unique() if name in sizes.nlargest(count).index]


def main() -> None:
    """Parse the command line; write ``norms.{png,pdf,csv}`` beside the table."""
    parser = Parser(prog="python -m analysis.explore.checkpoint_norms")
    parser.add_argument("folder", type=Path, help="results/probes/<name>")
    options = parser.parse_args()
    guarded(lambda: print(render(options.folder)))


def read(folder: Path) -> tuple[pd.DataFrame, str]:
    """The norms in ``folder`` and their model's name; UserError where a file is damaged."""
    names = ("norms.parquet", "model.json")
    if not any((folder / name).exists() for name in names):
        raise UserError(f"{folder} is no folder of lrm probe, which has {' and '.join(names)}; "
                        "name one, such as results/probes/<name>")  # fmt: skip
    remedy = f"remove {folder} and run lrm probe MODEL again"
    for name in names:
        read_listed(folder / name, remedy)
    table = read_table(folder / "norms.parquet")
    said = read_json(folder / "model.json", ("model",), remedy)
    return table, said["model"]


def render(folder: Path) -> str:
    """Draw the norms in ``folder``; their summary as text."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not there; run lrm probe MODEL first")
    table, name = read(folder)
    matplotlib.use("agg")
    numbers = summary(table)
    with plt.style.context(STYLE_FILE):
        figure = draw(table, name)
        for kind, content in pictures(figure, ("png", "pdf")).items():
            write_atomic(folder / f"norms.{kind}", content)
    write_atomic(folder / "norms.csv", numbers.to_csv(index=False).encode())
    text = numbers.to_string(index=False, float_format=lambda value: f"{value:.3g}")
    return f"{text}\n\ndrew {folder / 'norms.png'}, with pdf and csv beside it"


if __name__ == "__main__":
    main()
