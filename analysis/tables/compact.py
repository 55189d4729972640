"""Finished runs are published: their tables, rounded and thinned, in one file each.

Losses and global gradient norms are averaged between probes. Values are rounded, but for losses.
All measurements of the first seed are kept. Of the others those of the whole model, of tensors with
a Brownian twin and of those that the experiment's ``courses`` name are kept; of the rest only the
start, three quarters and the end of the constant stage, the end of the run, and signal and noise of
gradients. Norms of single tensors' gradients are kept of the others only at the early steps that
claims read. Vectors are those of the ends of the constant stage and of the run, and of the start
where claims read them: all of the first seed, and what claims read of the next two and of those
that judge, at the steps that the experiment's ``vectors_at`` names. Where every such claim names
the runs that it reads, others publish no vectors. Where no claim reads vectors, those of the first
seed's end are published, and draws of noise. ``Kept`` says what claims read.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.tables.find import find
from analysis.tables.results import corpus_name, read_table, stage_end
from analysis.tables.run_list import RUN_LIST, as_run_list, read_run_list
from lrm.errors import UserError
from lrm.plan.experiment import matches_any
from lrm.store.digests import is_listed
from lrm.store.files import make_folder, write_listed
from lrm.store.lock import publishing

_VECTOR_SEEDS = 3
# Draws of noise: each is a number of its own, not an entry of a tensor.
_DRAWS = ("output_norm_draws", "relative_update_draws", "weight_norm_draws")
# A column in one page: bytes, and rows.
_PAGE = 2**24


@dataclass(frozen=True)
class VectorReader:
    """A claim that reads vectors."""

    tensors: frozenset[str]
    # The seeds that judge it, and patterns of the labels of its runs: without any, all.
    seeds: frozenset[int]
    only: tuple[str, ...] = ()

    def reads(self, label: str) -> bool:
        """Whether the claim reads the run of this label."""
        return not self.only or matches_any(label, self.only)


@dataclass(frozen=True)
class Kept:
    """What is published of an experiment beside what is published of all."""

    # Patterns of the tensors whose course is kept of every seed.
    courses: tuple[str, ...]
    # The claims whose runs keep vectors: without any, the first seed has all of all runs.
    vectors: tuple[VectorReader, ...] = ()
    # In this first share of the steps every loss and every norm of a gradient is kept.
    gradients: float = 0.0
    # Where vectors are kept of other seeds than the first.
    vectors_at: tuple[str, ...] = ("start", "constant", "end")

    @property
    def tensors(self) -> frozenset[str]:
        """Tensors whose vectors any claim reads."""
        return frozenset().union(*(reader.tensors for reader in self.vectors))

    def read(self, label: str, seed: int, rank: int) -> frozenset[str]:
        """Tensors whose vectors claims read of a run whose seed is the ``rank``-th published."""
        return frozenset().union(
            *(
                reader.tensors
                for reader in self.vectors
                if reader.reads(label) and (rank < _VECTOR_SEEDS or seed in reader.seeds)
            )
        )

    def whole(self, label: str, rank: int) -> bool:
        """Whether a run's vectors are published of all tensors."""
        asked = not self.vectors or any(reader.reads(label) for reader in self.vectors)
        return not rank and asked


def publish(
    experiment: str,
    scale: str,
    seeds: list[int],
    results: Path,
    kept: Kept,
    only: Collection[str] = (),
) -> Path:
    """Copy finished runs of ``seeds`` into ``results/reference``, one compact file per table.

    Brownian motions come along. Runs that are published already stay, but for those that are
    published anew. ``only``, patterns of labels, publishes those runs alone. Raises UserError where
    one of them is not finished, and where what is published has another corpus.
    """
    runs = find(experiment, scale, "runs", results, only=only)
    chosen = [(d, p) for d, p in runs if d["kind"] == "brownian" or d["seed"] in seeds]
    own = {d["seed"] for d, _ in chosen if d["kind"] != "brownian"}
    if only and not own:
        raise UserError(f"{experiment} at {scale}: of seeds {seeds} no finished run is named by "
                        f"{', '.join(only)}; finish them, or name runs beside "
                        "Brownian motions")  # fmt: skip
    missing = set(seeds) - own
    if missing:
        raise UserError(f"{experiment} at {scale}: seeds {sorted(missing)} are not finished")
    folder = make_folder(results / "reference" / scale / experiment)
    # Two at once would each keep the runs that were published when it began.
    with publishing(results):
        write_listed(folder, _with(folder, chosen, set(seeds), kept))
    return folder


