"""EleutherAI's harness in this process: a model's folder in, a score for each task out."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lrm.errors import UserError, first_line
from lrm.exchange.evaluation.suite import PREFIX
from lrm.exchange.export import export
from lrm.model.transformers import load_errors
from lrm.plan.evaluation import Task, harness_version

_BATCH = 64  # sequences
_EXPORT = ".export."


@dataclass(frozen=True)
class Score:
    """``mean`` over the examples of a task, and each one's where the harness tells it."""

    mean: float
    each: list[float]


def clear(beside: Path) -> None:
    """Remove what ``score_run`` left in a folder, where its process was killed."""
    for left in beside.glob(f"{_EXPORT}*"):
        shutil.rmtree(left)


class Harness:
    """The tasks, read once for many models.

    ``tasks`` are those of the suite in the folder ``suite``, or the harness's own without one.
    """

    def __init__(self, tasks: Mapping[str, Task], suite: Path | None = None):
        """Raises UserError where the harness is missing, or has not the versions asked for."""
        harness_version()
        with quiet():
            from lm_eval.tasks import TaskManager

            own = {"include_path": str(suite), "include_defaults": False} if suite else {}
            self._manager = TaskManager(**own)
        self._tasks = tasks
        self._prefix = PREFIX if suite else ""

    def score_run(
        self, source: Path, step: int | None, device: torch.device, beside: Path
    ) -> dict[str, Score]:
        """``score`` of the finished run in ``source``, at its end or after ``step`` steps.

        Its model is exported into the folder ``beside``, and removed. Raises UserError as
        ``export`` does.
        """
        with exported(source, step, beside) as model:
            return self.score(model, device)

    def score(self, folder: Path, device: torch.device) -> dict[str, Score]:
        """The scores of the model in ``folder``, a folder of transformers, by task.

        Raises UserError where there is no model that transformers loads, where a task cannot be
        had, and where it has not the version, or the metric, that is asked for.
        """
        found = self._found(folder, device)
        return {name: self._score(found, name, task) for name, task in self._tasks.items()}

    def everything(self, folder: Path, device: torch.device) -> dict[str, float]:
        """All numbers that the harness tells of its tasks and their groups, by name and metric.

        Such as ``gsm8k exact_match,strict-match``; the filter ``none`` is left out. Raises
        UserError as ``score`` does.
        """
        results = self._found(folder, device)["results"]
        return {
            f"{name} {key.removesuffix(',none')}": float(value)
            for name, numbers in results.items()
            for key, value in _of_metrics(numbers).items()
        }

    def _found(self, folder: Path, device: torch.device) -> dict[str, Any]:
        """What the harness tells: ``results`` and ``samples``, by task or group."""
        with quiet(), _one_process():
            from lm_eval import simple_evaluate

            model = _loaded(folder, device)
            found: dict[str, Any] = {"results": {}, "samples": {}}
            # Tasks of one call share their number of shots.
            for shots in dict.fromkeys(task.shots for task in self._tasks.values()):
                names = [n for n, task in self._tasks.items() if task.shots == shots]
                said = self._evaluate(simple_evaluate, model, names, shots)
                for key, parts in found.items():
                    parts |= said.get(key, {}) | (
                        said.get("groups", {}) if key == "results" else {}
                    )
        return found

    def _evaluate(self, call: Any, model: Any, names: list[str], shots: int | None) -> dict:
        tasks = [self._prefix + name for name in names]
        try:
            said = call(model, tasks=tasks, num_fewshot=shots, task_manager=self._manager,
                        bootstrap_iters=0, log_samples=True)  # fmt: skip
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"GPU memory does not suffice for {', '.join(tasks)} ({first_line(error)}); "
                "evaluate on a larger GPU, or by execution.device=cpu"
            ) from None
        except (OSError, KeyError, ValueError, RuntimeError, ImportError) as error:
            if self._prefix:  # nothing of the offline suite is fetched
                raise
            remedy = "the data of its own tasks come from the Hugging Face hub"
            if isinstance(error, ImportError):
                remedy = f"pip install {error.name or 'what is missing'}"
            raise UserError(
                f"the harness cannot evaluate {', '.join(tasks)} ({first_line(error)}); {remedy}"
            ) from None
        for name, task in self._tasks.items():
            there = said.get("versions", {}).get(self._prefix + name)
            if name in names and task.version is not None and not _is(there, task.version):
                raise UserError(
                    f"the task {name} is pinned at version {task.version:g}, and lm-eval "
                    f"{harness_version()} tells {there}; install another version, or change the pin"
                )
        return said

    def _score(self, found: dict[str, Any], name: str, task: Task) -> Score:
        own = self._prefix + name
        told, wanted = found["results"].get(own, {}), f"{task.metric},{task.answer_filter}"
        if wanted not in told:
            there = ", ".join(_of_metrics(told))
            raise UserError(
                f"the harness tells no {wanted} of the task {name}, but {there or 'nothing'}; "
                "change its metric or answer_filter"
            )
        mean = float(told[wanted])
        # There is a sample for each example and way to read its answer.
        read = [s for s in found["samples"].get(own, ()) if s["filter"] == task.answer_filter]
        samples = sorted(read, key=lambda sample: sample["doc_id"])
        each = [sample[task.metric] for sample in samples]
        # Of metrics that are no means over examples it tells what they are made of.
        plain = all(isinstance(value, (bool, int, float)) for value in each)
        return Score(mean, [float(value) for value in each] if plain else [])


@contextlib.contextmanager
def exported(source: Path, step: int | None, beside: Path) -> Iterator[Path]:
    """The folder for transformers of a finished run, in ``beside`` until the block ends.

    At the run's end or after ``step`` steps. Raises UserError as ``export`` does.
    """
    with tempfile.TemporaryDirectory(dir=beside, prefix=_EXPORT) as temporary:
        model = Path(temporary) / "model"
        with quiet():
            export(source, model, step=step)
        yield model


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """Hide from the harness that torchrun started this process with others.

    It would share out the examples of one model over processes, each of which has its own model.
    """
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _loaded(folder: Path, device: torch.device) -> Any:
    """The harness's model in ``folder``; UserError where transformers cannot load it."""
    from lm_eval.models.huggingface import HFLM

    # On a GPU as many sequences as fit: long prompts have logits of several gigabytes each.
    size = {"batch_size": "auto", "max_batch_size": _BATCH} if device.type == "cuda" else {
        "batch_size": _BATCH}  # fmt: skip
    try:
        return HFLM(pretrained=str(folder), dtype="float32", device=str(device), **size)
    except torch.OutOfMemoryError as error:
        raise UserError(f"GPU memory does not suffice for {folder} ({first_line(error)}); evaluate "
                        "on a larger GPU, or by execution.device=cpu") from None  # fmt: skip
    except load_errors() as error:
        if isinstance(error, RuntimeError) and device.type == "cuda":
            raise  # a fault of the GPU stays with the process
        raise UserError(f"{folder} cannot be loaded ({first_line(error)}); save the model and its "
                        "tokenizer there by save_pretrained") from None  # fmt: skip


def _of_metrics(told: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of metrics among what is told of a task, by ``metric,filter``; no errors."""
    return {
        key: value
        for key, value in told.items()
        if "," in key and "_stderr," not in key and isinstance(value, (int, float))
    }


def _is(told: Any, pinned: float) -> bool:
    """Whether the version that the harness tells, a number, text or nothing, is ``pinned``."""
    try:
        return float(told) == pinned
    except (TypeError, ValueError):
        return False


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the bars and remarks of other packages; what fails is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
