"""``python -m analysis.publish projector --seeds 3``: finished runs are published.

Their tables are copied into ``results/reference/<scale>``, compactly (``analysis.tables.compact``),
beside the seeds that are there, and figures and claims are made anew from all.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from analysis.claims.judges import judge_of
from analysis.claims.ledger import judge_and_write
from analysis.figures.__main__ import render
from analysis.needs import figures, read_by
from analysis.tables import compact
from analysis.tables.compact import Kept, VectorReader
from analysis.tables.criteria import criteria_of
from analysis.tables.find import EXPERIMENTS, RESULTS, NothingFound
from lrm.cli import Once, Parser, a_folder, guarded, parse_seeds
from lrm.errors import UserError, line_of
from lrm.plan.claims import asked_by, judging_seeds
from lrm.plan.experiment import load
from lrm.plan.scales import SCALES
from lrm.store.digests import MANIFEST, manifest_of
from lrm.store.files import write_atomic
from lrm.store.lock import publishing

_SEEDS = "1"  # the number that is published unless others are asked for
# What is published of a drawing beside its numbers. PDF and SVG are made anew by make.
FORMATS = ("png",)


def main() -> None:
    """Parse the command line, publish, judge, draw."""
    parser = Parser(prog="python -m analysis.publish")
    parser.add_argument("experiments", nargs="*")
    parser.add_argument("--scale", action=Once, default="tiny", choices=SCALES)
    parser.add_argument("--seeds", action=Once, help="as in run.py: 3, or 100-107; default 1")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only runs whose label matches, for claims that read no others (repeatable)",
    )
    parser.add_argument(
        "--claim",
        action=Once,
        metavar="ID",
        help="in place of both: what judges this claim of the experiment",
    )
    parser.add_argument("--results", type=a_folder, default=RESULTS)
    parser.add_argument(
        "--digests",
        action="store_true",
        help="only list the digests of all that is published, as it lies: after a merge by hand",
    )
    parser.add_argument(
        "--redraw",
        action="store_true",
        help="only draw the published figures of the scale anew, after a change of drawing code",
    )
    options = parser.parse_args()
    guarded(lambda: _main(options))


def _main(options: argparse.Namespace) -> None:
    chosen = options.experiments or options.only or (options.seeds, options.claim) != (None, None)
    if (options.digests or options.redraw) and (chosen or options.digests == options.redraw):
        raise UserError("--digests and --redraw are calls of their own; leave out the other one, "
                        "experiments, --seeds, --only and --claim")  # fmt: skip
    if options.digests:
        with publishing(options.results):
            written = list_digests(options.results / "reference")
        if not written:
            raise UserError(f"nothing is published in {options.results / 'reference'}")
        for path in written:
            print(f"wrote {path}")
        return
    drawings = options.results / "reference" / options.scale / "figures"
    if options.redraw:
        drawn = [figure for figure in figures() if (drawings / f"{figure}.csv").is_file()]
        if not drawn:
            raise UserError(f"no figure is published at {options.scale} in {drawings}")
        if _draw(drawn, options, drawings):
            raise SystemExit(2)
        return
    if not options.experiments:
        raise UserError("name an experiment to publish, as make publish EXPERIMENT=projector does")
    for name in options.experiments:
        if not re.fullmatch(r"\w+", name):
            raise UserError(f"{name} is no experiment; write its name alone, as in projector")
    seeds = parse_seeds(_SEEDS if options.seeds is None else options.seeds)
    only = options.only
    if options.claim is not None:
        if only or options.seeds is not None or len(options.experiments) > 1:
            raise UserError("--claim says which seeds and runs of one experiment; leave out others")
        seeds, only = asked_by(EXPERIMENTS / options.experiments[0], options.claim, options.scale)
    published: list[str] = []
    failed = False
    try:
        for experiment in options.experiments:
            folder = publish(experiment, options.scale, seeds, options.results, only)
            published.append(experiment)
            size = sum(file.stat().st_size for file in folder.iterdir())
            print(f"published {experiment} to {folder}, {size / 1e6:.1f} MB")
    finally:  # what was published before an error is judged and drawn all the same
        names = [figure for figure in figures() if {*published} & {*read_by(figure)}]
        try:
            if published:
                judge_and_write(options.scale, "reference", options.results)
        finally:
            failed = _draw(names, options, drawings)
    if failed:
        raise SystemExit(2)


def _draw(names: Sequence[str], options: argparse.Namespace, drawings: Path) -> bool:
    """Draw what can be drawn, with a line for each other figure; whether one of them is wrong."""
    failed = False
    for figure in names:
        try:
            render(figure, options.scale, "reference", options.results, drawings, FORMATS)
        except UserError as error:
            # A figure may read several experiments, of which one is still to come.
            if isinstance(error, NothingFound) and not (drawings / f"{figure}.csv").exists():
                print(f"{figure} is not drawn yet: {error}")
                continue
            print(line_of(error), file=sys.stderr)
            failed = True
    return failed


def publish(
    experiment: str,
    scale: str,
    seeds: list[int],
    results: Path = RESULTS,
    only: Collection[str] = (),
) -> Path:
    """Copy finished runs of ``seeds`` into ``results/reference``; returns the folder.

    ``only``, patterns of labels, publishes those runs alone. Seeds that lack other runs then are in
    no figure, and judge the claims alone whose entries say ``only`` as well.
    """
    return compact.publish(experiment, scale, seeds, results, kept(experiment), only)


def list_digests(reference: Path) -> list[Path]:
    """Write the manifest of every published folder anew, from its files as they lie.

    Returns the manifests. Publishing writes them too; this is for files that came another way.
    """
    written = []
    # Before any is written: a manifest with such a name could not be read.
    for path in reference.rglob("*"):
        if _is_read_again(path) and not re.fullmatch(r"[\w.-]+", path.name):
            raise UserError(
                f"{path} has a name that no manifest can list; remove it, or name it by letters, "
                "digits and . _ - alone"
            )
    for folder in sorted({path.parent for path in reference.rglob("*") if _is_read_again(path)}):
        names = [path.name for path in folder.iterdir() if _is_read_again(path)]
        write_atomic(folder / MANIFEST, manifest_of(folder, names))
        written.append(folder / MANIFEST)
    return written


def _is_read_again(path: Path) -> bool:
    """Whether a published file is read by the suite; what is drawn has stamps instead."""
    kinds = (".parquet", ".xz", ".json", ".jsonl")
    return path.suffix in kinds and path.parent.name != "figures" and path.name[0] != "."


def kept(experiment: str) -> Kept:
    """What the experiment's YAML and the judges of its claims want published."""
    header = load(EXPERIMENTS / experiment / "config.yaml").header
    criteria = criteria_of(experiment)
    judges = {claim: judge_of(experiment, claim) for claim in criteria}
    # The first entries of claims and the later ones, which judge by seeds of their own.
    vectors = tuple(
        VectorReader(
            frozenset(judge.vectors),
            frozenset(judging_seeds(criteria[claim])),
            tuple(criteria[claim].get("only", ())),
        )
        for claim, judge in judges.items()
        if getattr(judge, "vectors", ())
    )
    return Kept(
        (*header.courses, *(header.brownian.match if header.brownian else ())),
        vectors,
        max([getattr(judge, "gradients", 0.0) for judge in judges.values()], default=0.0),
        header.vectors_at,
    )


if __name__ == "__main__":
    main()
