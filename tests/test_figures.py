"""Figures of what is published: every text is inside its figure, and none covers another."""

import importlib
import io
import itertools
import re
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from PIL import Image

from analysis.drawing.axes import spread_out
from analysis.drawing.page import caption, key, legend_below, page
from analysis.drawing.pictures import in_palette, lighter, picture
from analysis.drawing.style import STYLE_FILE, PlainLogLocator
from analysis.figures import fig6, table2
from analysis.figures.projector_controls import SPREAD
from analysis.tables.context import Context, context_of, tables_of
from analysis.tables.results import Tables

RESULTS = Path(__file__).parents[1] / "results"
FIGURES = sorted((RESULTS / "reference").glob("*/figures/*.csv"))
CONTEXT = Context("tiny", [100, 101], "some text", "reference")
SLACK = 1.0  # pixels, at 120 an inch
# Words of findings, which titles of another's runs must not have.
FINDS = re.compile(
    r"\b((?<!as )is|are|do|does|can|grows?|regrows|falls?|stays?|ends? near|shrinks?|outgrow|drifts"
    r"|repeats?|worse|fastest|faster|slower|sooner|smaller|higher|lower|most|hardly|nearly|no gain"
    r"|less at|harms?|loses?|dominates?|exceeds?|makes up|costs more|gains? by|no difference)\b"
)
# Figures whose titles say what is computed from the numbers drawn.
COMPUTED = {"fig2", "fig3", "fig4", "table1", "gdn_draws"}


@pytest.fixture
def boxes(monkeypatch):
    """The function that draws a figure and gives the box of each text that is seen."""
    drawn, plain = [], Text.draw
    monkeypatch.setattr(Text, "draw", lambda self, to: (drawn.append(self), plain(self, to)))

    def found(figure):
        figure.draw_without_rendering()
        seen = [text for text in drawn if text.get_visible() and text.get_text().strip()]
        # An annotation's own box holds its arrow too.
        return [(text.get_text(), Text.get_window_extent(text)) for text in seen]

    yield found
    plt.close("all")


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_texts_are_inside_and_apart(path, boxes):
    module = importlib.import_module(f"analysis.figures.{path.stem}")
    scale = path.parents[1].name
    context = context_of(tables_of(module, scale, "reference", RESULTS), scale, "reference")
    with plt.style.context(STYLE_FILE):
        figure = module.draw(pd.read_csv(path), context)
        found = boxes(figure)
    assert len(found) > 5
    edge = figure.bbox.padded(SLACK)
    assert not [text for text, box in found if not inside(box, edge)]
    pairs = itertools.combinations(found, 2)
    assert not [(one, other) for (one, a), (other, b) in pairs if covers(a, b)]


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_findings_are_told_of_published_runs_alone(path):
    """What another's runs show is not known: their titles name what is drawn, and nothing else."""
    module = importlib.import_module(f"analysis.figures.{path.stem}")
    scale = path.parents[1].name
    published = context_of(tables_of(module, scale, "reference", RESULTS), scale, "reference")
    with plt.style.context(STYLE_FILE):
        figure = module.draw(pd.read_csv(path), replace(published, source="runs"))
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    titles += [part.get_suptitle() for part in (figure, *figure.subfigs)]
    plt.close("all")
    assert path.stem in COMPUTED or not [title for title in titles if FINDS.search(title)]


def inside(box, edge) -> bool:
    return box.x0 >= edge.x0 and box.y0 >= edge.y0 and box.x1 <= edge.x1 and box.y1 <= edge.y1


def covers(a, b) -> bool:
    wide = min(a.x1, b.x1) - max(a.x0, b.x0)
    return min(wide, min(a.y1, b.y1) - max(a.y0, b.y0)) > SLACK


def test_the_spread_of_the_controls_is_that_of_the_published_sweep():
    rows = pd.read_csv(RESULTS / "reference/tiny/figures/fig1.csv").query("panel == 'a'")
    losses = rows.pivot_table("value", "seed", ["arm", "S"])
    for s, spread in SPREAD.items():
        gaps = losses["FPN", s] - losses["VPN", s]
        assert spread == pytest.approx(np.quantile(gaps, (0.05, 0.95)), abs=1e-3)


