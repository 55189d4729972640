"""``python -m analysis.claims``: the ledger of claims, as published or judged from own runs.

The published ledger is printed as it is stored; ``--judge`` judges it again from the published
runs. Seeds below 100 explore, seeds from 100 on judge; they are never mixed.
"""

from __future__ import annotations

import argparse

from analysis.claims.stored import claims_file, read_ledger, text
from analysis.tables.find import RESULTS
from lrm.cli import Once, Parser, a_folder, guarded
from lrm.errors import UserError
from lrm.plan.scales import SCALES


def main() -> None:
    """Parse the command line, judge where that is asked for, print."""
    parser = Parser(prog="python -m analysis.claims")
    parser.add_argument("--scale", action=Once, default="tiny", choices=SCALES)
    parser.add_argument(
        "--source",
        default="reference",
        choices=("runs", "reference"),
        help="runs (yours, judged now) or reference (published)",
    )
    parser.add_argument("--results", type=a_folder, default=RESULTS)
    parser.add_argument("--claim", action=Once, help="one claim with all its parts: P1")
    parser.add_argument("--all", action="store_true", help="every part of every claim")
    parser.add_argument("--judge", action="store_true", help="judge the published runs again")
    options = parser.parse_args()
    guarded(lambda: _main(options))


def _main(options: argparse.Namespace) -> None:
    if options.claim == "":
        raise UserError("--claim is empty; name one, such as P1, or leave it out")
    if options.claim and options.all:
        raise UserError("--claim shows every part of one claim; leave out --all (of make: ALL)")
    if options.source == "reference" and not options.judge:
        ledger = read_ledger(claims_file(options.scale, options.source, options.results))
        print(text(ledger, options.claim, options.all))
        return
    # Judging loads pandas; printing what is stored should not.
    from analysis.claims.ledger import judge_and_write, left_out

    ledger, path = judge_and_write(options.scale, options.source, options.results)
    print(text(ledger, options.claim, options.all))
    if options.source == "runs":
        for line in left_out(options.scale, options.results):
            print(line)
    whose = {"runs": "your own runs", "reference": "the published runs"}[options.source]
    print(f"\njudged from {whose}; wrote {path}")


if __name__ == "__main__":
    main()
