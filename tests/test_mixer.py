"""A mixer of a reader's own: declared in one file, this one, and registered in one line."""

import dataclasses

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lrm import data
from lrm.errors import UserError
from lrm.model import blocks, ops
from lrm.model.activations import record
from lrm.model.blocks.block import Address, Changes, Constant, Mixer, Uniform, stream
from lrm.model.config import ModelConfig
from lrm.model.falcon_h1 import FalconH1
from lrm.model.tensors import addresses
from lrm.plan import rules
from lrm.plan.config import Settings, validate
from lrm.plan.cost import flops_per_token
from lrm.plan.experiment import load
from lrm.sweep import dry_run
from lrm.symmetry import derived as gauge
from lrm.symmetry import found as symmetry
from lrm.train.learner import build


class Recurrence(Mixer):
    """``out((s + skip v) · sigmoid(gate))``, ``s_t = sigmoid(decay) s_{t-1} + v_t``, by channel."""

    name = "recurrence"
    module = "recurrence"
    sizes = {"channels": 48, "gated": True}
    widths = ("channels",)
    freedoms = {"recurrence": "value against columns of recurrence.out"}
    small = {"mixer_sizes": {"recurrence": {"channels": 9}}}

    def check(self, config):
        if self.sizes_of(config)["channels"] % 3:
            raise ValueError("recurrence: the number of channels must be a multiple of 3")

    def tensors(self, config):
        d, width = config.hidden_size, self.sizes_of(config)["channels"]
        gated = self.sizes_of(config)["gated"]
        return [
            Address("recurrence.value", "value.weight", (width, d)),
            Address("recurrence.gate", "gate.weight", (width, d), present=gated),
            Address("recurrence.decay", "decay", (width,), "vector", Uniform(0.1, 0.9, ("log",))),
            Address("recurrence.skip", "skip", (width,), "vector", Constant(0.5)),
            Address("recurrence.out", "out.weight", (d, width)),
        ]

    def flops_per_token(self, config, sequence_length):
        return 3 * sequence_length * self.sizes_of(config)["channels"]

    def ends(self, config):
        channels = Changes("recurrence", range(self.sizes_of(config)["channels"]))
        return {
            "recurrence.value": (channels, self.reads(config)),
            "recurrence.gate": (None, self.reads(config)),
            "recurrence.out": (stream(config), channels),
        }

    def build(self, *arguments):
        return RecurrenceModule(self.sizes_of(arguments[0]), *arguments)


class RecurrenceModule(nn.Module):
    def __init__(self, sizes, config, layer, factors, implementations):
        super().__init__()
        d, width = config.hidden_size, sizes["channels"]
        self.layer = layer
        self.value = nn.Linear(d, width, bias=False)
        self.gate = nn.Linear(d, width, bias=False) if sizes["gated"] else None
        self.decay = nn.Parameter(torch.zeros(width))
        self.skip = nn.Parameter(torch.ones(width))
        self.out = nn.Linear(width, d, bias=False)
        self.factors = {n: factors.get(f"recurrence.{n}@{layer}", 1.0) for n in ("value", "out")}

    def forward(self, u, activations=None):
        value = ops.linear(u, self.value.weight, self.factors["value"])
        steps = torch.arange(u.shape[1])
        ages = (steps[:, None] - steps).to(self.decay.dtype)
        kept = (F.logsigmoid(self.decay)[:, None, None] * ages.clamp(min=0)).exp() * (ages >= 0)
        mixed = torch.einsum("cij,bjc->bic", kept, value) + self.skip * value
        found = {"recurrence.value": value}
        if self.gate is not None:
            found["recurrence.gate"] = gate = F.linear(u, self.gate.weight)
            mixed = mixed * torch.sigmoid(gate)
        out = ops.linear(mixed, self.out.weight, self.factors["out"])
        record(activations, self.layer, found | {"recurrence.out": out})
        return out


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(blocks.MIXERS, "recurrence", Recurrence())


def test_a_registered_mixer_is_asked_anew(monkeypatch):
    """What is kept of a model's tensors is that of the declarations that are registered now."""
    config = ModelConfig(mixer="recurrence", mixer_sizes={"recurrence": {"channels": 48}})
    assert "recurrence.gate" in {each.name for each in addresses(config)}

    class Ungated(Recurrence):
        def tensors(self, config):
            return [each for each in super().tensors(config) if each.name != "recurrence.gate"]

    monkeypatch.setitem(blocks.MIXERS, "recurrence", Ungated())
    assert "recurrence.gate" not in {each.name for each in addresses(config)}


