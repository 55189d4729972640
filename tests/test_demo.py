"""The sentence with which ``make demo`` ends."""

import json

import pytest

from analysis.demo import STEPS, sentence
from lrm.errors import UserError


def made(folder, arm: str, loss: float, steps: int = STEPS, seed: int = 0):
    path = folder / "runs" / "projector" / f"{arm}{steps}{seed}"
    path.mkdir(parents=True)
    run = {"id": path.name, "kind": "train", "scale": "tiny", "arm": arm, "grid": {"S": 8.0}}
    settings = {"train": {"steps": steps}}
    more = {"seed": seed, "label": f"{arm} S=8", "settings": settings}
    (path / "run.json").write_text(json.dumps(run | more))
    (path / "done.json").write_text(json.dumps({"validation_loss": loss}))


def test_both_losses_of_the_two_runs_and_of_no_others(tmp_path):
    made(tmp_path, "FPN", 4.1855)
    made(tmp_path, "FPN", 3.6, steps=2200)
    made(tmp_path, "SPN", 4.2, seed=1)
    with pytest.raises(UserError, match="no finished run of SPN with 500 steps; make demo"):
        sentence(tmp_path)
    made(tmp_path, "SPN", 4.0141)
    said = sentence(tmp_path)
    assert "4.186 nats with a frozen norm scale and 4.014 with a learned one" in said
