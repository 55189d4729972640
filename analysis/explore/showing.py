"""What several notebooks show alike: which runs there are, a figure of them, a table over S."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from analysis.drawing.style import power_of_two
from analysis.quantities.stats import mean_sd
from analysis.tables.asked import load_asked
from analysis.tables.context import context_of, seeds_of, tables_of
from analysis.tables.find import RESULTS, NothingFound, relative


def list_seeds(
    experiments: Collection[str], scale: str, source: str, results: Path = RESULTS
) -> None:
    """Print whose runs these are, and of each experiment its seeds."""
    print(f"source: {source}, in {relative(results)}\nscale: {scale}")
    for name in experiments:
        try:
            seeds = seeds_of(load_asked(name, scale, source, results).runs)
            print(f"{name}: n = {len(seeds)}, seeds {', '.join(map(str, seeds))}")
        except NothingFound:
            print(f"{name}: nothing to show, it has no finished runs here")


def show_figure(name: str, scale: str, source: str, results: Path = RESULTS) -> None:
    """Draw a figure, or say in a line what is missing."""
    figure = importlib.import_module(f"analysis.figures.{name}")
    try:
        tables = tables_of(figure, scale, source, results)
        figure.draw(figure.numbers(tables), context_of(tables, scale, source))
        plt.show()
    except NothingFound as missing:
        print(f"no {name} to show: {missing}")


def by_arm(rows: pd.DataFrame, column: str = "value") -> pd.DataFrame:
    """Mean ± standard deviation over seeds, arms down and S across."""
    return rows.pivot_table(column, "arm", "S", aggfunc=mean_sd).rename(columns=power_of_two)
