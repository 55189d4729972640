"""Figure 2 of the second paper: where Llama and Gemma have scale vectors, and of which type.

One layer of each from below, with the last norm and the LM head above it. Ours: the number in each
norm is the size of its vector as training ends (root mean square, 1 at the start, geometric mean
over layers and seeds), with no weight decay of vectors.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.patches import FancyBboxPatch, Patch

from analysis.drawing.page import caption, headline, label, legend_below, page
from analysis.drawing.style import SMALL
from analysis.figures.sv_decay import LOOKS
from analysis.quantities.norms import at_step, over_layers
from analysis.quantities.vector_decay import SIDES
from analysis.tables.context import Context
from analysis.tables.results import FIRST_JUDGING_SEED, Tables

# Of each model: the experiment, the arm, and what stands above its panel.
MODELS = {
    "Llama": ("sv_heterogeneity", "STANDARD", "a   Llama (AdamW)"),
    "Gemma": ("sv_decay", "MUON_NONE", "b   Gemma's norms (Muon)"),
}
# The same arms, written out: ``make`` reads them without running this file.
EXPERIMENTS = {"sv_heterogeneity": ("STANDARD *",), "sv_decay": ("MUON_NONE *",)}
# From below; boxes of one row stand side by side. Addresses are norms; None is a line alone.
ROWS = (
    ("embedding",),
    ("norm.mixer",),
    ("query", "key", "value"),
    ("norm.attention.q", "norm.attention.k", None),
    ("softmax (query key) value",),
    ("out",),
    ("norm.attention.out",),
    ("+",),
    ("norm.mlp",),
    ("gate", "up"),
    ("SiLU (gate) up",),
    ("down",),
    ("norm.mlp.down",),
    ("+",),
    ("norm.final",),
    ("LM head",),
)
NAMES = {
    "norm.mixer": "norm", "norm.mlp": "norm", "norm.final": "final norm",
    "norm.attention.q": "", "norm.attention.k": "",
    "norm.attention.out": "output norm", "norm.mlp.down": "output norm",
}  # fmt: skip
MATRICES = ("embedding", "query", "key", "value", "out", "gate", "up", "down", "LM head")
MESSAGE = "Of the vectors the final one grows most; those of the blocks end between 0.74 and 1.19"
COLOURS = {"input": LOOKS["INPUT"][0], "output": LOOKS["OUTPUT"][0], "matrix": "#dddddd"}
# Of all boxes of a row together and of each, where rows are 1 apart.
_WIDTH, _HEIGHT = 4.2, 0.62


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: model, tensor, seed, value (size of its vector at the end)."""
    rows = []
    for model, (experiment, arm, _) in MODELS.items():
        found = tables[experiment].pick(kind="train", arm=arm, stat="effective_norm")
        found = at_step(found[found["tensor"].isin(NAMES)], np.inf)
        judging = found["seed"] >= FIRST_JUDGING_SEED
        found = found[judging] if judging.any() else found
        means = over_layers(found.assign(of=found["tensor"].astype("str")))
        rows.append(means.rename(columns={"of": "tensor"}).assign(model=model))
    return pd.concat(rows, ignore_index=True)[["model", "tensor", "seed", "value"]]


def draw(numbers: pd.DataFrame, context: Context):
    """Two columns of boxes; a norm that one of the models goes without leaves a gap."""
    figure, axes = page(1, 2, 4.8, w_pad=0.05)
    headline(figure, MESSAGE, context)
    for axis, (model, (_, _, title)) in zip(axes, MODELS.items(), strict=True):
        own = numbers[numbers["model"] == model]
        sizes = np.exp(own.assign(value=np.log(own["value"])).groupby("tensor")["value"].mean())
        for height, row in enumerate(ROWS):
            _row(axis, height, row, sizes)
        for begin, end in ((0, 7), (7, 13)):
            _residual(axis, begin, end)
        label(axis, title, xlim=(-3.1, 3.6), ylim=(-0.6, len(ROWS) - 0.4))
        axis.set_axis_off()
    handles = [
        Patch(color=COLOURS["input"], label="in front of a matrix (input)"),
        Patch(color=COLOURS["output"], label="in front of none (output)"),
        Patch(color=COLOURS["matrix"], label="matrix"),
        Patch(fc="white", ec="#777777", lw=0.6, label="nothing learned"),
    ]
    legend_below(figure, handles, 4, columnspacing=0.8)
    note = "one layer is drawn; numbers: RMS of the vector at the end, 1 at the start\n"
    note += "(geometric mean over layers and seeds)"
    counted = numbers.groupby("model")["seed"].nunique()
    n = "   ".join(
        f"{panel}: n = {counted[model]}" for panel, model in zip("ab", MODELS, strict=True)
    )
    return caption(figure, context, note, n=n)


def _row(axis, height: int, row: tuple[str | None, ...], sizes: pd.Series) -> None:
    """The boxes of a row, each on the line that passes through it."""
    width = _WIDTH / len(row)
    last = len(ROWS) - 1
    for number, name in enumerate(row):
        x = (number - (len(row) - 1) / 2) * width
        # A line ends at the edge of a box that is wider than its own, and at no gap.
        for other, reach in ((height - 1, -1 + _HEIGHT / 2), (height + 1, 1 - _HEIGHT / 2)):
            if 0 <= other <= last and (len(row) > 1 or len(ROWS[other]) == 1):
                axis.plot([x, x], [height, height + reach], color="#777777", lw=0.8, zorder=1)
        if name is None or (name in NAMES and name not in sizes):
            continue
        if name == "+":
            ring = {"boxstyle": "circle,pad=0.1", "fc": "white", "ec": "#777777"}
            axis.text(x, height, "+", ha="center", va="center", fontsize=8, bbox=ring)
            continue
        text, ink, look = name, "black", {"fc": "white", "ec": "#777777", "lw": 0.6}
        if name in MATRICES:
            look = {"fc": COLOURS["matrix"], "ec": "none"}
        elif name in NAMES:
            side = "input" if name in SIDES["input"] else "output"
            look, ink = {"fc": COLOURS[side], "ec": "none"}, "white"
            text = f"{NAMES[name]}  {sizes[name]:.2f}".strip()
            if not NAMES[name] and number == 0:  # its row has no room for names
                place = (x - width / 2 - 0.05, height)
                axis.text(*place, "norms", ha="right", va="center", fontsize=SMALL)
        box = FancyBboxPatch(
            (x - width / 2 + 0.12, height - _HEIGHT / 2), width - 0.24, _HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.12", zorder=2, **look,
        )  # fmt: skip
        axis.add_patch(box)
        axis.text(x, height, text, ha="center", va="center", fontsize=SMALL, color=ink, zorder=3)


def _residual(axis, begin: int, end: int) -> None:
    """The residual stream around a sublayer, from its beginning to the sum at its end."""
    x = _WIDTH / 2 + 0.55
    low = begin + 0.5
    look = {"color": "#777777", "lw": 0.8, "zorder": 0}
    axis.plot([0, x, x], [low, low, end], **look)
    arrow = {"arrowstyle": "->", "lw": 0.8, "color": "#777777", "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", (0.17, end), (x, end), arrowprops=arrow)
