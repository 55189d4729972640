"""Menus that redraw both drawings, for a notebook with a live kernel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from analysis.explore.drawings import draw_course, draw_distribution
from analysis.explore.selection import (
    about,
    choices,
    default_experiment,
    default_runs,
    experiments,
    named,
    select,
)
from analysis.explore.tables import course, distribution
from analysis.tables.asked import load_asked
from analysis.tables.find import RESULTS
from analysis.tables.results import Tables, seeded
from lrm.errors import UserError


def widgets(
    scale: str,
    source: str,
    results: Path = RESULTS,
    tables: Mapping[str, Tables] | None = None,
    there: pd.DataFrame | None = None,
):
    """Menus that redraw ``draw_course`` and ``draw_distribution``, for a live notebook.

    ``tables`` holds those of experiments that were read before, and ``there`` what ``experiments``
    has found. Returns the widget; None, after a
    line that says so, where ipywidgets is not installed.
    """
    try:
        import ipywidgets
    except ImportError:
        print("no menus: ipywidgets is not installed (pip install ipywidgets)")
        return None
    there = experiments(scale, source, results) if there is None else there
    return Menus(ipywidgets, scale, source, results, tables or {}, there).box


# A menu shows nothing where its value is None.
_ALL, _LAST = "all", "last"


class Menus:
    """The state of the menus: what is chosen bounds what may be chosen next."""

    def __init__(
        self, library, scale: str, source: str, results: Path, tables: Mapping[str, Tables],
        there: pd.DataFrame,
    ):  # fmt: skip
        self._where = (scale, source, results)
        self._tables = dict(tables)
        names = list(there.index[there["runs"] + there["Brownian"] > 0])
        start = default_experiment(there)
        many = {"rows": 7, "layout": {"width": "31%"}}
        self.experiment = library.Dropdown(description="experiment", options=names, value=start)
        self.arms = library.SelectMultiple(description="arms", **many)
        self.points = library.SelectMultiple(description="grid points", **many)
        self.seeds = library.SelectMultiple(description="seeds", **many)
        self.brownian = library.Checkbox(description="Brownian motion", value=True)
        self.tensor = library.Dropdown(description="tensor")
        self.layer = library.Dropdown(description="layer")
        self.stat = library.Dropdown(description="statistic")
        self.vector = library.Dropdown(description="vector")
        self.step = library.Dropdown(description="at step")
        self.output = library.Output()
        lines = (
            (self.experiment, self.brownian),
            (self.arms, self.points, self.seeds),
            (self.tensor, self.layer),
            (self.stat, self.vector, self.step),
        )
        self.box = library.VBox([*map(library.HBox, lines), self.output])
        self._quiet = False
        for menu in sum(lines, ()):
            menu.observe(self._changed, "value")
        self._changed({"owner": self.experiment})

    @property
    def tables(self) -> Tables:
        """The tables of the chosen experiment, which are read once."""
        name = self.experiment.value
        if name not in self._tables:
            self._tables[name] = load_asked(name, *self._where)
        return self._tables[name]

    def _changed(self, change) -> None:
        """A menu that changes others must not draw once for each of them."""
        if self._quiet:
            return
        self._quiet = True
        try:
            with self.output:
                if change["owner"] is self.experiment:
                    self._take_experiment()
                self._offer_measurements()
        finally:
            self._quiet = False
        self._draw()

    def _take_experiment(self) -> None:
        runs = named(self.tables.runs)
        chosen = default_runs(runs)
        every_seed, first = map(seeded, (runs, chosen))
        for menu, column, every, some in (
            (self.arms, "arm", runs, chosen),
            (self.points, "point", runs, chosen),
            (self.seeds, "seed", every_seed, first),
        ):
            menu.options = [(str(value) or "no grid", value) for value in every[column].unique()]
            menu.value = tuple(some[column].unique())
        self._logged, self._vectors = choices(self.tables.scalars), choices(self.tables.vectors)
        names = dict.fromkeys([*self._logged["tensor"], *self._vectors["tensor"]])
        _offer(self.tensor, list(names), prefer="projector")

    def _offer_measurements(self) -> None:
        scalars, arrays = (
            table[table["tensor"] == self.tensor.value] for table in (self._logged, self._vectors)
        )
        layers = sorted(set().union(*scalars["layers"], *arrays["layers"]))
        _offer(self.layer, [_ALL, *layers])
        _offer(self.stat, list(scalars["stat"]), prefer="weight_norm")
        _offer(self.vector, list(arrays["stat"]), prefer="row_norms")
        vectors = self.tables.vectors
        same = (vectors["tensor"] == self.tensor.value) & (vectors["stat"] == self.vector.value)
        steps = sorted(map(int, vectors.loc[same, "step"].unique()), reverse=True)
        _offer(self.step, [_LAST, *steps])

    def _draw(self) -> None:
        self.output.clear_output(wait=True)
        with self.output:
            try:
                runs = select(self.tables.runs, self.arms.value, self.points.value,
                              self.seeds.value, self.brownian.value)  # fmt: skip
                context = about(runs, *self._where[:2])
                tensor = self.tensor.value
                layer = None if self.layer.value == _ALL else self.layer.value
                step = None if self.step.value == _LAST else self.step.value
                if self.stat.value:
                    what = (tensor, self.stat.value, layer)
                    _show(draw_course(course(self.tables.scalars, runs, *what), context))
                if self.vector.value:
                    what = (tensor, self.vector.value, layer, step)
                    table = distribution(self.tables.vectors, runs, *what)
                    _show(draw_distribution(table, context))
                else:
                    print(f"no vectors were logged of {self.tensor.value}")
            except UserError as error:
                print(error)


def _offer(menu, options: list, prefer=None) -> None:
    """New options, keeping the value where it is still among them."""
    old = menu.value
    menu.options = options
    first = next(iter(options), None)
    menu.value = next((value for value in (old, prefer) if value in options), first)


def _show(figure) -> None:
    from IPython.display import display

    display(figure)
    plt.close(figure)
