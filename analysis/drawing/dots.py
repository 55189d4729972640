"""Differences between arms, one line each: every seed, the mean, its interval, and zero."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from analysis.quantities.stats import interval


def dots(axis, found: Mapping[str, Collection[float]], colours: Mapping[str, str]) -> None:
    """Draw ``found``, values of the seeds by name, from top to bottom in its order.

    Points are seeds, the bar is the mean and the line its 95% interval (of several seeds).
    """
    names = list(found)
    for height, name in enumerate(reversed(names)):
        values, colour = list(found[name]), colours[name]
        mean = interval(values)
        axis.plot(values, [height] * len(values), "o", color=colour, alpha=0.5, ms=4, mew=0)
        axis.plot(mean.mean, height, "|", color=colour, ms=14, mew=2)
        if mean.n > 1:
            axis.plot([mean.low, mean.high], [height] * 2, color=colour, lw=1.2)
    axis.axvline(0, color="#999999", lw=0.8, ls=":", zorder=0)
    axis.locator_params(axis="x", nbins=6)
    axis.set_yticks(range(len(names)), reversed(names))
    axis.set_ylim(-0.6, len(names) - 0.4)