@pytest.mark.parametrize(
    "note", ["", "a note that is so long that one line has no room for it " * 2]
)
def test_a_caption_takes_the_lines_that_it_needs(note, boxes):
    with plt.style.context(STYLE_FILE):
        figure, axis = page(1, 1, 1.5)
        axis.set_xlabel("step")
        legend_below(figure, [key("a line")], 1)
        found = dict(boxes(caption(figure, replace(CONTEXT, corpus="a text " * 3), note.strip())))
    [said] = [text for text in found if text.startswith("scale: tiny")]
    assert said.count("\n") == bool(note) and "n = 2 seeds" in said
    assert inside(found[said], figure.bbox)
    assert found[said].y1 < found["a line"].y0 and found["a line"].y1 < found["step"].y0


def test_names_move_no_further_than_they_must():
    assert spread_out([0.0, 2.0, 1.0], [1.0, 1.0, 1.0]).tolist() == [0.0, 2.0, 1.0]
    assert spread_out([0.1, 0.0], [1.0, 1.0]).tolist() == pytest.approx([0.55, -0.45])
    draw = np.random.default_rng(0)
    places, widths = draw.uniform(size=7), draw.uniform(0.1, 0.3, size=7)
    found, order = spread_out(places, widths), np.argsort(places)
    gaps = np.diff(found[order]) - (widths[order][1:] + widths[order][:-1]) / 2
    assert (gaps > -1e-12).all()
    # Names that touch share the way: the middle of each block is where its names' middle was.
    for block in np.split(order, np.flatnonzero(gaps > 1e-12) + 1):
        assert found[block].mean() == pytest.approx(places[block].mean())


@pytest.mark.parametrize("span", [(3.5, 3.7), (0.7, 2.6), (0.03, 5.0), (1e-3, 2.0), (1e-7, 1e9)])
def test_a_logarithmic_axis_has_numbers_enough_and_not_too_many(span):
    ticks = PlainLogLocator().tick_values(*span)
    assert 3 <= ((ticks >= span[0]) & (ticks <= span[1])).sum() <= 7


def test_files_of_a_drawing_are_short_and_the_same_each_time():
    def drawn():
        figure, axes = plt.subplots()
        axes.plot([0, 1, 2], [0.1, 0.7, 0.3], "o-")
        return figure

    buffer = io.BytesIO()
    drawn().savefig(buffer, format="svg")
    long, short = buffer.getvalue().decode(), lighter(buffer.getvalue()).decode()
    number = r"-?[0-9.]+"
    for kind in (r" d=\"([^\"]*)\"", r" [xy]=\"([^\"]*)\"", r"translate\(([^)]*)\)"):
        was, now = (" ".join(re.findall(kind, text)) for text in (long, short))
        assert re.findall("[A-Za-z]", was) == re.findall("[A-Za-z]", now)
        ends = [np.array([float(n) for n in re.findall(number, text)]) for text in (was, now)]
        assert len(ends[0]) and np.abs(ends[0] - ends[1]).max() <= 0.005 + 1e-9
    # What glyphs are scaled by stays whole.
    assert re.findall(r"scale\([^)]*\)", long) == re.findall(r"scale\([^)]*\)", short)
    # Ticks use a path whose style they need not repeat.
    assert short.count("<use") == long.count("<use") > 0
    assert short.count(" style=") < long.count(" style=")
    assert len(short) < len(long)
    with plt.style.context(STYLE_FILE):
        for kind in ("pdf", "png", "svg"):
            assert picture(drawn(), kind) == picture(drawn(), kind)
    with Image.open(io.BytesIO(in_palette(picture(drawn(), "png"), (200, 100)))) as small:
        assert small.size[0] <= 200 and small.size[1] == 100
    plt.close("all")


@pytest.mark.parametrize(("seeds", "drawn"), [([0, 100, 101], [100, 101]), ([0, 1], [0, 1])])
def test_averages_leave_out_seeds_that_explore(seeds, drawn, monkeypatch):
    runs = pd.DataFrame({"kind": "train", "seed": seeds, "run": [f"r{seed}" for seed in seeds]})
    table = Tables(runs, runs[["run"]], runs[["run"]])
    monkeypatch.setattr("analysis.tables.context.load_tables", lambda *_: table)
    for figure, expected in ((table2, drawn), (fig6, seeds)):
        found = tables_of(figure, "smoke", "runs", RESULTS)
        assert {tuple(one.runs["seed"]) for one in found.values()} == {tuple(expected)}
