"""What a simulation writes: the same directory and the same tables as a run that trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lrm import data
from lrm.plan.rules import table
from lrm.plan.run import NoiseRun, Report, TheoryRun
from lrm.plan.timescales import products
from lrm.store.rundir import RunDirectory, open_run

Tell = Callable[[int], None]  # of the steps done


class Log:
    """What the simulations gave, by step, until it is written in the order of steps."""

    def __init__(self) -> None:
        self._scalars: dict[int, dict[str, dict[str, float]]] = {}
        self._vectors: dict[int, dict[str, dict[str, list[float]]]] = {}

    def scalar(self, step: int, stat: str, key: str, value: float) -> None:
        """One number of the tensor ``key`` at ``step``."""
        self._scalars.setdefault(step, {}).setdefault(stat, {})[key] = float(value)

    def vector(self, step: int, stat: str, key: str, value: np.ndarray | Tensor) -> None:
        """Numbers of the tensor ``key`` at ``step``."""
        self._vectors.setdefault(step, {}).setdefault(stat, {})[key] = value.tolist()

    def write(self, directory: RunDirectory) -> None:
        """Append everything to the logs of ``directory``."""
        for step in sorted(self._scalars):
            directory.append("probes.jsonl", {"step": step, "values": self._scalars[step]})
        for step in sorted(self._vectors):
            directory.append("vectors.jsonl", {"step": step, "values": self._vectors[step]})


def carry_out(
    run: NoiseRun | TheoryRun,
    path: Path,
    corpora: Path,
    report: Report,
    simulations: Callable[[data.Corpus | None], Sequence[Callable[[Log, Tell], None]]],
    precision: str = "float32",
) -> None:
    """Take the simulations one after another, and write what they log, in the directory ``path``.

    ``simulations`` makes them of the corpus, if the run reads one. Where the run has finished
    neither is asked for. Raises UserError for a corpus that is not the one of its identity.
    """
    settings = run.settings
    with open_run(path) as directory:
        if directory.complete:
            return
        corpus = data.prepare_planned(settings, run.corpus, corpora) if run.reads_corpus else None
        parts = simulations(corpus)
        directory.start(
            {
                **run.describe(),
                "corpus": corpus and {"hash": corpus.hash, "name": corpus.name, **corpus.meta},
                "rules": table(run.matched, settings),
                "products": products(run.matched, settings),
                "execution": {"device": "cpu", "precision": precision},
            }
        )
        torch.set_num_threads(run.execution.threads)
        log = Log()
        for position, simulate in enumerate(parts):
            done = settings.train.steps * position

            def tell(step: int, done: int = done) -> None:
                report((done + step) // len(parts), float("nan"))

            simulate(log, tell)
        log.write(directory)
        directory.finish({"validation_loss": None}, None)
