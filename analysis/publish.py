"""``python -m analysis.publish projector --seeds 3``: finished runs become the reference.

Copies their tables into ``results/reference/<scale>``, compactly, and renders the figures and
claims of the reference anew. Losses and global gradient norms are averaged between probes, and
values rounded. Of the first seed all measurements are kept; of the others those of the whole
model, of tensors with a Brownian twin and of those that the experiment's ``courses`` name, and of
the rest what claims read: the start, three quarters and the end of the constant stage, the end,
signal and noise of gradients. Where claims are on gradient norms, those of the first tenth of the
steps are kept too, and each step's loss. Vectors are those of the ends of the constant stage and
of the run: of the first seed, and of as many more as a claim asks for, two at least, those that it
reads.
"""

from __future__ import annotations

import argparse
import gzip
import json
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import claims
from analysis.criteria import CRITERIA
from analysis.figures.__main__ import render
from analysis.grad_clipping_claims import EARLY
from analysis.grad_clipping_claims import JUDGES as OF_GRADIENTS
from analysis.norms import stage_end
from analysis.results import RESULTS, ROOT, NothingFound, find, read_table
from lrm.compose import Header, load, read_yaml
from lrm.errors import UserError
from lrm.experiment import guarded, parse_seeds
from lrm.rundir import make_folder, write_atomic

# Seeds whose vectors are kept at least; of all but the first those that a claim reads.
VECTOR_SEEDS = 3


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
    drawings = options.results / "reference" / options.scale / "figures"
    for experiment in options.experiments:
        folder = publish(experiment, options.scale, seeds, options.results)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"published {experiment} to {folder}, {size / 1e6:.1f} MB")
        for figure in load(ROOT / "experiments" / experiment / "config.yaml").header.figures:
            try:
                render(figure, options.scale, "reference", options.results, drawings)
            except NothingFound as error:  # a figure may read several experiments
                print(f"{figure} is not drawn yet: {error}")
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
    header = load(ROOT / "experiments" / experiment / "config.yaml").header
    courses = courses_of(header)
    of_vectors = [claim for claim in header.claims if claim in claims.VECTOR_TENSORS]
    read = {tensor for claim in of_vectors for tensor in claims.VECTOR_TENSORS[claim]}
    criteria = read_yaml(CRITERIA)
    minima = (criteria[claim]["seeds"]["minimum"] for claim in of_vectors)
    with_vectors = max([VECTOR_SEEDS, *minima])
    order = sorted(seeds)
    tables: dict[str, list[pd.DataFrame]] = {"scalars": [], "vectors": []}
    for description, path in chosen:
        rank = 0 if description["kind"] == "brownian" else order.index(description["seed"])
        frame = _averaged(read_table(path / "scalars.parquet"), description)
        if rank:
            frame = _thinned(frame, description, courses)
        tables["scalars"].append(frame.assign(run=description["id"]))
        if rank < with_vectors:
            frame = _ends(read_table(path / "vectors.parquet"), description)
            if rank:
                frame = frame[frame["tensor"].str.partition("@")[0].isin(read)]
            tables["vectors"].append(frame.assign(run=description["id"]))
    for table, frames in tables.items():
        frame = pd.concat(frames)
        for column in ("tensor", "stat", "run"):
            frame[column] = frame[column].astype("category")
        data = frame.to_parquet(compression="zstd", compression_level=19, index=False)
        write_atomic(folder / f"{table}.parquet", data)
    text = json.dumps([description for description, _ in chosen])
    write_atomic(folder / "runs.json.gz", gzip.compress(text.encode(), mtime=0))
    return folder


def courses_of(header: Header) -> tuple[str, ...]:
    """Patterns of the tensors whose course is kept of every seed."""
    return (*header.courses, *(header.brownian.match if header.brownian else ()))


def _thinned(frame: pd.DataFrame, description: dict, courses: tuple[str, ...]) -> pd.DataFrame:
    """Without the courses of tensors that ``courses``, patterns of addresses, do not match."""
    steps = description["settings"]["train"]["steps"]
    constant = stage_end(description["settings"])
    before = frame.loc[frame["step"] <= constant * 3 // 4, "step"]
    ends = [0, before.max(), constant, steps]
    names = frame["tensor"].str.partition("@")[0]
    courses = tuple(pattern.partition("@")[0] for pattern in courses)
    patterns = ("model", *courses, *(f"{name}.*" for name in courses))  # their multipliers
    kept = names.map(lambda name: any(fnmatch(name, pattern) for pattern in patterns))
    chosen = kept | frame["step"].isin(ends) | frame["stat"].str.endswith(("_signal", "_noise"))
    gradients = frame["stat"].str.endswith("gradient_norm") & (frame["tensor"] != "model")
    if _on_gradients(description):
        return frame[chosen | (gradients & (frame["step"] <= EARLY * steps))]
    return frame[chosen & ~gradients]


def _on_gradients(description: dict) -> bool:
    """Whether a claim of this run's experiment is on gradient norms early in training."""
    return bool(description["criteria"].keys() & OF_GRADIENTS.keys())


def _averaged(scalars: pd.DataFrame, description: dict) -> pd.DataFrame:
    """Measurements of every step become means over the steps up to each probe."""
    every = description["settings"]["probes"]["every"]
    last = description["settings"]["train"]["steps"]
    each_step = scalars["stat"].isin(["train_loss", "global_gradient_norm"])
    if _on_gradients(description):
        each_step &= scalars["step"] > EARLY * last
    dense, rest = scalars[each_step], scalars[~each_step]
    step = (-(-dense["step"] // every) * every).clip(upper=last)
    means = dense.assign(step=step).groupby(["step", "tensor", "stat"], as_index=False)["value"]
    frame = pd.concat([rest, means.mean()], ignore_index=True)
    return frame.assign(value=_rounded(frame["value"], 13))


def _ends(vectors: pd.DataFrame, description: dict) -> pd.DataFrame:
    """Vectors where the constant stage and the run end."""
    settings = description["settings"]
    ends = [stage_end(settings), settings["train"]["steps"]]
    chosen = vectors[vectors["step"].isin(ends)]
    return chosen.assign(value=[_rounded(value, 9) for value in chosen["value"]])


def _rounded(values, bits: int) -> np.ndarray:
    """float32 with ``bits`` of mantissa: what a figure shows, in a third of the space."""
    mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits).astype(np.float32)


if __name__ == "__main__":
    main()
