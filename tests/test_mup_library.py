"""muP on any model: factors of the table, and changes that do not grow with the width."""

import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import yaml
from torch import nn

import lrm
from lrm.errors import UserError
from lrm.optim import mup_param_groups, mup_rescale_
from lrm.plan.experiment import load
from lrm.plan.rules import resolve

PRESETS = Path(lrm.__file__).parent / "plan" / "presets"
WIDTHS = (32, 64, 128, 256)
TOKENS = torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(0))


def language_model(width, **options):
    """Heads of one size, more of them in a wider model."""
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=width // 8, initializer_range=0.1, **options,
    ))  # fmt: skip


def test_factors_are_those_of_the_table():
    base, model = language_model(32), language_model(128)
    with torch.device("meta"):
        sizes_alone = language_model(32)
    names = {id(p): name for name, p in model.named_parameters()}
    for optimizer, wanted in (("adamw", (1 / 4, 1, 1, 1 / 4)), ("sgd", (1, 4, 4, 1 / 4))):
        for each in (base, sizes_alone):
            groups = mup_param_groups(model, each, 0.1, 0.5, optimizer=optimizer)
            found = {names[id(p)]: group["lr"] for group in groups for p in group["params"]}
            assert len(found) == len(names)
            for part, factor in zip(
                ("proj", "embed_tokens", "norm", "lm_head"), wanted, strict=True
            ):
                assert {lr for n, lr in found.items() if part in n} == {0.1 * factor}, part
    decays = {group["kind"]: group["weight_decay"] for group in groups}
    assert decays == {"embedding": 0.5, "head": 0.5, "matrix": 0.5, "vector": 0.0}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_factors_are_those_of_the_suite(optimizer, tmp_path):
    """The suite has a factor 1/m on the logits, the library a head whose values and LR have it."""
    preset = {"adamw": "gdn_mup_adamw", "sgd": "gdn_mup_sgd_original"}[optimizer]
    rules = yaml.safe_load((PRESETS / "width" / f"{preset}.yaml").read_text())["rules"]
    arm = {"rules": [rule for rule in rules if not rule["match"].startswith("gdn.")]}
    body = {"title": "mup", "use": ["scale/smoke", "attention/smoke", "optimizer/adamw"],
            "arms": {"WIDE": arm | {"width": {"hidden_size": 128}},
                     "BASE": arm | {"width": {"hidden_size": 64}}}}  # fmt: skip
    path = tmp_path / "mup" / "config.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(body, sort_keys=False))
    runs = load(path).runs("smoke", [0])
    wide, narrow = ({p.address.name: p for p in resolve(run.settings)} for run in runs)
    base, model = language_model(32), language_model(64)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = mup_param_groups(model, base, 1.0, 0.0, optimizer=optimizer)
    for address, plan in wide.items():
        factor = plan.lr / narrow[address].lr
        if address == "projector":
            factor *= {"adamw": 1 / 2, "sgd": 1 / 4}[optimizer]
        part = {"embedding": "embed_tokens", "projector": "lm_head"}.get(address)
        part = part or ("norm" if address.startswith("norm") else "proj")
        [rate] = {g["lr"] for g in groups for p in g["params"] if part in names[id(p)]}
        assert rate == pytest.approx(factor), address


