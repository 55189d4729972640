"""Table 1 (section 4.2): exponents of the width, derived and measured.

For three recipes and three optimizers: the output and its relative update of a linear layer in
equilibrium that sees one input (fully aligned, the paper's assumption) or fresh ones (not aligned),
by the draws of linear_layer where it has run, of which WS5.2 judges; and, our own test, the norm of
the MLP's up projection in a model. Means over draws or seeds with 95% intervals, shaded and marked
as the criteria of WS5.2 and WS5 judge each. A dagger marks the derived exponents that are the
paper's. Cells whose draws are those of cells above, but for what is derived, are named and not
counted. The file of numbers also has the alignment of that projection and its output, for which
nothing is derived.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from analysis.drawing.page import caption, headline, text_page
from analysis.quantities import table1
from analysis.quantities.stats import Interval, interval, with_half
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables

EXPERIMENTS = ("table1",)
# The layer of table1 has a quarter of its draws, which left open what it decides.
IF_THERE = ("linear_layer",)
_RECIPE = {"LR": "η ∝ 1/d", "LR_WD": "η ∝ 1/d, λ ∝ d", "S": "s ∝ 1/d"}
_OPTIMIZER = {"ADAM": "AdamW", "MUON": "Muon (Moonlight)", "JORDAN": "Muon (Jordan)"}
_COLUMNS = (
    ("one_input", "output_norm"), ("one_input", "relative_update"),
    ("fresh_inputs", "output_norm"), ("fresh_inputs", "relative_update"),
    ("model", "weight_norm"),
)  # fmt: skip
# What is behind and beside a measured exponent whose whole interval is beyond the limit, or ends
# beyond it.
_FILLS = {"refuted": "#F8CDB4", "open": "#FBF0C4"}
_MARKS = {"refuted": "✗", "open": "?"}
# A layer's draws serve both Muons, and two recipes. Those whose exponents differ by less, once what
# is derived is taken away, are the same: different ones differ by a tenth.
_TWINS = {"JORDAN": "MUON"}
_SAME = 0.005
_DERIVED = {"color": "#767676"}
_HEADS = {"output_norm": "‖y‖", "relative_update": "‖Δy‖/‖y‖", "weight_norm": "‖W‖"}
_GROUPS = {
    "one_input": "the paper's table: one layer in\nequilibrium, aligned (one input)",
    "fresh_inputs": "ours: the layer not aligned\n(fresh inputs)",
    "model": "ours: a model,\nMLP up",
}
# What the paper derives: for updates of size η, that is AdamW's, and at a fixed alignment.
_PAPERS = {("ADAM", "one_input"), ("ADAM", "model")}
_PLAIN = "Exponents of the width d in three recipes, derived and measured"


def numbers(tables: dict[str, Tables]) -> pd.DataFrame:
    """Columns: optimizer, recipe, case, stat, derived, seed (or draw), exponent, widths."""
    table = tables["table1"]
    names = ["optimizer", "recipe", "stat"]
    layer = table1.layer_values(tables.get("linear_layer", table))
    layer = table1.exponents(layer, [*names, "case", "draw"]).rename(columns={"draw": "seed"})
    layer["derived"] = [
        table1.derived(row.optimizer, row.recipe, row.case)[row.stat] for row in layer.itertuples()
    ]
    model = table1.model_values(table)
    widths = ", ".join(map(str, sorted(model["width"].unique())))
    model = table1.exponents(model, [*names, "seed"]).assign(case="model")
    # A model's gradients have full rank; its alignment, and so its output, follow from nothing.
    model["derived"] = [
        table1.derived(row.optimizer, row.recipe, "fresh_inputs")["weight_norm"]
        if row.stat == "weight_norm"
        else float("nan")
        for row in model.itertuples()
    ]
    columns = ["optimizer", "recipe", "case", "stat", "derived", "seed", "exponent"]
    rows = pd.concat([layer, model], ignore_index=True)[columns]
    return rows.sort_values(columns[:-1], ignore_index=True).assign(widths=widths)


def draw(numbers: pd.DataFrame, context: Context):
    """A table: in each cell the derived exponent, the measured one and its interval."""
    figure, axis, write = text_page(4.95)
    limits = {
        "layer": criteria_of("linear_layer")["WS5.2"]["thresholds"]["layer"],
        "model": criteria_of("table1")["WS5"]["thresholds"]["model"],
    }
    left, line = 0.18, 0.0272
    width = (1 - left) / len(_COLUMNS)
    places = {column: left + width * (n + 0.5) for n, column in enumerate(_COLUMNS)}
    for case, name in _GROUPS.items():
        own = [x for (of, _), x in places.items() if of == case]
        write(sum(own) / len(own), 0.968, name, ha="center", fontsize=7, linespacing=1.15)
        _rule(axis, own[0] - width * 0.45, own[-1] + width * 0.45, 0.932)
    for (_, stat), x in places.items():
        write(x, 0.905, _HEADS[stat], ha="center", fontsize=7.5)
    write(0.0, 0.905, "exponent of d", fontsize=7, weight="bold")
    groups = dict(tuple(numbers.groupby(["optimizer", "recipe", "case", "stat"])))
    y = 0.905
    above: dict[tuple, list[tuple[str, np.ndarray]]] = {column: [] for column in _COLUMNS}
    verdicts: dict[str, dict[str, list[str]]] = {"layer": {}, "model": {}}
    for optimizer, recipe in table1.MODELS.values():
        if recipe == next(iter(table1.RECIPES)):
            y -= 0.032
            _rule(axis, 0.0, 1.0, y)
            y -= 0.028
            write(0.0, y, _OPTIMIZER[optimizer], fontsize=7, weight="bold")
            y += 0.01
        y -= 2.28 * line
        write(0.012, y + line / 2, _RECIPE[recipe], fontsize=6.8)
        same, whose = [], set()
        for (case, stat), x in places.items():
            rows = groups.get((optimizer, recipe, case, stat))
            if rows is None:
                continue
            derived, found = rows["derived"].mean(), interval(rows["exponent"])
            off = rows.sort_values("seed")["exponent"].to_numpy() - derived
            twins = (optimizer, _TWINS.get(optimizer)) if case != "model" else ()
            same_draws = [
                of for of, other in above[case, stat] if of in twins and _same(off, other)
            ]
            if same_draws:
                same.append(x)
                whose.update(same_draws[-1:])
                continue
            above[case, stat].append((optimizer, off))
            dagger = "†" if (optimizer, case) in _PAPERS else ""
            write(x, y + line, _signed(derived) + dagger, ha="center", **_DERIVED)
            of = "model" if case == "model" else "layer"
            verdict = _verdict(derived, found, limits[of])
            cell = f"{_OPTIMIZER[optimizer]}'s {_HEADS[stat]} with {_RECIPE[recipe]}"
            verdicts[of].setdefault(verdict, []).append(cell)
            said = with_half(rows["exponent"])
            if verdict in _FILLS:
                _fill(axis, x, y, width * 0.84, line, _FILLS[verdict])
                said += f"  {_MARKS[verdict]}"
            write(x, y, said, ha="center")
        if same:
            words = "as above: the same draws by construction"
            if whose != {optimizer}:
                words = "as Moonlight's by construction: exponent of ‖y‖ lower by ½, rest equal"
            write(sum(same) / len(same), y + line / 2, words, ha="center", **_DERIVED)
    y -= 0.032
    _rule(axis, 0.0, 1.0, y)
    y -= 0.026
    write(0.0, y, "upper: derived († in the paper, others ours)", **_DERIVED)
    write(0.5, y, "lower: measured ± 95%")
    y -= 0.031
    write(0.0, y, "white: within the limit")
    keys = {"open": (0.28, "? open: interval crosses it"),
            "refuted": (0.62, "✗ off: whole interval beyond it")}  # fmt: skip
    for verdict, (x, words) in keys.items():
        _fill(axis, x, y, 0.025, line, _FILLS[verdict])
        write(x + 0.02, y, words)
    y -= 0.031
    write(0.0, y, f"limit: {limits['layer']:g} from the derived exponent for the layer, "
          f"{limits['model']:g} for the model; widths d: {numbers['widths'].iloc[0]}")  # fmt: skip
    y -= 0.031
    write(0.0, y, "η: learning rate   λ: weight decay   s: fixed factor   d: width   "
          "y: output   Δy: its update   W: matrix")  # fmt: skip
    headline(figure, _message(verdicts))
    layer = numbers[numbers["case"] != "model"]
    draws = layer.groupby(["optimizer", "recipe", "case", "stat"])["seed"].nunique().max()
    n = f"model: n = {len(context.seeds)} seed{'s' * (len(context.seeds) > 1)}; "
    return caption(figure, context, n=f"{n}layer: n = {draws} draws")


def _message(verdicts: dict[str, dict[str, list[str]]]) -> str:
    """How many exponents are as derived, of the layer and of models; one value judges none."""
    said = {of: _counted(found) for of, found in verdicts.items()}
    if not any(said.values()):
        return _PLAIN
    begin = {"layer": "One layer under noise", "model": "Models, our own test"}
    return "\n".join(f"{begin[of]}: {words}" for of, words in said.items() if words)


def _counted(found: dict[str, list[str]]) -> str:
    near, undecided, off = (found.get(name, []) for name in ("near", "open", "refuted"))
    count = len(near) + len(undecided) + len(off)
    if not count:
        return ""
    if len(near) == count:
        return f"all {count} exponents as derived"
    which = f" ({off[0]})" if len(off) == 1 else ""
    return f"{len(near)} of {count} as derived, {len(undecided)} open, {len(off)} off{which}"


def _fill(axis, x: float, y: float, width: float, height: float, colour: str) -> None:
    corner = x - width / 2, y - height / 2
    axis.add_patch(Rectangle(corner, width, height, color=colour, lw=0, transform=axis.transAxes))


def _rule(axis, low: float, high: float, y: float) -> None:
    axis.plot([low, high], [y] * 2, color="black", lw=0.5, transform=axis.transAxes)


def _verdict(derived: float, found: Interval, limit: float) -> str:
    """Whether |measured − derived| is at most ``limit``, of which the interval decides."""
    if found.n < 2:
        return "one value"
    off, half = abs(found.mean - derived), (found.high - found.low) / 2
    if off + half <= limit:
        return "near"
    return "refuted" if off - half > limit else "open"


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=0, atol=_SAME))


def _signed(value: float) -> str:
    text = f"{value:.2f}"
    return "0.00" if float(text) == 0 else text.replace("-", "−")