NAMES = ["value", "gate", "decay", "skip", "out"]
TEXT = """
title: a mixer of its own
use: [scale/smoke]
model: {mixer: recurrence, mixer_sizes: {recurrence: {channels: 48}}}
grid: {width: [32, 64]}
width: {hidden_size: $width}
rules:
  - {match: "recurrence.[vgo]*", multiplier: {kind: row_column}}
  - {match: recurrence.value, forward: 0.5, width_exponent: {lr: -1}}
  - {match: recurrence.skip, weight: frozen, optional: true}
  - {match: "attention.*", lr_scale: 2.0, optional: true}
brownian: {match: [recurrence.value], arms: [base], draws: 8}
"""


@pytest.fixture
def runs(tmp_path):
    """A function from YAML text to (experiment, runs)."""

    def make(text=TEXT, overrides=()):
        path = tmp_path / "own" / "config.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        experiment = load(path)
        return experiment, experiment.runs("smoke", [0], overrides)

    return make


def test_it_trains_and_is_probed(runs, tmp_path):
    run = runs(overrides=["train.steps=30", "data.synthetic_documents=60"])[1][0]
    corpus = data.prepare(run.settings.data, run.settings.model.vocab_size, tmp_path / "data")
    run = dataclasses.replace(run, corpus=corpus.hash)
    run.execute(tmp_path / "run", tmp_path / "data")
    table = pd.read_parquet(tmp_path / "run" / "scalars.parquet")
    loss = table[table["stat"] == "train_loss"].sort_values("step")["value"].to_numpy()
    assert loss[-5:].mean() < loss[:5].mean() - 0.5
    probed = {stat: set(part["tensor"]) for stat, part in table.groupby("stat")}
    own = {f"recurrence.{name}@{layer}" for name in NAMES for layer in (0, 1)}
    assert {key for key in probed["weight_norm"] if key.startswith("recurrence")} == own
    linear = {key for key in own if "decay" not in key and "skip" not in key}
    assert {k for k in probed["activation_norm"] if k.startswith("recurrence")} == linear
    assert not any(key.startswith(("attention", "ssm")) for key in probed["weight_norm"])
    assert own <= torch.load(tmp_path / "run" / "weights.pt", weights_only=True).keys()


def test_initial_values_are_those_declared():
    config = symmetry.small("recurrence")
    model = build(Settings(model=config), 0).model
    own = model.model.layers[1].recurrence
    assert (own.skip == 0.5).all() and own.decay.exp().min() > 0.1 and own.decay.exp().max() < 0.9
    assert own.value.weight.square().mean().sqrt().item() == pytest.approx(6**-0.5, rel=0.3)


def test_rules_reach_it_and_a_width_scales_it(runs):
    narrow, _, wide, _ = runs()[1]
    for run, width in ((narrow, 48), (wide, 96)):
        plans = {plan.key: plan for plan in run.plans}
        assert [key for key in plans if key.endswith("@0")] == [
            "norm.mixer@0", *(f"recurrence.{name}@0" for name in NAMES),
            "norm.mlp@0", "mlp.gate@0", "mlp.up@0", "mlp.down@0",
        ]  # fmt: skip
        assert plans["recurrence.value@0"].address.shape == (width, run.settings.model.hidden_size)
        assert plans["recurrence.value@0"].forward == 0.5
        assert not plans["recurrence.skip@1"].trainable
        assert plans["recurrence.decay@0"].weight_decay == 0
        assert plans["recurrence.out@0"].weight_decay == run.settings.optimizer.weight_decay
        assert plans["recurrence.value@0"].lr == run.settings.optimizer.lr * 32 / (width * 2 / 3)


def test_parameters_and_flops_are_counted(runs):
    config = runs()[1][0].settings.model
    size = sum(p.numel() for p in FalconH1(config).parameters())
    assert runs()[1][0].estimate().parameters == size
    matrices = 384 * 32 + 2 * (3 * 48 * 32 + 3 * 64 * 32)
    assert flops_per_token(config, 10) == 6 * matrices + 2 * (3 * 10 * 48)


def test_it_has_a_brownian_motion(runs, tmp_path):
    text = TEXT.replace("[recurrence.value]", "[recurrence.value, recurrence.skip]")
    run = next(run for run in runs(text.replace("weight: frozen, ", ""))[1] if not run.trains)
    run.execute(tmp_path / "noise", tmp_path / "data")
    table = pd.read_parquet(tmp_path / "noise" / "scalars.parquet")
    start = table[(table["stat"] == "weight_norm") & (table["step"] == 0)].set_index("tensor")
    assert start["value"]["recurrence.skip@1"] == 0.5
    assert start["value"]["recurrence.value@0"] == pytest.approx(0.09, rel=0.05)
    assert start["value"]["recurrence.value@1.column"] == 1
    wrong = runs(TEXT.replace("match: [recurrence.value]", "match: [recurrence.decay]"))[1][1]
    with pytest.raises(UserError, match="recurrence.decay cannot be walked"):
        wrong.execute(tmp_path / "wrong", tmp_path / "data")


