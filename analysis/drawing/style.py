"""Colours, sizes and axes shared by all figures."""

from __future__ import annotations

from pathlib import Path

from matplotlib.ticker import LogLocator, NullFormatter

STYLE_FILE = Path(__file__).with_name("lrm.mplstyle")
# Okabe-Ito: told apart by colour-blind readers, and in grey by lightness.
ARM_COLOURS = {"FPN": "#D55E00", "SPN": "#0072B2", "VPN": "#009E73"}
ARM_LOOKS = {
    arm: {"color": colour, "marker": marker}
    for (arm, colour), marker in zip(ARM_COLOURS.items(), "os^", strict=True)
}
NOISE_COLOUR = "#555555"
NOT_JUDGED = {"color": "#efefef"}
TEXT_WIDTH = 7.0  # inches, a page's text


def power_of_two(value: float) -> str:
    """1/16, 1/4, 1, 4, …, for tick labels."""
    return f"{value:g}" if value >= 1 else f"1/{1 / value:g}"


def plain_log_axis(axis, x: bool = False) -> None:
    """A logarithmic y (or x) axis over about a decade, labelled 2, 3, 5, not powers of ten."""
    (axis.set_xscale if x else axis.set_yscale)("log")
    along = axis.xaxis if x else axis.yaxis
    low, high = along.get_view_interval()
    # Along x numbers stand side by side, and over more than a decade would touch.
    plain_ticks(along, (1, 2, 5) if x and high > 10 * low else (1, 1.5, 2, 3, 5, 7))


def log_axis(axis, values) -> None:
    """A logarithmic y axis, with plain numbers at the ticks unless ``values`` span decades."""
    if values.max() < 100 * values.min():
        plain_log_axis(axis)
    else:
        axis.set_yscale("log")
        axis.yaxis.set_minor_formatter(NullFormatter())


def plain_ticks(along, multiples: tuple[float, ...]) -> None:
    """Numbers such as 20, not 2 · 10¹, at these multiples of powers of ten of a logarithmic axis.

    ``along`` is ``axis.xaxis`` or ``axis.yaxis``.
    """
    along.set_major_locator(LogLocator(subs=multiples))
    along.set_major_formatter("{x:g}")
    along.set_minor_formatter(NullFormatter())
