"""The command line of the day on a GPU: which parts, for how long, and where the record goes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lrm.bench.gpu.items import PARTS
from lrm.bench.gpu.plan import GpuPlan
from lrm.bench.gpu.record import Record, name_of
from lrm.bench.gpu.session import OutOfTime, Session, take, unfinished
from lrm.cli import Parser, a_folder, clock, guarded, positive_number
from lrm.errors import UserError, printable
from lrm.store.files import make_folder
from lrm.store.lock import locked

# Seconds in which a worker has to start and to tell what machine this is.
_LOOKING = 500.0
# What of a part is left for another call; the code of a sweep that did not train all of its runs.
_LEFT = 3


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and measure; prints where the record lies.

    Exits with 2 on bad input and without a GPU, with 3 where the same command has to be called
    again, because time was up.
    """
    listed = "; ".join(f"{name}: {part.said}" for name, part in PARTS.items())
    parser = Parser(
        prog="python -m lrm.bench.gpu",
        description=f"All that a first day on a GPU needs. Parts: {listed}.",
    )
    add = parser.add_argument
    add("--part", action="append", choices=list(PARTS), help="only this part (repeatable)")
    add(
        "--minutes",
        type=positive_number,
        default=9.0,
        help="limit of each part (default %(default)g)",
    )
    add("--toy", action="store_true", help="the same at toy size on the CPU; never published")
    add("--again", action="store_true", help="measure again what failed")
    add("--peak-flops", type=positive_number, help="of the device in bfloat16, per second")
    add("--name", help="name of the record (default: the device's)")
    add("--results", type=a_folder, default=Path("results"),
        help="folder of records, runs, corpora")  # fmt: skip
    options = parser.parse_args(arguments)
    guarded(lambda: _main(options), resumes=True)


def _main(options: argparse.Namespace) -> None:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{clock(time.monotonic() - began)}] {printable(text)}", file=sys.stderr, flush=True)

    plan = GpuPlan(options.toy)
    if options.name:
        Record(options.results, options.name, options.toy)  # a name that cannot be ends it here
    with Session(options.results, options.toy) as session:
        try:
            machine = session.ask("machine", _LOOKING)
        except OutOfTime:
            raise UserError(
                f"no process could be started in {_LOOKING:g} seconds; call it again when the "
                "machine is less busy"
            ) from None
        device = machine.pop("device")
        if device is None:
            raise UserError(
                f"there is no GPU that torch {machine['torch']} can use here; call make gpu on a "
                "machine with one, or make gpu TOY=1 for a toy run on the CPU"
            )
        make_folder(options.results)
        name = options.name or name_of(device["name"], options.toy)
        with locked(options.results / "gpu" / name):
            record = Record(options.results, name, options.toy)
            peak = options.peak_flops or record.content.get("peak_flops")
            peak = peak or plan.peak(device["name"])
            record.begin(device, machine, peak_flops=peak, goal=plan.goal)
            complete = _take(options, plan, record, session, say)
            path = record.publish()
    print(path)
    if not complete:
        say("not all is taken; the same command goes on from here")
        raise SystemExit(_LEFT)


def _take(
    options: argparse.Namespace, plan: GpuPlan, record: Record, session: Session,
    say: Callable[[str], None],
) -> bool:  # fmt: skip
    """Take the parts that are asked for; whether nothing of them is left."""
    complete = True
    for part in options.part or PARTS:
        if options.again:
            record.forget_failures(part)
        if not unfinished(part, plan, record):
            say(f"{part}: done before")
            continue
        say(f"{part}: {PARTS[part].said}, at most {options.minutes:g} minutes")
        complete &= take(part, plan, record, session, 60 * options.minutes, say)
        record.publish()
    return complete


if __name__ == "__main__":
    main()
