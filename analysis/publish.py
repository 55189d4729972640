"""``python -m analysis.publish projector --seeds 3``: finished runs become the reference.

Copies their tables into ``results/reference/<scale>``, compactly, and renders the figures and
claims of the reference anew.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd

from analysis import claims
from analysis.figures.__main__ import render
from analysis.results import RESULTS, ROOT, find, read_table
from lrm.compose import load
from lrm.errors import UserError
from lrm.experiment import guarded, parse_seeds
from lrm.rundir import make_folder, write_atomic


def main() -> None:
    """Parse the command line, publish, draw, judge."""
    parser = argparse.ArgumentParser(prog="python -m analysis.publish")
    parser.add_argument("experiments", nargs="+")
    parser.add_argument("--scale", default="tiny")
    parser.add_argument("--seeds", default="1", help="as in run.py: 3, or 100-107")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    guarded(lambda: _main(options))


def _main(options: argparse.Namespace) -> None:
    seeds = parse_seeds(options.seeds)
    for experiment in options.experiments:
        folder = publish(experiment, options.scale, seeds, options.results)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"published {experiment} to {folder}, {size / 1e6:.1f} MB")
        for figure in load(ROOT / "experiments" / experiment / "config.yaml").header.figures:
            render(figure, options.scale, "reference", options.results)
    claims.judge_and_write(options.scale, "reference", options.results)


def publish(experiment: str, scale: str, seeds: list[int], results: Path = RESULTS) -> Path:
    """Copy finished runs of ``seeds`` into ``results/reference``, one compact file per table.

    Brownian motions come along. Raises UserError where a run of those seeds is not finished.
    """
    found = find(experiment, scale, "runs", results, "current")
    chosen = [(d, p) for d, p in found if d["kind"] == "brownian" or d["seed"] in seeds]
    missing = set(seeds) - {d["seed"] for d, _ in chosen if d["kind"] == "train"}
    if missing:
        raise UserError(f"{experiment} at {scale}: seeds {sorted(missing)} are not finished")
    folder = results / "reference" / scale / experiment
    make_folder(folder)
    for table in ("scalars", "vectors"):
        frames = [read_table(path / f"{table}.parquet").assign(run=d["id"]) for d, path in chosen]
        frame = pd.concat(frames, ignore_index=True)
        if table == "scalars":
            frame["value"] = frame["value"].astype("float32")
        else:
            last = frame.groupby("run")["step"].transform("max")
            frame = frame[frame["step"] == last]
        for column in ("tensor", "stat", "run"):
            frame[column] = frame[column].astype("category")
        data = frame.to_parquet(compression="zstd", index=False)
        write_atomic(folder / f"{table}.parquet", data)
    text = json.dumps([description for description, _ in chosen]) + "\n"
    write_atomic(folder / "runs.json", text.encode())
    return folder


if __name__ == "__main__":
    main()