@pytest.mark.parametrize(
    ("mixer", "kind", "layers"),
    [("recurrence", "row_column", 1), ("attention+recurrence", "scalar", 2)],
)
def test_its_symmetries_are_derived_and_found(mixer, kind, layers):
    """Rows against columns of each matrix, the norms, the stream, and value against out."""
    patterns = ["recurrence.[vgo]*", "attention.*"] if "+" in mixer else ["recurrence.[vgo]*"]
    placed = [{"match": name, "multiplier": {"kind": kind}} for name in [*patterns, "embedding"]]
    config = symmetry.small(mixer).model_copy(update={"num_hidden_layers": layers})
    settings = validate(Settings, {"model": config.model_dump(), "rules": placed}, "the test")
    plans = rules.resolve(settings)
    derived, found = gauge.symmetries(plans, config), symmetry.find(settings)
    assert len(found.basis) == len(derived)
    assert symmetry.distance(found.basis, derived) < 1e-5
    freed = gauge.count(plans, config)
    assert freed["recurrence"] == layers * (9 if kind == "row_column" else 1)
    assert sum(freed.values()) == len(derived)
    assert gauge.freedoms()["recurrence"] == "value against columns of recurrence.out"


def test_the_command_line_finds_them(capsys):
    symmetry.main(["irredundant", "--mixer", "recurrence", "--layers", "1"])
    assert "0 symmetries derived, 0 found" in capsys.readouterr().out
    with pytest.raises(UserError, match="no mixer is named 'nosuch'"):
        symmetry.main(["all", "--mixer", "nosuch"])


def test_a_dry_run_prints_it(runs, tmp_path):
    experiment, found = runs()
    text = dry_run.text(experiment, found, tmp_path)
    assert "recurrence.value" in text and "recurrence.decay" in text and "attention" not in text


def test_mixers_side_by_side():
    """Addresses in the order of the registry, whatever the order in which they run."""
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "initializer_range": 0.3}
    both = ModelConfig(mixer="recurrence+attention", **sizes)
    other = ModelConfig(mixer="attention+recurrence", **sizes)
    names = [plan.key for plan in rules.resolve(Settings(model=both))]
    assert names == [plan.key for plan in rules.resolve(Settings(model=other))]
    assert names.index("attention.q@0") < names.index("recurrence.value@0")
    tokens = torch.arange(20)[None]
    one, two = (build(Settings(model=config), 0).model(tokens) for config in (both, other))
    torch.testing.assert_close(one, two)
    without = ModelConfig(mixer="recurrence", mixer_sizes={"recurrence": {"gated": False}}, **sizes)
    assert "recurrence.gate@0" not in [p.key for p in rules.resolve(Settings(model=without))]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"mixer": "nosuch"}, "no mixer is named 'nosuch'; write attention, ssm, gdn, recurrence"),
        ({"mixer": "ssm+ssm"}, "names a mixer twice"),
        ({"mixer": ""}, "no mixer is named ''"),
        ({"mixer_sizes": {"recurrence": {}}}, "mixer_sizes.recurrence: this model has ssm, att"),
        ({"mixer": "recurrence", "mixer_sizes": {"recurrence": {"chanels": 3}}},
         "mixer_sizes.recurrence.chanels = 3: the sizes are channels, gated"),
        ({"mixer": "recurrence", "mixer_sizes": {"recurrence": {"channels": 4.5}}},
         "write a value such as 48"),
        ({"mixer": "recurrence", "mixer_sizes": {"recurrence": {"channels": 0}}}, "from 1 to"),
        ({"mixer": "recurrence", "mixer_sizes": {"recurrence": {"channels": 10**5000}}},
         "an integer of 16610 bits"),
        ({"mixer": "x" * 4000}, "no mixer is named 'xxx"),
        ({"mixer": "recurrence", "mixer_sizes": {"recurrence": {"channels": 4}}}, "multiple of 3"),
    ],
)  # fmt: skip
def test_impossible_mixers_are_one_line(model, said):
    with pytest.raises(UserError, match="^the test: model") as raised:
        validate(Settings, {"model": model}, "the test")
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_built_in_mixers_joined_are_both():
    """One spelling, and one id, for attention beside Mamba2."""
    assert ModelConfig(mixer="attention+ssm") == ModelConfig(mixer="ssm+attention") == ModelConfig()
    assert "mixer_sizes" not in ModelConfig(mixer="ssm").model_dump(exclude_defaults=True)
