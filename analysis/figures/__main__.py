"""``python -m analysis.figures fig1 --scale tiny``: draw figures whose runs or style changed."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd

from analysis.drawing.pictures import pictures
from analysis.drawing.stamp import inputs_of, is_current, stamp_of, write_stamp
from analysis.drawing.style import STYLE_FILE
from analysis.needs import experiment_of, figures
from analysis.tables.context import context_of, digest_of, tables_of
from analysis.tables.find import (
    EXPERIMENTS,
    RESULTS,
    SOURCES,
    NothingFound,
    left_out_line,
    unfinished,
)
from analysis.tables.results import Tables
from analysis.tables.trials import digest_of_log
from lrm.cli import Parser, a_folder, guarded
from lrm.errors import UserError, line_of
from lrm.plan.experiment import NoSuchRun
from lrm.plan.scales import SCALES
from lrm.store.digests import running
from lrm.store.files import make_folder, write_atomic

PACKAGE = Path(__file__).parents[1]
FORMATS = ("png", "pdf", "svg")


def main() -> None:
    """Parse the command line and draw; a figure that cannot be drawn does not stop the others."""
    names = figures()
    parser = Parser(prog="python -m analysis.figures")
    listed = {"metavar": "figure", "choices": names, "help": ", ".join(names)}
    parser.add_argument("figures", nargs="+", **listed)
    parser.add_argument("--scale", default="tiny", choices=SCALES)
    parser.add_argument(
        "--source", default="runs", choices=SOURCES, help="yours, or what is published"
    )
    parser.add_argument("--results", type=a_folder, default=RESULTS)
    options = parser.parse_args()
    target = options.results / "figures" / options.scale
    if options.source != "runs":
        target /= options.source
    guarded(lambda: _render_all(options, target))


def _render_all(options: argparse.Namespace, target: Path) -> None:
    """One line for each figure that cannot be drawn, and then exit code 2."""
    failed = False
    for figure in options.figures:
        try:
            render(figure, options.scale, options.source, options.results, target)
        except UserError as error:
            print(line_of(error), file=sys.stderr)
            failed = True
    if failed:
        raise SystemExit(2)


def render(
    figure: str,
    scale: str,
    source: str,
    folder: Path,
    target: Path,
    formats: Sequence[str] = FORMATS,
) -> Path:
    """Draw ``figure`` of the runs or the reference under ``folder`` into the folder ``target``.

    Writes a csv and the picture in each of ``formats``, of which png is one. Does nothing where the
    tables, the log of the search that tuned them, the style and the code are those of the last
    drawing, and its files are as they were drawn.
    Returns the path of the png; raises UserError where runs are missing or come from several
    corpora.
    """
    module = importlib.import_module(f"analysis.figures.{figure}")
    tables = tables_of(module, scale, source, folder)
    if source == "runs":
        _tell_left_out(tables, scale, folder)
    inputs = _inputs(tables, scale, source, folder)
    make_folder(target)
    stamp = stamp_of(target, figure)
    png = target / f"{figure}.png"
    if is_current(stamp, inputs):
        print(f"{png} is up to date")
        return png
    context = context_of(tables, scale, source)
    if folder.resolve() != RESULTS.resolve():  # nobody has written of these
        context = dataclasses.replace(context, told=False)
    numbers = module.numbers(tables)

    matplotlib.use("agg")  # files only: no window, no display needed
    outputs = {f"{figure}.csv": csv_of(numbers).encode()}
    with plt.style.context(STYLE_FILE):
        drawing = module.draw(numbers, context)
        drawn = pictures(drawing, formats)
        outputs |= {f"{figure}.{kind}": content for kind, content in drawn.items()}
    plt.close(drawing)
    for name, content in outputs.items():
        write_atomic(target / name, content)
    write_stamp(stamp, inputs, outputs)
    beside = ", ".join([*(kind for kind in formats if kind != "png"), "csv"])
    print(f"drew {png}, with {beside} beside it")
    return png


def _tell_left_out(tables: dict[str, Tables], scale: str, folder: Path) -> None:
    """A line for each own seed that is not drawn: one that diverged may carry the message."""
    for key, table in tables.items():
        drawn = {*table.runs["seed"]}
        with contextlib.suppress(UserError):  # what is not drawn may be damaged
            for seed, labels in unfinished(experiment_of(key), scale, folder).items():
                if seed not in drawn:
                    print(left_out_line(experiment_of(key), seed, labels))


def drawn_of(figure: str, scale: str, source: str, folder: Path, target: Path) -> bool:
    """Whether the drawing in ``target`` is of the runs and searches of now, whatever the code."""
    module = importlib.import_module(f"analysis.figures.{figure}")
    try:
        read = _read(tables_of(module, scale, source, folder), scale, source, folder)
    except (NothingFound, NoSuchRun):
        return False
    return inputs_of(stamp_of(target, figure)).items() >= read.items()


def csv_of(numbers: pd.DataFrame) -> str:
    """What a figure draws as text, to seven digits: what is drawn has no more, nor do runs."""
    return numbers.to_csv(index=False, float_format="%.7g")


def _inputs(tables: dict[str, Tables], scale: str, source: str, folder: Path) -> dict[str, str]:
    """Digests of what a drawing depends on: tables, logs of searches, style, code and criteria."""
    code = running()
    sources = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".mplstyle")]
    criteria = [EXPERIMENTS / experiment_of(key) / "criteria.yaml" for key in tables]
    for path in (*sorted(sources), *filter(Path.exists, criteria)):
        code.update(path.read_bytes())
    return {"code": code.hexdigest()} | _read(tables, scale, source, folder)


def _read(tables: dict[str, Tables], scale: str, source: str, folder: Path) -> dict[str, str]:
    """Digests of the tables, and of the logs of the searches that tuned them."""
    inputs = {}
    for key, table in tables.items():
        name = experiment_of(key)
        inputs[f"tables of {key}"] = digest_of(table, name, source, folder)
        with contextlib.suppress(NothingFound):
            inputs[f"log of {name}"] = digest_of_log(name, scale, source, folder)
    return inputs


if __name__ == "__main__":
    sys.exit(main())
