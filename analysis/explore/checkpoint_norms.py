"""``python -m analysis.explore.checkpoint_norms DIR``: norms of rows and columns of a checkpoint.

``DIR`` is what ``python -m lrm.exchange.measure_checkpoint`` wrote. Each layer's norms are divided
by their mean and pooled over layers, as in figure 3.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.quantities.norms import geometric_mean, noise_spread, pooled_relative_norms
from analysis.tables.results import read_table
from lrm.cli import guarded
from lrm.errors import UserError
from lrm.store.files import read_json

# As many kinds of matrices as a page holds; the largest of them.
_PANELS = 15
_NAMES = {"row_norms": "rows", "column_norms": "columns"}


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row per kind of matrix and axis, of all layers together.

    ``norm`` is the geometric mean over layers of ‖W‖, a root mean square; ``spread`` the standard
    deviation of the pooled relative norms, ``noise`` that of a matrix of pure noise, and ``dead``
    counts rows or columns below a thousandth of the mean.
    """
    found = []
    for (tensor, stat), group in table.groupby(["tensor", "stat"], sort=False):
        relative, dead = pooled_relative_norms(group)
        overall = [np.sqrt(np.mean(np.square(value))) for value in group["value"]]
        found.append(
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
    return pd.DataFrame(found)


def draw(table: pd.DataFrame, name: str):
    """A figure with one panel per kind of matrix: densities of relative norms.

    Dotted: a matrix of pure noise of the same shape.
    """
    import matplotlib.pyplot as plt
    import seaborn

    from analysis.drawing.style import ARM_COLOURS, TEXT_WIDTH

    colours = {"row_norms": ARM_COLOURS["SPN"], "column_norms": ARM_COLOURS["FPN"]}
    kinds = _largest(table, _PANELS)
    columns = min(3, len(kinds))
    lines = -(-len(kinds) // columns)
    size = (TEXT_WIDTH, 0.8 + 1.4 * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for axis, tensor in zip(axes.flat, kinds, strict=False):
        of_tensor = table[table["tensor"] == tensor]
        ends = []
        for height, (stat, colour) in enumerate(colours.items()):
            group = of_tensor[of_tensor["stat"] == stat]
            if group.empty:  # stacks of matrices have rows only
                continue
            values, _ = pooled_relative_norms(group)
            seaborn.kdeplot(values, ax=axis, color=colour, bw_adjust=0.8, warn_singular=False)
            width = noise_spread(float(group["over"].median()))
            ends += [*np.quantile(values, [0.003, 0.997]), 1 - 3 * width, 1 + 3 * width]
            grid = np.linspace(1 - 4 * width, 1 + 4 * width, 200)
            bell = np.exp(-0.5 * ((grid - 1) / width) ** 2) / (width * np.sqrt(2 * np.pi))
            axis.plot(grid, bell, color=colour, lw=0.8, ls=":")
            axis.text(0.98, 0.96 - 0.13 * height, f"{np.std(values):.2g}", color=colour,
                      transform=axis.transAxes, ha="right", va="top", fontsize=7)  # fmt: skip
        axis.set_xlim(max(0.0, min(ends)), max(ends))
        axis.set_yticks([])
        axis.set_ylabel("")
        axis.set_title(tensor.removeprefix("model.").removesuffix(".weight"), fontsize=7)
    for axis in list(axes.flat)[len(kinds) :]:
        axis.set_axis_off()
    for column in range(columns):
        last = max(line for line in range(lines) if line * columns + column < len(kinds))
        axes[last, column].set_xlabel("norm / mean of its layer")
    handles = [
        plt.Line2D([], [], color=colours["row_norms"], label="rows"),
        plt.Line2D([], [], color=colours["column_norms"], label="columns"),
        plt.Line2D([], [], color="#555555", ls=":", lw=0.8, label="pure noise of that shape"),
        plt.Line2D([], [], ls="", label="numbers: standard deviations"),
    ]
    title = f"{name}: row and column norms, pooled over layers"
    figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=7, title=title,
                  title_fontsize=9, frameon=False)  # fmt: skip
    return figure


def _largest(table: pd.DataFrame, count: int) -> list[str]:
    """The kinds of matrices with the most entries, in the order of the table."""
    rows = table[table["stat"] == "row_norms"]
    sizes = (rows["value"].map(len) * rows["over"]).groupby(rows["tensor"]).sum()
    kept = set(sizes.nlargest(count).index)
    return [tensor for tensor in table["tensor"].unique() if tensor in kept]


def main() -> None:
    """Parse the command line; write ``norms.{png,pdf,csv}`` beside the table."""
    parser = argparse.ArgumentParser(prog="python -m analysis.explore.checkpoint_norms")
    parser.add_argument("folder", type=Path, help="results/probes/<name>")
    options = parser.parse_args()
    guarded(lambda: print(render(options.folder)))


def render(folder: Path) -> str:
    """Draw the norms in ``folder``; their summary as text."""
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not there; run python -m lrm.exchange.measure_checkpoint MODEL first"
        )
    table, name = read_table(folder / "norms.parquet"), read_json(folder / "model.json")["model"]

    import matplotlib

    matplotlib.use("agg")
    from analysis.drawing.style import style

    found = summary(table)
    with style():
        figure = draw(table, name)
        for kind in ("png", "pdf"):
            figure.savefig(folder / f"norms.{kind}")
    found.to_csv(folder / "norms.csv", index=False)
    text = found.to_string(index=False, float_format=lambda value: f"{value:.3g}")
    return f"{text}\n\ndrew {folder / 'norms.png'}, with pdf and csv beside it"


if __name__ == "__main__":
    main()