def _with(
    folder: Path, chosen: list[tuple[dict, Path]], seeds: set[int], kept: Kept
) -> dict[str, bytes]:
    """The published files of ``folder`` with these runs among them."""
    descriptions, tables = _published(folder, {description["id"] for description, _ in chosen})
    every = [*descriptions, *(description for description, _ in chosen)]
    corpus_name(pd.DataFrame({"description": every}))  # one, or an error
    order = sorted({*seeds, *(d["seed"] for d in descriptions if d["kind"] != "brownian")})
    for description, path in chosen:
        rank = 0 if description["kind"] == "brownian" else order.index(description["seed"])
        frame = scalars(read_table(path / "scalars.parquet"), description, kept, whole=not rank)
        tables["scalars"].append(frame.assign(run=description["id"]))
        tensors = kept.read(description["label"], description["seed"], rank)
        whole = kept.whole(description["label"], rank)
        if whole or tensors:
            frame = read_table(path / "vectors.parquet")
            frame = _ends(frame, description, kept.tensors, both=bool(kept.vectors))
            if rank:
                frame = _at(frame, description, kept.vectors_at)
            frame = frame if whole else of_tensors(frame, tensors)
            tables["vectors"].append(frame.assign(run=description["id"]))
    contents = {}
    for table, frames in tables.items():
        # Of vectors there may be none.
        frame = pd.concat(frames) if frames else read_table(chosen[0][1] / f"{table}.parquet")[:0]
        frame = frame if frames else frame.assign(run=pd.Series(dtype=str))
        for column in ("tensor", "stat", "run"):
            frame[column] = frame[column].astype("category")
        contents[f"{table}.parquet"] = as_parquet(frame)
    contents[RUN_LIST] = as_run_list(every)
    return contents


def as_parquet(frame: pd.DataFrame) -> bytes:
    """A published table. Bytes of one significance lie together, which saves a quarter.

    Brotli in large pages takes half a minute for the largest, and saves a tenth against zstd.
    """
    value = "value.list.element" if frame["value"].dtype == object else "value"
    return frame.to_parquet(
        compression="brotli",
        compression_level=11,
        index=False,
        use_dictionary=[column for column in frame if column != "value"],
        column_encoding={value: "BYTE_STREAM_SPLIT"},
        data_page_size=_PAGE,
        write_batch_size=_PAGE,
    )


def of_tensors(frame: pd.DataFrame, tensors: Collection[str]) -> pd.DataFrame:
    """The rows of these tensors in all layers; a run that ended early may have none at all."""
    return frame[frame["tensor"].astype("str").str.replace("@.*", "", regex=True).isin(tensors)]


def _published(folder: Path, anew: set[str]) -> tuple[list[dict], dict[str, list[pd.DataFrame]]]:
    """Descriptions and tables of what is published in ``folder``, without the runs ``anew``."""
    tables: dict[str, list[pd.DataFrame]] = {"scalars": [], "vectors": []}
    path = folder / RUN_LIST
    if not path.exists() and not is_listed(path):
        return [], tables
    kept = [run for run in read_run_list(path) if run["id"] not in anew]
    for table, frames in tables.items():
        frame = read_table(folder / f"{table}.parquet")
        frames.append(frame[frame["run"].isin([run["id"] for run in kept])])
    return kept, tables


