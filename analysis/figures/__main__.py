"""``python -m analysis.figures fig1 --scale tiny``: draw figures whose runs or style changed."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

from analysis.drawing.palette import in_palette
from analysis.drawing.style import STYLE_FILE
from analysis.needs import figures
from analysis.tables.context import context_of, tables_of
from analysis.tables.find import EXPERIMENTS, RESULTS, SOURCES, NothingFound
from analysis.tables.results import Tables
from analysis.tables.trials import log_of
from lrm.cli import guarded
from lrm.errors import UserError
from lrm.store.files import make_folder, write_atomic

PACKAGE = Path(__file__).parents[1]


def main() -> None:
    """Parse the command line and draw; a figure that cannot be drawn does not stop the others."""
    names = figures()
    parser = argparse.ArgumentParser(prog="python -m analysis.figures")
    listed = {"metavar": "figure", "choices": names, "help": ", ".join(names)}
    parser.add_argument("figures", nargs="+", **listed)
    parser.add_argument("--scale", default="tiny")
    parser.add_argument(
        "--source", default="runs", choices=SOURCES, help="yours, or what is published"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
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
            print(f"error: {error}", file=sys.stderr)
            failed = True
    if failed:
        raise SystemExit(2)


def render(figure: str, scale: str, source: str, folder: Path, target: Path) -> Path:
    """Draw ``figure`` of the runs or the reference under ``folder`` into the folder ``target``.

    Writes png, pdf and csv. Does nothing where the runs, the log of the search that tuned them,
    the style and the code are those of the last drawing. Returns the path of the png; raises
    UserError where runs are missing or come from several corpora.
    """
    module = importlib.import_module(f"analysis.figures.{figure}")
    tables = tables_of(module, scale, source, folder)
    inputs = _inputs(tables, scale, source, folder)
    make_folder(target)
    stamp = target / f".{figure}.json"
    png = target / f"{figure}.png"
    files = [target / f"{figure}.{kind}" for kind in ("png", "pdf", "csv")]
    if all(f.exists() for f in (*files, stamp)) and stamp.read_text() == inputs:
        print(f"{png} is up to date")
        return png
    context = context_of(tables, scale, source)
    numbers = module.numbers(tables)

    matplotlib.use("agg")  # files only: no window, no display needed
    with plt.style.context(STYLE_FILE):
        drawing = module.draw(numbers, context)
        for kind in ("pdf", "png"):
            buffer = io.BytesIO()
            # Without dates and versions the same numbers give the same file.
            metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
            drawing.savefig(buffer, format=kind, metadata=metadata)
            data = buffer.getvalue()
            write_atomic(target / f"{figure}.{kind}", in_palette(data) if kind == "png" else data)
    write_atomic(target / f"{figure}.csv", numbers.to_csv(index=False).encode())
    write_atomic(stamp, inputs.encode())
    print(f"drew {png}, with pdf and csv beside it")
    return png


def _inputs(tables: dict[str, Tables], scale: str, source: str, folder: Path) -> str:
    """What a drawing depends on: runs, logs of searches, the style, the code and the criteria."""
    code = hashlib.sha256()
    sources = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".mplstyle")]
    criteria = [EXPERIMENTS / name / "criteria.yaml" for name in tables]
    for path in (*sorted(sources), *filter(Path.exists, criteria)):
        code.update(path.read_bytes())
    runs = {name: sorted(table.runs["run"]) for name, table in tables.items()}
    inputs: dict[str, object] = {"code": code.hexdigest(), "runs": runs}
    for name in tables:
        with contextlib.suppress(NothingFound):
            log = log_of(name, scale, source, folder).read_bytes()
            inputs[f"log of {name}"] = hashlib.sha256(log).hexdigest()
    return json.dumps(inputs)


if __name__ == "__main__":
    sys.exit(main())
