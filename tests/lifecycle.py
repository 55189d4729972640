"""What is asked of every model of ``zoo.py``: attached, trained, saved, loaded, merged."""

import io
import warnings
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel
from zoo import CASES

import lrm

IMPLEMENTATIONS = ("forward", "optimizer")


def built(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return CASES[name].build().train()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(lrm.build_param_groups(model, lr=3e-3, weight_decay=0.1))


def train(model, optimizer, batch, steps: range, implementation: str = "forward") -> list[float]:
    """The losses; in ``optimizer`` within ``same_weights``."""
    losses = []
    if implementation != "forward":
        # RWKV rescales its weights at its first pass in another mode, which is none of a step.
        with torch.no_grad():
            model(**batch)
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


def close(found, expected, rtol: float = 1e-3, atol: float = 1e-4) -> None:
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


def check(name: str, implementation: str, folder: Path) -> None:
    """The model ``name`` trains ten steps, five of them again from its checkpoint, and is merged.

    Multipliers change nothing when they are attached. ``folder`` takes the merged model.
    """
    case = CASES[name]
    batch = case.batch()
    model, plain = built(name), built(name)
    names = list(plain.state_dict())
    before = outputs(plain, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of convolutions that are left out
        handle = lrm.attach_multipliers(model, case.placement, implementation=implementation)
    close(outputs(model, batch), before, rtol=1e-5, atol=1e-5)
    kept = [key for key in model.state_dict() if ".multipliers." not in f".{key}"]
    assert kept == [*names, "_extra_state"]
    start = {key: p.detach().clone() for key, _, p in handle.named()}
    optimizer = adamw(model)
    train(model, optimizer, batch, range(5), implementation)

    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    rest = train(model, optimizer, batch, range(5, 10), implementation)
    file.seek(0)
    kept, moments = torch.load(file, weights_only=True)
    other = built(name, seed=1)
    lrm.attach_multipliers(other, implementation=implementation, **lrm.saved_placement(kept))
    resumed = adamw(other)
    other.load_state_dict(kept)
    resumed.load_state_dict(moments)
    assert train(other, resumed, batch, range(5, 10), implementation) == rest
    for (key, a), b in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), key
    for key, _, p in handle.named():
        assert not torch.equal(p, start[key]), f"{key} did not move"

    after = outputs(model, batch)
    assert any(not torch.allclose(a, b) for a, b in zip(after, before, strict=True))
    merged = lrm.merge_multipliers(model)
    close(outputs(merged, batch), after)
    assert list(merged.state_dict()) == names
    # By name: torch makes a class for each parametrized module.
    assert not any(hasattr(module, "_plain_class") for module in merged.modules())
    assert [type(m).__name__ for m in merged.modules()] == [
        type(m).__name__ for m in plain.modules()
    ]
    if isinstance(merged, PreTrainedModel):
        merged.save_pretrained(folder)
        close(outputs(type(merged).from_pretrained(folder), batch), after)
