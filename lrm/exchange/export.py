"""``lrm export RUN FOLDER``: a finished run as a folder of transformers."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import torch

from lrm import data
from lrm.data.tokenizer import END_OF_TEXT
from lrm.errors import UserError, first_line
from lrm.model.falcon_h1 import FalconH1
from lrm.model.transformers import save_transformers
from lrm.plan.config import Settings, validate
from lrm.plan.run import TrainRun
from lrm.store.rundir import is_complete, read_description, read_file
from lrm.train import probes
from lrm.train.learner import build


def trained(path: Path) -> FalconH1:
    """The plain model at the end of the finished run in ``path``, its multipliers merged.

    Raises UserError where there is no finished run, or its files are damaged.
    """
    if not is_complete(path):
        raise UserError(f"{path} is no finished run; give a folder of results/runs/<experiment>")
    description = read_description(path)
    if description["kind"] != TrainRun.kind:
        raise UserError(f"{path} is a run without a model (kind {description['kind']})")
    settings = validate(Settings, description["settings"], str(path / "run.json"))
    learner = build(settings, description["seed"])
    try:
        content = io.BytesIO(read_file(path, "weights.pt"))
        weights = torch.load(content, weights_only=True, map_location="cpu")
        views = probes.Views(learner.model, learner.plans, learner.multipliers)
        with torch.no_grad():
            for plan in views.plans:
                _take(views.weight(plan), weights[plan.key], plan.key)
            for name, _, parameter in learner.multipliers.named():
                _take(parameter, weights[name], name)
    except UserError:
        raise
    except Exception as error:  # a damaged file raises whatever its reader likes
        raise UserError(
            f"{path / 'weights.pt'} is missing or damaged ({first_line(error)}); "
            f"remove {path} and run again"
        ) from None
    return learner.multipliers.merge()


def _take(target: torch.Tensor, value: torch.Tensor, name: str) -> None:
    # copy_ would broadcast a tensor of another shape.
    if value.shape != target.shape:
        raise ValueError(f"{name} has the shape {tuple(value.shape)}, not {tuple(target.shape)}")
    target.copy_(value)


def export(path: Path, folder: Path, fold: bool = False) -> None:
    """Write the run in ``path`` to ``folder``, with its tokenizer.

    Forward multipliers stay in the configuration, or with ``fold`` are in the weights. Raises
    UserError where ``folder`` holds something already, the corpus is no longer there, and as
    ``trained`` does.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already; give the name of a new folder")
    model = trained(path)
    description = read_description(path)
    settings = validate(Settings, description["settings"], str(path / "run.json"))
    corpora = path.resolve().parents[2] / "data"
    corpus = data.prepare(settings.data, settings.model.vocab_size, corpora)
    if corpus.hash != description["corpus"]["hash"]:
        raise UserError(
            f"the corpus of {path}, {description['corpus']['name']}, is not the one in {corpora}; "
            "its tokenizer cannot be exported"
        )
    save_transformers(model, folder, corpus.path / "tokenizer.json", END_OF_TEXT, keep=not fold)


def main(arguments: list[str]) -> None:
    """Parse the command line and export."""
    parser = argparse.ArgumentParser(prog="lrm export", description=__doc__)
    parser.add_argument("run", type=Path, help="results/runs/<experiment>/<id>")
    parser.add_argument("folder", type=Path, help="new folder for from_pretrained")
    parser.add_argument(
        "--fold", action="store_true", help="forward multipliers into the weights as well"
    )
    options = parser.parse_args(arguments)
    export(options.run, options.folder, options.fold)
    print(f"wrote {options.folder}")