def exponent(of_width):
    return np.polyfit(np.log(WIDTHS), np.log([of_width[w] for w in WIDTHS]), 1)[0]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_function_changes_alike_at_every_width(optimizer):
    """Three steps change logits and stream by as much; without muP that of logits grows with d."""
    base = language_model(WIDTHS[0])
    changes: dict[str, dict[str, dict[int, float]]] = {}
    starts: dict[int, float] = {}
    for width in WIDTHS:
        for recipe in ("muP", "standard"):
            model = language_model(width)
            if recipe == "muP":
                mup_rescale_(model, base)
                groups = mup_param_groups(model, base, 0.01, 0.0, optimizer=optimizer)
            else:
                groups = lrm.build_param_groups(model, 0.01, 0.0)
            make = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer]
            moves = make(groups, **({"eps": 1e-12} if optimizer == "adamw" else {}))
            found = []
            for _ in range(3):
                out = model(input_ids=TOKENS, labels=TOKENS, output_hidden_states=True)
                found.append((out.logits.detach(), out.hidden_states[-1].detach()))
                out.loss.backward()
                moves.step()
                moves.zero_grad()
            for what, before, after in zip(("logits", "stream"), found[0], found[-1], strict=True):
                size = (after - before).square().mean().sqrt().item()
                changes.setdefault(recipe, {}).setdefault(what, {})[width] = size
            if recipe == "muP":
                starts[width] = found[0][0].square().mean().sqrt().item()
    assert exponent(starts) == pytest.approx(-0.5, abs=0.15)  # logits of a random head vanish
    for what in ("logits", "stream"):
        own, plain = (exponent(changes[recipe][what]) for recipe in ("muP", "standard"))
        # What the random head makes of a changed stream falls as d^-1/2, beside the rest.
        assert -0.5 < own < 0.15, (what, own)
        assert what == "stream" or plain > 0.5, plain


def test_initial_values_follow_those_of_the_base():
    base, model = language_model(32), language_model(128)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.7)
    assert mup_rescale_(model, base) is model
    for name, parameter in model.named_parameters():
        ratio = parameter.square().mean().sqrt() / base.get_parameter(name).square().mean().sqrt()
        wanted = 1 / 4 if "lm_head" in name else 1 / 2 if "proj" in name else 1
        assert ratio.item() == pytest.approx(wanted, rel=1e-4), name


