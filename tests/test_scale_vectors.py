"""Designs of scale vectors as presets: which vectors there are, and what they leave as it is."""

import math

import pytest
import torch

from lrm.model.tensors import addresses
from lrm.plan.experiment import load
from lrm.plan.rules import resolve
from lrm.train.learner import build
from lrm.train.step import train_step

DESIGNS = ("none", "standard", "final", "hg", "ap", "dp", "dnp", "output_norms")
MODEL = {"mixer": "attention", "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 42}
BODY = """
title: designs
use: [scale/smoke, optimizer/adamw]
model: {{mixer: attention, num_key_value_heads: 2, intermediate_size: 85}}
multipliers: {{lr: 8.0e-3, weight_decay: 0.0, parametrization: {parametrization}}}
execution: {{precision: float32}}
arms:
{arms}
"""


@pytest.fixture
def designs(tmp_path):
    """The settings of every design, with vectors in this parametrization."""

    def make(parametrization="direct"):
        arms = "\n".join(f"  {name.upper()}: {{use: [scale_vectors/{name}]}}" for name in DESIGNS)
        path = tmp_path / parametrization / "config.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(BODY.format(parametrization=parametrization, arms=arms))
        return {run.arm.lower(): run.settings for run in load(path).runs("smoke", [0])}

    return make


@pytest.fixture
def tokens():
    return torch.randint(0, 300, (2, 17), generator=torch.Generator().manual_seed(1))


def placed(settings):
    """Learning vectors by address: the axes of their multipliers. Other norms are frozen."""
    found = {}
    for plan in resolve(settings):
        if plan.address.role == "norm":
            assert not plan.trainable
        if plan.multipliers:
            axes = "+".join(each.axis for each in plan.multipliers)
            found.setdefault(plan.address.name, set()).add(axes)
    assert all(len(axes) == 1 for axes in found.values())
    return {name: axes.pop() for name, axes in found.items()}


BRANCHES = ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")


def test_each_design_has_its_vectors(designs):
    found = {name: placed(settings) for name, settings in designs().items()}
    final = {"norm.final": "row"}
    assert found["none"] == {} and found["final"] == final
    assert found["standard"] == final | {"norm.mixer": "row", "norm.mlp": "row"}
    for name, axes in (("hg", "column"), ("ap", "row"), ("dp", "row+column")):
        assert found[name] == final | dict.fromkeys(BRANCHES, axes), name
    inner = {f"norm.{name}": "row" for name in BRANCHES}
    assert found["dnp"] == found["hg"] | inner
    names = ("attention.q", "attention.k", "attention.out", "mlp.down")
    outputs = {f"norm.{name}": "row" for name in names}
    assert found["output_norms"] == found["standard"] | outputs


@pytest.mark.parametrize("parametrization", ["direct", "or", "er"])
def test_all_begin_with_one_function(designs, tokens, parametrization):
    """What adds no norm behind a matrix computes at the start what the plain model does."""
    outputs = {}
    for name, settings in designs(parametrization).items():
        outputs[name] = build(settings, 0, dtype=torch.float64).model(tokens)
    for name in ("standard", "final", "hg", "ap", "dp"):
        torch.testing.assert_close(outputs[name], outputs["none"], rtol=1e-12, atol=1e-12)
    for name in ("dnp", "output_norms"):
        assert not torch.allclose(outputs[name], outputs["none"], rtol=1e-3)


def test_parametrizations_begin_alike(designs, tokens):
    """OR and ER of each design, with norms behind matrices too, start as direct vectors do."""
    direct, *others = (
        {name: build(settings, 0, dtype=torch.float64).model(tokens)
         for name, settings in designs(kind).items()}
        for kind in ("direct", "or", "er")
    )  # fmt: skip
    for outputs in others:
        for name, logits in outputs.items():
            torch.testing.assert_close(logits, direct[name], rtol=1e-12, atol=1e-12, msg=name)


def test_equal_vectors_of_branches_are_the_shared_one(designs, tokens):
    """HG with γ_q = γ_k = γ_v and γ_gate = γ_up is the standard design (table 1)."""
    found = designs()
    hg, standard = (build(found[name], 0, dtype=torch.float64) for name in ("hg", "standard"))
    generator = torch.Generator().manual_seed(2)
    width = found["hg"].model.hidden_size
    with torch.no_grad():
        for layer in range(found["hg"].model.num_hidden_layers):
            for norm, names in (("mixer", BRANCHES[:3]), ("mlp", BRANCHES[3:])):
                gamma = 1 + 0.5 * torch.randn(width, generator=generator, dtype=torch.float64)
                standard.multipliers.scalings[f"norm.{norm}@{layer}"].row.copy_(gamma)
                for name in names:
                    hg.multipliers.scalings[f"{name}@{layer}"].column.copy_(gamma)
    torch.testing.assert_close(hg.model(tokens), standard.model(tokens), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("parametrization", ["direct", "or", "er"])
def test_designs_without_inner_norms_merge(designs, tokens, parametrization):
    """After some steps: folded into the matrices and norms, the same logits."""
    for name in ("standard", "hg", "ap", "dp"):
        settings = designs(parametrization)[name]
        learner = build(settings, 0, dtype=torch.float64)
        for step in range(3):
            train_step(learner, tokens, settings, 50 + step)
        learned = [s.values() for s in learner.multipliers.scalings.values()]
        assert any((v != 1).any() for values in learned for v in values.values())
        before = learner.model(tokens).detach()
        learner.multipliers.merge()
        assert not any("multipliers" in key for key in learner.model.state_dict())
        torch.testing.assert_close(learner.model(tokens), before, rtol=1e-11, atol=1e-12)


def test_every_vector_has_a_side(designs):
    """Input or output, by where the norm stands; of a matrix the column stands in front."""
    for settings in designs().values():
        for address in addresses(settings.model):
            assert (address.side in ("input", "output")) == (address.role == "norm")


INPUTS = {f"{name}.column" for name in BRANCHES}
FINAL, SHARED = {"norm.final.row"}, {"norm.mixer.row", "norm.mlp.row"}
INNER = {f"norm.{name}.row" for name in BRANCHES}
OUTPUTS = {
    f"norm.{name}.row" for name in ("attention.q", "attention.k", "attention.out", "mlp.down")
}


@pytest.mark.parametrize(
    ("arm", "decaying", "others"),
    [
        ("scale_vectors/unified", INPUTS | FINAL, INNER),
        ("scale_vectors/standard, vector_decay/input", SHARED | FINAL, set()),
        ("scale_vectors/hg, vector_decay/input", INPUTS | FINAL, set()),
        ("scale_vectors/output_norms, vector_decay/input", SHARED | FINAL, OUTPUTS),
        ("scale_vectors/output_norms, vector_decay/output", OUTPUTS, SHARED | FINAL),
        ("scale_vectors/output_norms, vector_decay/all", OUTPUTS | SHARED | FINAL, set()),
    ],
)
def test_vectors_of_one_side_decay(tmp_path, arm, decaying, others):
    """What stands in front of a matrix, or behind a norm (IWD); of OR both vector and magnitude."""
    path = tmp_path / "decaying" / "config.yaml"
    path.parent.mkdir()
    body = BODY.format(parametrization="direct", arms=f"  ARM: {{use: [{arm}]}}")
    path.write_text(f"{body}scales:\n  smoke: {{values: {{input_decay: 0.3}}}}\n")
    [run] = load(path).runs("smoke", [0])
    found: dict[float, set] = {}
    for plan in resolve(run.settings):
        for each in plan.multipliers:
            axis = each.axis.removesuffix("_magnitude")
            found.setdefault(each.weight_decay, set()).add(f"{plan.address.name}.{axis}")
    assert found.pop(0.3) == decaying
    assert found == ({0.0: others} if others else {})


SIZES = {"hidden_size": 1792, "intermediate_size": 4778, "num_hidden_layers": 22,
         "num_attention_heads": 28, "num_key_value_heads": 28}  # fmt: skip


@pytest.mark.parametrize(
    ("arm", "count"),
    [
        ("{use: [scale_vectors/none]}", 119_734_272),
        ("{use: [scale_vectors/standard]}", 119_744_256),
        # With a vector on the outputs of the LM head, as the paper's 0.11985B has it.
        ("{use: [scale_vectors/dnp], rules: [{match: projector, multiplier: {kind: row}}]}",
         119_846_784),
        (f"{{use: [scale_vectors/standard], model: {SIZES}}}", 1_028_065_024),
    ],
)  # fmt: skip
def test_the_paper_s_counts_of_parameters(tmp_path, arm, count):
    path = tmp_path / "counted" / "config.yaml"
    path.parent.mkdir()
    path.write_text(
        "title: counted\nuse: [scale/paper, optimizer/adamw, llama/paper]\n"
        f"arms:\n  COUNTED: {arm}\n"
    )
    [run] = load(path).runs("paper", [0])
    found = 0
    for plan in resolve(run.settings):
        found += math.prod(plan.address.shape) if plan.trainable else 0
        found += sum(each.size for each in plan.multipliers)
    assert found == count
