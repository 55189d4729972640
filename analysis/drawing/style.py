"""Colours, names and sizes shared by all figures."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter

from analysis.tables.results import FIRST_JUDGING_SEED

STYLE_FILE = Path(__file__).with_name("lrm.mplstyle")
# Okabe-Ito: told apart by colour-blind readers, and in grey by lightness.
ARM_COLOURS = {"FPN": "#D55E00", "SPN": "#0072B2", "VPN": "#009E73"}
ARM_MARKERS = {"FPN": "o", "SPN": "s", "VPN": "^"}
NOISE_COLOUR = "#555555"
TEXT_WIDTH = 7.0  # inches, a page's text


@contextmanager
def style():
    """The suite's look, for the length of a ``with`` block."""
    with plt.style.context(STYLE_FILE):
        yield


def caption(figure, context, note: str = "") -> None:
    """What every figure must say: scale, n and which seeds, corpus, whose runs."""
    n = ", ".join(
        [_seeds(context.seeds), *(f"{name}: {_seeds(o)}" for name, o in context.others.items())]
    )
    whose = {"runs": "own runs", "reference": "published reference"}[context.source]
    parts = [f"scale: {context.scale}", n, f"corpus: {context.corpus}", whose, note]
    figure.text(0.5, 0.005, "   ".join(filter(None, parts)), ha="center", va="bottom",
                fontsize=6.5, color="#444444")  # fmt: skip


def _seeds(seeds) -> str:
    stage = "judging" if min(seeds) >= FIRST_JUDGING_SEED else "exploration"
    return f"n = {len(seeds)} {stage} seed{'' if len(seeds) == 1 else 's'}"


def power_of_two(value: float) -> str:
    """1/16, 1/4, 1, 4, …, for tick labels."""
    return f"{value:g}" if value >= 1 else f"1/{1 / value:g}"


def plain_log_axis(axis, x: bool = False) -> None:
    """A logarithmic y (or x) axis over about a decade, labelled 2, 3, 5, not powers of ten."""
    (axis.set_xscale if x else axis.set_yscale)("log")
    along = axis.xaxis if x else axis.yaxis
    low, high = along.get_view_interval()
    # Along x numbers stand side by side, and over more than a decade would touch.
    subs = (1, 2, 5) if x and high > 10 * low else (1, 1.5, 2, 3, 5, 7)
    along.set_major_locator(LogLocator(subs=subs))
    along.set_major_formatter("{x:g}")
    along.set_minor_formatter(NullFormatter())