class Classifier(nn.Module):
    """Inputs and classes stay as many; a last convolution in place of the linear map, or none."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(16, width), nn.Linear(width, width)
        self.last, self.filters = nn.Linear(width, 10), nn.Conv1d(width, 3, 5)


def test_a_layer_whose_outputs_stay_as_many_is_an_output_layer():
    base, model = Classifier(32), Classifier(128)
    names = {id(p): name for name, p in model.named_parameters()}

    def sizes(**options):
        mup_rescale_(model, base, **options)
        return {
            name: (p.square().mean() / base.get_parameter(name).square().mean()).sqrt().item()
            for name, p in model.named_parameters()
            if "weight" in name
        }

    assert sizes() == pytest.approx(
        {"first.weight": 1, "second.weight": 1 / 2, "last.weight": 1 / 4, "filters.weight": 1 / 4}
    )
    said = sizes(role={"last.weight": "matrix", "filters.weight": "head"})
    assert said["last.weight"] == pytest.approx(1 / 2)
    assert said["filters.weight"] == pytest.approx(1 / 4)
    for optimizer, hidden in (("adamw", 1 / 4), ("sgd", 1)):
        groups = mup_param_groups(model, base, 1.0, 0.0, optimizer=optimizer)
        rates = {names[id(p)]: group["lr"] for group in groups for p in group["params"]}
        assert rates["second.weight"] == hidden
        assert rates["last.weight"] == rates["filters.weight"] == 1 / 4


class InputsFirst(nn.Module):
    """``x @ W``: inputs stay as many, then grow with outputs, then outputs stay as many."""

    def __init__(self, width):
        super().__init__()
        sizes = {"W_in": (16, width), "W": (width, width), "W_out": (width, 10)}
        for name, shape in sizes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))


def test_matrices_with_inputs_first():
    base, model, role = InputsFirst(32), InputsFirst(128), {"W*": "transposed"}
    names = {id(p): name for name, p in model.named_parameters()}
    for options, optimizer, wanted in (
        ({"role": role}, "adamw", (1, 1 / 4, 1 / 4)),
        ({"role": role}, "sgd", (4, 1, 1 / 4)),
        ({}, "adamw", (1 / 4, 1 / 4, 1)),  # taken for the other way round
    ):
        groups = mup_param_groups(model, base, 1.0, 0.0, optimizer=optimizer, **options)
        rates = {names[id(p)]: group["lr"] for group in groups for p in group["params"]}
        assert rates == dict(zip(("W_in", "W", "W_out"), wanted, strict=True))
    mup_rescale_(model, base, role=role)
    for name, wanted in (("W_in", 1), ("W", 1 / 2), ("W_out", 1 / 4)):
        ratio = model.get_parameter(name).square().mean() / base.get_parameter(name).square().mean()
        assert ratio.sqrt().item() == pytest.approx(wanted), name
    # What was said at attaching is known.
    lrm.attach_multipliers(model, "scalar", role=role)
    rates = {g["lr"] for g in mup_param_groups(model, base, 1.0, 0.0, optimizer="sgd")}
    assert {4, 1, 1 / 4} <= rates


def test_multipliers_keep_their_rates_and_options_are_passed_on():
    base, model = language_model(32), language_model(64)
    lrm.attach_multipliers(model, lr=0.03)
    groups = mup_param_groups(model, base, 0.1, 0.5, no_decay=["*embed_tokens.weight"])
    assert {g["lr"] for g in groups if g["kind"] == "multiplier"} == {0.03}
    assert {g["lr"] for g in groups if g["kind"] == "matrix"} == {0.05}
    optimizer = torch.optim.AdamW(groups)
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    optimizer.step()


def test_heads_that_grow_in_size_are_told():
    base, model = language_model(32), language_model(64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mup_param_groups(model, base, 0.1, 0.0)
    sizes = {"vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    few = [transformers.LlamaForCausalLM(transformers.LlamaConfig(hidden_size=width, **sizes))
           for width in (32, 64)]  # fmt: skip
    by_config = [Classifier(width) for width in (32, 64)]
    for each, width in zip(by_config, (32, 64), strict=True):
        each.config = transformers.BertConfig(hidden_size=width, num_attention_heads=4)
    of_torch = [nn.Sequential(nn.MultiheadAttention(width, 4)) for width in (32, 64)]
    for narrow, wide in (few, by_config, of_torch):
        told = "have size 16 and that of base 8 .* by 0.707 your"
        with pytest.warns(UserWarning, match=told):
            mup_rescale_(wide, narrow)
        with pytest.warns(UserWarning, match=told):
            mup_param_groups(wide, narrow, 0.1, 0.0)


def test_weight_decay_times_the_rate_may_stay():
    """The line of the page, for all kinds but multipliers, whose rate is their own."""
    base, model = language_model(32), language_model(128)
    lrm.attach_multipliers(model)
    for optimizer in ("adamw", "sgd"):
        groups = mup_param_groups(model, base, lr := 0.1, 0.5, optimizer=optimizer)
        for group in groups:
            if group["kind"] != "multiplier":
                group["weight_decay"] *= lr / group["lr"]
        products = {(g["kind"], round(g["lr"] * g["weight_decay"], 12)) for g in groups}
        assert products == {
            ("matrix", 0.05), ("head", 0.05), ("embedding", 0.05), ("vector", 0.0),
            ("multiplier", 2e-5),
        }  # fmt: skip


def test_slips_get_one_line():
    base, model = language_model(32), language_model(64)
    tied = language_model(64, tie_word_embeddings=True)
    other = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2)
    )
    with torch.device("meta"):
        sizes_alone = language_model(32)
    for act, message in (
        (lambda: mup_param_groups(model, base, 0.1, 0.0, optimizer="muon"),
         "optimizer 'muon' has no rule here; use one of adamw, sgd"),
        (lambda: mup_param_groups(tied, base, 0.1, 0.0), "is embedding and head at once"),
        (lambda: mup_param_groups(model, other, 0.1, 0.0), "base has no such parameter; build it"),
        (lambda: mup_param_groups(model, 32, 0.1, 0.0), "takes the model, not int"),
        (lambda: mup_rescale_(model, sizes_alone), "has no values; build it elsewhere than on"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            act()


def test_the_example_of_the_page_runs():
    page = Path(lrm.__file__).parent / "multipliers" / "README.md"
    [code] = re.findall(
        r"<!-- mup: a test runs it -->\n```python\n(.*?)```", page.read_text(), re.DOTALL
    )
    names: dict = {}
    exec(compile(code, "mup", "exec"), names)
    assert all(math.isfinite(loss) for loss in names["losses"])
    assert names["losses"][-1] < names["losses"][0]
