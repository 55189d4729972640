"""Menus that redraw both drawings, for a notebook with a live kernel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt

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
from analysis.tables.find import RESULTS
from analysis.tables.results import Tables
from lrm.errors import UserError


def widgets(
    scale: str,
    source: str,
    results: Path = RESULTS,
    tables: Mapping[str, Tables] | None = None,
):
    """Menus that redraw ``draw_course`` and ``draw_distribution``, for a live notebook.

    ``tables`` holds those of experiments that were read before. Returns the widget; None, after a
    line that says so, where ipywidgets is not installed.
    """
    try:
        import ipywidgets
    except ImportError:
        print("no menus: ipywidgets is not installed (pip install ipywidgets)")
        return None
    return Menus(ipywidgets, scale, source, results, tables or {}).box


class Menus:
    """The state of the menus: what is chosen bounds what may be chosen next."""

    def __init__(
        self, library, scale: str, source: str, results: Path, tables: Mapping[str, Tables]
    ):
        self._where = (scale, source, results)
        self._tables = dict(tables)
        there = experiments(scale, source, results)
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
        self.box = library.VBox(
            [
                library.HBox([self.experiment, self.brownian]),
                library.HBox([self.arms, self.points, self.seeds]),
                library.HBox([self.tensor, self.layer]),
                library.HBox([self.stat, self.vector, self.step]),
                self.output,
            ]
        )
        self._quiet = False
        for menu, then in (
            (self.experiment, self._take_experiment),
            (self.tensor, self._take_tensor),
            (self.vector, self._take_vector),
        ):
            menu.observe(self._on_change(then), "value")
        for menu in (self.arms, self.points, self.seeds, self.brownian, self.layer, self.stat,
                     self.step):  # fmt: skip
            menu.observe(self._on_change(lambda: None), "value")
        self._on_change(self._take_experiment)(None)

    @property
    def tables(self) -> Tables:
        """Those of the chosen experiment, read once."""
        name = self.experiment.value
        scale, source, results = self._where
        if name not in self._tables:
            self._tables[name] = Tables.load(name, scale, source, results)
        return self._tables[name]

    def _on_change(self, then):
        """A menu that changes others must not draw once for each of them."""

        def changed(_):
            if self._quiet:
                return
            self._quiet = True
            try:
                with self.output:
                    then()
            finally:
                self._quiet = False
            self._draw()

        return changed

    def _take_experiment(self) -> None:
        runs = named(self.tables.runs)
        trained = runs[runs["kind"] == "train"]
        chosen = default_runs(runs)
        first = chosen[chosen["kind"] == "train"]
        for menu, column, every in (
            (self.arms, "arm", runs),
            (self.points, "point", runs),
            (self.seeds, "seed", trained),
        ):
            values = list(every[column].unique())
            menu.options = [(str(value) or "no grid", value) for value in values]
            menu.value = tuple((chosen if every is runs else first)[column].unique())
        self._logged, self._vectors = choices(self.tables.scalars), choices(self.tables.vectors)
        names = list(dict.fromkeys([*self._logged["tensor"], *self._vectors["tensor"]]))
        _offer(self.tensor, names, prefer="projector")
        self._take_tensor()

    def _take_tensor(self) -> None:
        of_tensor = [t[t["tensor"] == self.tensor.value] for t in (self._logged, self._vectors)]
        layers = sorted({layer for t in of_tensor for some in t["layers"] for layer in some})
        _offer(self.layer, [("all", None), *((str(layer), layer) for layer in layers)])
        _offer(self.stat, list(of_tensor[0]["stat"]), prefer="weight_norm")
        _offer(self.vector, list(of_tensor[1]["stat"]), prefer="row_norms")
        self._take_vector()

    def _take_vector(self) -> None:
        vectors = self.tables.vectors
        same = (vectors["tensor"] == self.tensor.value) & (vectors["stat"] == self.vector.value)
        steps = sorted(map(int, vectors.loc[same, "step"].unique()), reverse=True)
        _offer(self.step, [("last", None), *((str(step), step) for step in steps)])

    def _draw(self) -> None:
        self.output.clear_output(wait=True)
        with self.output:
            try:
                runs = select(self.tables.runs, self.arms.value, self.points.value,
                              self.seeds.value, self.brownian.value)  # fmt: skip
                context = about(runs, *self._where[:2])
                what = (self.tensor.value, self.stat.value, self.layer.value)
                if self.stat.value:
                    _show(draw_course(course(self.tables.scalars, runs, *what), context))
                what = (self.tensor.value, self.vector.value, self.layer.value, self.step.value)
                if self.vector.value:
                    found = distribution(self.tables.vectors, runs, *what)
                    _show(draw_distribution(found, context))
                else:
                    print(f"no vectors were logged of {self.tensor.value}")
            except UserError as error:
                print(error)


def _offer(menu, options: list, prefer=None) -> None:
    """New options, keeping the value where it is still among them."""
    values = [option[1] if isinstance(option, tuple) else option for option in options]
    old = menu.value
    menu.options = options
    if old in values:
        menu.value = old
    elif prefer in values:
        menu.value = prefer
    else:
        menu.value = values[0] if values else None


def _show(figure) -> None:
    from IPython.display import display

    display(figure)
    plt.close(figure)
