"""The evaluation of a run's snapshots, as a run of its own kind.

After each snapshot it can be stopped and gone on with.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import torch

from lrm import data
from lrm.errors import UserError
from lrm.exchange.evaluation import harness, suite
from lrm.exchange.evaluation.harness import Harness, quiet
from lrm.exchange.export import export
from lrm.plan.evaluation import EvaluationRun
from lrm.plan.run import Report
from lrm.store.rundir import is_complete, open_run


def run(
    run: EvaluationRun, path: Path, corpora: Path, report: Report = lambda step, loss: None
) -> None:
    """Evaluate every snapshot of the finished run ``run.after``.

    Probes ``score``, between 0 and 1, of ``task.<name>``, at the steps of the snapshots; vectors
    ``correct``, of every example. Raises UserError where that run has not finished, the harness is
    missing, or the held-out documents do not suffice for the suite.
    """
    source = path.parent / run.after_id
    with open_run(path) as directory:
        if directory.complete:
            return
        if not is_complete(source):
            raise UserError(f"{run.label}: {source} has not finished; train it first")
        torch.set_num_threads(run.execution.threads)
        settings = run.settings
        corpus = data.prepare(settings.data, settings.model.vocab_size, corpora)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        execution = {"device": device, "precision": "float32", "lm_eval": harness.version()}
        described = {"hash": corpus.hash, "name": corpus.name, **corpus.meta}
        state = directory.start(
            {**run.describe(), "corpus": described, "rules": [], "execution": execution}
        )
        wanted, folder = run.evaluation.suite, None
        if wanted is not None:
            packages = settings.data.packages if settings.data.source == "packages" else ()
            folder = suite.prepare(wanted, corpus, packages, corpora.parent / "suites")
        tasks = Harness(run.evaluation.all_tasks, folder)
        done = 0 if state is None else state["step"]
        total = settings.train.steps
        for step in run.steps:
            if step <= done:
                continue
            with tempfile.TemporaryDirectory(dir=path, prefix=".export.") as temporary:
                exported = Path(temporary) / "model"
                with quiet():
                    export(source, exported, step=step)
                scores = tasks.score(exported, device)
            named = {f"task.{name}": score for name, score in scores.items()}
            means = {name: score.mean for name, score in named.items()}
            correct = {name: score.each for name, score in named.items()}
            directory.append("probes.jsonl", {"step": step, "values": {"score": means}})
            directory.append("vectors.jsonl", {"step": step, "values": {"correct": correct}})
            directory.save_checkpoint({"step": step})
            report(min(step, total), math.nan)
        directory.finish({"validation_loss": None}, None)
