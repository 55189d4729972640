"""The evaluation of a run's snapshots, as a run of its own kind.

After each snapshot it can be stopped and gone on with.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

from lrm import data
from lrm.errors import UserError
from lrm.exchange.evaluation import harness, suite
from lrm.exchange.evaluation.harness import Harness
from lrm.plan.evaluation import EvaluationRun, harness_version
from lrm.plan.run import Report
from lrm.store.rundir import is_complete, open_run
from lrm.train.device import device_of


def run(
    run: EvaluationRun, path: Path, corpora: Path, report: Report = lambda step, loss: None
) -> None:
    """Evaluate every snapshot of the finished run ``run.after``.

    Probes ``score``, between 0 and 1, of ``task.<name>``, at the steps of the snapshots; vectors
    ``correct``, of every example. ``run.json`` has the suite's name and the digest of its examples
    under ``execution``, because they may differ between machines. Raises UserError where that run
    has not finished, the corpus is another one by now, the harness is missing, the device is not
    usable, or the held-out documents do not suffice for the suite.
    """
    source = path.parent / run.after_id
    with open_run(path) as directory:
        if directory.complete:
            return
        if not is_complete(source):
            raise UserError(f"{run.label}: {source} has not finished; train it first")
        torch.set_num_threads(run.execution.threads)
        settings = run.settings
        corpus = data.prepare_planned(settings, run.corpus, corpora)
        device = device_of(run.execution.device)
        execution = {"device": device.type, "precision": "float32", "lm_eval": harness_version()}
        wanted, folder = run.evaluation.suite, None
        if wanted is not None:
            own = wanted.of_run(run.seed)
            folder = suite.prepare(own, corpus, settings.data, corpora.parent / "suites")
            execution |= {"suite": suite.digest_of(folder), "suite_name": folder.name}
        described = {"hash": corpus.hash, "name": corpus.name, **corpus.meta}
        state = directory.start(
            {**run.describe(), "corpus": described, "rules": [], "execution": execution}
        )
        tasks = Harness(run.evaluation.all_tasks, folder)
        done = 0 if state is None else state["step"]
        harness.clear(path)
        for step in run.steps:
            if step <= done:
                continue
            scores = tasks.score_run(source, step, device, path)
            named = {f"task.{name}": score for name, score in scores.items()}
            means = {name: score.mean for name, score in named.items()}
            correct = {name: score.each for name, score in named.items()}
            directory.append("probes.jsonl", {"step": step, "values": {"score": means}})
            directory.append("vectors.jsonl", {"step": step, "values": {"correct": correct}})
            directory.save_checkpoint({"step": step})
            report(step, math.nan)
        directory.finish({"validation_loss": None}, None)
