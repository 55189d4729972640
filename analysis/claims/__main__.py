"""``python -m analysis.claims``: judge every claim whose runs are there, by its criterion.

Seeds below 100 explore, seeds from 100 on judge; they are never mixed. With exploration seeds
the same numbers are shown, and the stage is named beside the verdict. A claim on cost names a
record of the benchmark instead of an experiment, and an identity the tests that assert it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from analysis.claims.verdicts import judge_and_write, left_out
from analysis.tables.find import RESULTS, SOURCES
from lrm.cli import guarded


def main() -> None:
    """Parse the command line, print a table, write claims.json beside the figures."""
    parser = argparse.ArgumentParser(prog="python -m analysis.claims")
    parser.add_argument("--scale", default="tiny")
    parser.add_argument(
        "--source",
        default="reference",
        choices=SOURCES,
        help="runs (yours) or reference (published)",
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    guarded(lambda: _main(options))


def _main(options: argparse.Namespace) -> None:
    records, path = judge_and_write(options.scale, options.source, options.results)
    print(text(records))
    whose = {"runs": "your own runs", "reference": "the published reference"}[options.source]
    if options.source == "runs":
        for line in left_out(options.scale, options.results):
            print(line)
    print(f"\njudged from {whose}; wrote {path}")


def text(records: list[dict[str, Any]]) -> str:
    """A table for the terminal."""
    lines = []
    for record in records:
        stage = f" ({record['stage']} seeds)" if record["stage"] else ""
        lines.append(f"{record['id']:<4} {record['verdict']}{stage}: {record['statement']}")
        for component in record.get("components", []) + record.get("contrast", []):
            interval = component["interval"]
            spread = f" [{interval[0]:.3g}, {interval[1]:.3g}]" if interval else ""
            mark = {True: "+", False: "-", None: "?"}[component["holds"]]
            lines.append(
                f"     {mark} {component['name']}: {component['value']:.3g}{spread}, "
                f"n = {component['n']}, required {component['required']}"
            )
        if record.get("note"):
            lines.append(f"       {record['note']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