def scalars(frame: pd.DataFrame, description: dict, kept: Kept, whole: bool) -> pd.DataFrame:
    """What is published of a run's scalars; ``whole`` with the courses of all tensors."""
    frame = _averaged(frame, description, kept)
    return frame if whole else _thinned(frame, description, kept)


def _thinned(frame: pd.DataFrame, description: dict, kept: Kept) -> pd.DataFrame:
    """Leave out the courses of tensors that ``kept.courses`` do not match."""
    steps = description["settings"]["train"]["steps"]
    constant = stage_end(description["settings"])
    before = frame.loc[frame["step"] <= constant * 3 // 4, "step"]
    ends = [0, before.max(), constant, steps]
    names = frame["tensor"].str.partition("@")[0]
    courses = tuple(pattern.partition("@")[0] for pattern in kept.courses)
    patterns = ("model", *courses, *(f"{name}.*" for name in courses))  # their multipliers
    course = names.map(lambda name: any(fnmatch(name, pattern) for pattern in patterns))
    chosen = course | frame["step"].isin(ends) | frame["stat"].str.endswith(("_signal", "_noise"))
    gradients = frame["stat"].str.endswith("gradient_norm") & (frame["tensor"] != "model")
    gradients &= frame["stat"] != "activation_gradient_norm"  # a run asks for these itself
    if kept.gradients:
        return frame[chosen | (gradients & (frame["step"] <= kept.gradients * steps))]
    return frame[chosen & ~gradients]


def _averaged(frame: pd.DataFrame, description: dict, kept: Kept) -> pd.DataFrame:
    """Measurements of every step become means over the steps up to each probe.

    A loss that is not finite stays so: it is how a run ended that diverged.
    """
    every = description["settings"]["probes"]["every"]
    last = description["settings"]["train"]["steps"]
    each_step = frame["stat"].isin(["train_loss", "global_gradient_norm"])
    each_step &= frame["step"] > kept.gradients * last
    dense, rest = frame[each_step], frame[~each_step]
    step = (-(-dense["step"] // every) * every).clip(upper=last)
    keys = ["step", "tensor", "stat"]
    groups = dense.assign(step=step, finite=np.isfinite(dense["value"])).groupby(keys)
    means = groups["value"].mean().where(groups["finite"].all())
    frame = pd.concat([rest, means.reset_index()], ignore_index=True)
    # Differences of losses are judged to 0.001 nats and less.
    loss = frame["stat"].str.endswith("_loss")
    values = np.where(loss, frame["value"].astype(np.float32), _rounded(frame["value"], 13))
    return frame.assign(value=values.astype(np.float32))


def _ends(
    vectors: pd.DataFrame, description: dict, read: Collection[str], both: bool
) -> pd.DataFrame:
    """Vectors where the run ends; where the constant stage does draws, and with ``both`` all.

    Of what claims ``read`` the first too.
    """
    constant = vectors["step"] == stage_end(description["settings"])
    constant &= both | vectors["stat"].isin(_DRAWS)
    first = of_tensors(vectors, read)
    first = vectors.index.isin(first.index[first["step"] == 0])
    end = vectors["step"] == description["settings"]["train"]["steps"]
    chosen = vectors[end | constant | first]
    return chosen.assign(value=[_rounded(value, 9) for value in chosen["value"]])


def _at(vectors: pd.DataFrame, description: dict, where: Collection[str]) -> pd.DataFrame:
    """The rows at the steps that ``where`` names; of a run that ended early there may be none."""
    steps = {
        "start": 0,
        "constant": stage_end(description["settings"]),
        "end": description["settings"]["train"]["steps"],
    }
    return vectors[vectors["step"].isin([steps[name] for name in where])]


def _rounded(values, bits: int) -> np.ndarray:
    """float32 with ``bits`` of mantissa: what a figure shows, in a third of the space."""
    mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits).astype(np.float32)
