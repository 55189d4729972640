"""TensorBoard shows the logs of a run, and never stands in its way."""

import subprocess
import sys

import pandas as pd
import pytest

from lrm import data
from lrm.errors import UserError
from lrm.plan.config import Execution
from lrm.plan.run import Cost, TrainRun
from lrm.train import loop
from lrm.train.step import train_step


@pytest.fixture
def run(settings, tmp_path):
    """A run of 12 steps with a checkpoint at step 7 and probes at 4, 8 and 12."""
    config = settings(rules=[{"match": "mlp.up", "multiplier": {"kind": "row"}}])
    corpus = data.prepare(config.data, config.model.vocab_size, tmp_path / "data")
    execution = Execution(precision="float32", checkpoint_every=7, tensorboard=True)
    return TrainRun("test", "smoke", "A", {}, 0, config, execution, Cost(), corpus=corpus.hash)


class Killed(BaseException):
    """What no part of the suite may catch."""


def test_an_interrupted_run_is_shown_once(run, tmp_path, monkeypatch):
    """Every scalar and every vector of the tables, at each of its steps once."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    real = train_step

    def step(learner, batch, config, number, *rest):
        if number == 10:  # step 8 is logged already
            raise Killed
        return real(learner, batch, config, number, *rest)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", step)
        with pytest.raises(Killed):
            loop.train(run, folder, tmp_path / "data")
    loop.train(run, folder, tmp_path / "data")
    shown = accumulators.EventAccumulator(
        str(folder / "tensorboard"), {accumulators.SCALARS: 0, accumulators.HISTOGRAMS: 0}
    )
    shown.Reload()
    for name, tags, read in (
        ("scalars", shown.Tags()["scalars"], shown.Scalars),
        ("vectors", shown.Tags()["histograms"], shown.Histograms),
    ):
        table = pd.read_parquet(folder / f"{name}.parquet")
        assert len(tags) == table.groupby(["tensor", "stat"]).ngroups
        for (tensor, stat), rows in table.groupby(["tensor", "stat"]):
            tag = f"model/{stat}" if tensor == "model" else f"{stat}/{tensor.replace('@', '/')}"
            events = read(tag)
            assert [event.step for event in events] == list(rows["step"]), tag
            if name == "scalars":
                assert [e.value for e in events] == pytest.approx(list(rows["value"]), rel=1e-6)
            else:
                counts = [event.histogram_value.num for event in events]
                assert counts == [len(value) for value in rows["value"]]
    assert {"model/train_loss", "model/global_gradient_norm", "model/validation_loss",
            "model/lr_factor", "weight_norm/mlp.up/1"} <= set(shown.Tags()["scalars"])  # fmt: skip


def test_a_missing_package_is_told(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(UserError, match=r"package tensorboard; install lrm-suite\[tensorboard\]"):
        loop.train(run, tmp_path / "run", tmp_path / "data")


def test_a_board_that_breaks_does_not_stop_the_run(run, tmp_path, monkeypatch, capsys):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    def broken(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(SummaryWriter, "add_scalar", broken)
    loop.train(run, tmp_path / "run", tmp_path / "data")
    assert (tmp_path / "run" / "done.json").exists()
    told = capsys.readouterr().err
    assert told.count("is not written any more: no space left") == 1


def test_nothing_is_loaded_unless_wanted():
    code = (
        "import sys, lrm.train.loop\n"
        "names = 'tensorboard', 'torch.utils.tensorboard'\n"
        "assert not [name for name in sys.modules if name.startswith(names)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
