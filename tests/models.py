"""Models of many kinds, attached, trained, saved, loaded, merged: ``make test-models``.

Takes minutes, so it is no part of ``make test``. If all passes it writes
``lrm/multipliers/MODELS.md``.
"""

import io
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from zoo import CASES

import lrm

PAGE = Path(lrm.__file__).parent / "multipliers" / "MODELS.md"
IMPLEMENTATIONS = ("forward", "optimizer")
BEGIN = """# Models

`make test-models` has written this page. Each of these {count} models was attached in both
implementations, and trained for ten steps. It was saved after five of them, loaded into another
model, and went on to the same bits. Every multiplier moved. The merged model gave the same output.
So did what `save_pretrained` wrote, for models of transformers.

All models are small and random. The placement is `all`, or `convolutions` for networks of
convolutions. The table counts parameters by their role. `tests/zoo.py` states the role of each.

| model | parameters | matrices | embeddings | heads | convolutions | vectors | with multipliers |
|---|---|---|---|---|---|---|---|
"""


def prepared(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return CASES[name].build().train()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(lrm.build_param_groups(model, lr=3e-3, weight_decay=0.1))


def train(model, optimizer, batch, steps: range, implementation: str) -> list[float]:
    losses = []
    for step in steps:
        torch.manual_seed(step)  # of dropout
        optimizer.zero_grad()
        if implementation == "forward":
            loss = model(**batch).loss
            loss.backward()
        else:
            with lrm.same_weights(model):
                loss = model(**batch).loss
                loss.backward()
        lrm.clip_grad_norm_(model, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def outputs(model: nn.Module, batch) -> list[torch.Tensor]:
    """What it computes in evaluation, as a copy: some models change their weights for it."""
    training = model.training
    found = model.eval()(**batch)
    model.train(training)
    named = ("loss", "logits", "logits_per_text")
    return [getattr(found, name) for name in named if getattr(found, name, None) is not None]


def close(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def table():
    """Rows of the page by model, which is written when all are there."""
    rows: dict[str, str] = {}
    yield rows
    if list(rows) == list(CASES):
        PAGE.write_text(BEGIN.format(count=len(rows)) + "".join(rows.values()), encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_model(name, table, tmp_path):
    case = CASES[name]
    batch = case.batch()
    for implementation in IMPLEMENTATIONS:
        model, plain = prepared(name), prepared(name)
        before = outputs(plain, batch)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of convolutions that are left out
            handle = lrm.attach_multipliers(model, case.placement, implementation=implementation)
        close(outputs(model, batch), before)
        start = {name: p.detach().clone() for name, _, p in handle.named()}
        optimizer = adamw(model)
        train(model, optimizer, batch, range(5), implementation)

        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        rest = train(model, optimizer, batch, range(5, 10), implementation)
        file.seek(0)
        kept, moments = torch.load(file, weights_only=True)
        other = prepared(name, seed=1)
        lrm.attach_multipliers(other, implementation=implementation, **lrm.saved_placement(kept))
        resumed = adamw(other)
        other.load_state_dict(kept)
        resumed.load_state_dict(moments)
        assert train(other, resumed, batch, range(5, 10), implementation) == rest
        for (key, a), b in zip(
            model.state_dict().items(), other.state_dict().values(), strict=True
        ):
            assert torch.equal(a, b), key
        for key, _, p in handle.named():
            assert not torch.equal(p, start[key]), f"{key} did not move"

        roles = Counter(handle.roles.values())
        counts = [roles["matrix"], roles["embedding"] + roles["tied"], roles["head"]]
        counts += [roles["convolution"], roles["vector"], len(handle.effective)]
        after = outputs(model, batch)
        assert any(not torch.allclose(a, b) for a, b in zip(after, before, strict=True))
        merged = lrm.merge_multipliers(model)
        close(outputs(merged, batch), after)
        assert list(merged.state_dict()) == list(plain.state_dict())
        # By name: torch makes a class for each parametrized module.
        assert not any(hasattr(module, "_plain_class") for module in merged.modules())
        assert [type(m).__name__ for m in merged.modules()] == [
            type(m).__name__ for m in plain.modules()
        ]
        if isinstance(merged, PreTrainedModel):
            merged.save_pretrained(tmp_path / implementation)
            loaded = type(merged).from_pretrained(tmp_path / implementation)
            close(outputs(loaded, batch), after)
    table[name] = f"| {name} | " + " | ".join(map(str, [sum(roles.values()), *counts])) + " |\n"
