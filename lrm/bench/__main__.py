"""The command line: measure, print the tables, keep the record."""

from __future__ import annotations

import argparse
import importlib.util
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

from lrm import data
from lrm.bench import tables
from lrm.bench.measure import WARM_UP, Session, load_average
from lrm.bench.plan import ROWS, Bench
from lrm.cli import Parser, a_folder, clock, guarded
from lrm.errors import UserError, shown
from lrm.store.digests import is_listed
from lrm.store.files import as_json, make_folder, write_listed, write_sealed
from lrm.store.lock import publishing
from lrm.sweep.machine import available_cores

PUBLISHABLE = 20  # pairs


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and act; exits with 2 on bad input."""
    parser = Parser(
        prog="python -m lrm.bench", description="Speed and memory against transformers, on CPU."
    )
    add = parser.add_argument
    add("--pairs", type=int, default=20, help="measurements of each side of a row")
    add("--seconds", type=float, default=0.4, help="length of one measurement, at least one step")
    add("--only", metavar="PATTERN", action="append",
        help="only what has such a name, or parts, memory, whole (repeatable)")  # fmt: skip
    add("--rows", type=Path, default=ROWS, help="what to measure (default %(default)s)")
    add("--name", help="name of the record (default: the time)")
    add("--publish", action="store_true", help="keep the record in results/reference/bench too")
    add("--results", type=a_folder, default=Path("results"), help="folder of records and corpora")
    options = parser.parse_args(arguments)
    guarded(lambda: _main(options))


def _main(options: argparse.Namespace) -> None:
    if options.pairs < 1 or not 0 < options.seconds < math.inf:
        raise UserError("--pairs and --seconds must be positive numbers")
    if options.name and not re.fullmatch(r"\w[\w.-]{0,79}", options.name):
        raise UserError(f"--name {shown(options.name)}: write up to 80 letters, digits, . and -")
    shipped = options.rows.resolve().parent == ROWS.parent
    if options.publish and (options.pairs < PUBLISHABLE or not shipped):
        raise UserError(f"--publish takes rows of {ROWS.parent}, and at least {PUBLISHABLE} pairs")
    if importlib.util.find_spec("transformers") is None:
        raise UserError(
            "the benchmark compares with transformers, which is not installed; "
            "run make setup-dev, or pip install 'lrm-suite[evaluation]'"
        )
    name = options.name or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = options.results / "bench" / f"{name}.json"
    reference = options.results / "reference" / "bench"
    for taken in (path, *([reference / path.name] if options.publish else [])):
        if taken.exists() or is_listed(taken):
            raise UserError(f"{taken} is there already; move it away, or give another --name")
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{clock(time.monotonic() - began)}] {text}", file=sys.stderr, flush=True)

    bench = Bench(options.rows, available_cores())
    if options.only is not None:
        bench.narrow(options.only)
    corpora = make_folder(options.results / "data")
    for settings in bench.corpora():
        data.prepare(*settings, corpora, say)
    session = Session(bench, corpora, options.pairs, options.seconds, say)
    make_folder(path.parent)
    record: dict[str, Any] = {
        "started": _now(),
        "finished": None,
        "machine": session.machine,
        "cores": bench.cores,
        "pairs": options.pairs,
        "rows_of": options.rows.name,
        "only": options.only,
        "seconds_per_measurement": options.seconds,
        "load_at_start": load_average(),
        "load_at_end": None,
        "warm_up_steps": WARM_UP,
        **session.record,
    }
    session.run(lambda: write_sealed(path, record))
    record |= {"finished": _now(), "load_at_end": load_average()}
    write_sealed(path, record)
    print(tables.render(record))
    print(f"\nkept in {path}", file=sys.stderr)
    if options.publish:
        with publishing(options.results):
            # On one line: a quarter less of what the repository holds.
            write_listed(make_folder(reference), {f"{name}.json": as_json(record, indent=None)})
        print(f"published as {reference / name}.json", file=sys.stderr)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


if __name__ == "__main__":
    main()
