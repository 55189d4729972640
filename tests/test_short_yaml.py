"""Shorter YAML: groups and roles of tensors, axes of arms, named values of a grid."""

import dataclasses
import re
from pathlib import Path

import pytest

from lrm.errors import UserError
from lrm.model.config import ModelConfig
from lrm.model.tensors import ROLES, addresses, matches, roles
from lrm.plan.config import AxisRule, MultiplierRule, Rule, WidthExponent
from lrm.plan.experiment import load
from lrm.plan.groups import GROUPS, patterns
from lrm.plan.rules import resolve


@pytest.fixture
def experiment(tmp_path):
    """A function from YAML text to the experiment."""

    def make(text: str):
        path = tmp_path / "some_name" / "config.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text("title: a test\nuse: [scale/smoke]\n" + text)
        return load(path)

    return make


def identities(experiment) -> dict[str, str]:
    runs = experiment.runs("smoke", [0])
    return {run.label: dataclasses.replace(run, corpus="abc").id for run in runs}


def test_a_group_is_the_rules_that_it_stands_for(experiment):
    short = """
rules: [{match: hidden, lr_scale: 0.5}, {match: "mixers@1", optional: true, init_scale: 2.0}]
brownian: {match: [embedding, hidden], arms: [base]}
"""
    long = """
rules:
  - {match: "attention.*", lr_scale: 0.5}
  - {match: "ssm.[zxBC]", lr_scale: 0.5}
  - {match: ssm.dt, lr_scale: 0.5}
  - {match: ssm.out, lr_scale: 0.5}
  - {match: "mlp.*", lr_scale: 0.5}
  - {match: "attention.*@1", optional: true, init_scale: 2.0}
  - {match: "ssm.[zxBC]@1", optional: true, init_scale: 2.0}
  - {match: ssm.dt@1, optional: true, init_scale: 2.0}
  - {match: ssm.out@1, optional: true, init_scale: 2.0}
brownian:
  match: [embedding, "attention.*", "ssm.[zxBC]", ssm.dt, ssm.out, "mlp.*"]
  arms: [base]
"""
    assert identities(experiment(short)) == identities(experiment(long))


@pytest.mark.parametrize("name", GROUPS)
def test_every_pattern_of_a_group_names_something(name):
    present = addresses(ModelConfig())
    for pattern in patterns(name):
        assert any(matches(pattern, address) for address in present), pattern
    if name == "hidden":
        chosen = {a.name for a in present for p in patterns(name) if matches(p, a)}
        hidden = {a.name for a in present if a.role == "matrix" and a.layer is not None}
        assert chosen >= hidden and {a for a in chosen - hidden if a.startswith("norm")} == set()


def test_a_role_names_all_tensors_of_one_type(settings):
    config = settings(
        rules=[{"match": "vectors", "weight_decay": 0.1}, {"match": "norms@1", "lr": 0.5}]
    )
    plans = resolve(config)
    assert {a.role for a in addresses(config.model)} == set(ROLES.values())
    for plan in plans:
        kind = plan.address.role
        decays = kind in ("matrix", "embedding", "vector")
        assert plan.weight_decay == (0.1 if decays else 0.0)
        assert plan.lr == (0.5 if kind == "norm" and plan.address.layer == 1 else 0.01)
    with pytest.raises(UserError, match="the roles are matrices, embeddings"):
        resolve(settings(rules=[{"match": "vector", "weight_decay": 0.1}]))


AXES = """
axes:
  optimizer: {ADAM: {}, MUON: {use: [optimizer/muon]}}
  tuned:
    LR: {grid: {lr: [0.5, 1.0]}, optimizer: {lr: $lr}}
    FULL: {rules: [{match: projector, lr_scale: 2.0}]}
arms:
  PLAIN: {}
  "{optimizer}_{tuned}": {}
  "{optimizer}_{tuned}_VECTOR": {use: [placement/all], scales: [smoke]}
brownian: {match: [mlp.up@0], arms: ["*_FULL"]}
"""


def test_an_arm_stands_for_every_combination_of_its_axes(experiment):
    written_out = """
arms:
  PLAIN: {}
  ADAM_LR: {grid: {lr: [0.5, 1.0]}, optimizer: {lr: $lr}}
  ADAM_FULL: {rules: [{match: projector, lr_scale: 2.0}]}
  MUON_LR: {use: [optimizer/muon], grid: {lr: [0.5, 1.0]}, optimizer: {lr: $lr}}
  MUON_FULL: {use: [optimizer/muon], rules: [{match: projector, lr_scale: 2.0}]}
  ADAM_LR_VECTOR: {use: [placement/all], grid: {lr: [0.5, 1.0]}, optimizer: {lr: $lr}}
  ADAM_FULL_VECTOR: {use: [placement/all], rules: [{match: projector, lr_scale: 2.0}]}
  MUON_LR_VECTOR:
    {use: [placement/all, optimizer/muon], grid: {lr: [0.5, 1.0]}, optimizer: {lr: $lr}}
  MUON_FULL_VECTOR:
    {use: [placement/all, optimizer/muon], rules: [{match: projector, lr_scale: 2.0}]}
brownian: {match: [mlp.up@0], arms: [ADAM_FULL, MUON_FULL]}
"""
    short, long = experiment(AXES), experiment(written_out)
    assert list(short.arms) == list(long.arms)
    assert identities(short) == identities(long)
    assert "ADAM_LR_VECTOR" not in {run.arm for run in experiment(AXES).runs("tiny", [0])}


def test_a_grid_may_name_what_its_points_stand_for(experiment):
    named = experiment("""
grid: {recipe: {LR: {lr: -1}, S: {forward: -1}, NONE: }, width: [16, 32]}
width: {hidden_size: $width}
model: {num_key_value_heads: 2}
rules: [{match: hidden, width_exponent: $recipe}]
""").runs("smoke", [0])
    assert [run.grid for run in named][::2] == [
        {"recipe": name, "width": 16} for name in ("LR", "S", "NONE")]  # fmt: skip
    assert named[0].label == "base recipe=LR width=16 seed=0"
    exponents = [run.settings.rules[0].width_exponent for run in named][::2]
    assert (exponents[0].lr, exponents[1].forward, exponents[2]) == (-1, -1, None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{tuned}_V", "{tune}_V", r"arms.\{optimizer\}_\{tune\}_VECTOR: \{tune\} is no axis; the "
                                  "axes are optimizer, tuned"),
        ("  tuned:", "  size: {SMALL: {}}\n  tuned:", "axes.size is in no arm's name"),
        ("PLAIN:", "ADAM_LR:", "there are two arms ADAM_LR"),
        ("{ADAM: {}, MUON: {use: [optimizer/muon]}}", "{}", "axes.optimizer is empty"),
        ("{ADAM: {}, MUON: {use: [optimizer/muon]}}", "[ADAM]", "must map names to values"),
        ("ADAM: {}", "ADAM: {optimiser: {}}", "axes.optimizer.ADAM: unknown key optimiser; did"),
        ("ADAM: {}", "ADAM: 3", "axes.optimizer.ADAM: expected a mapping of settings"),
        ('"*_FULL"', '"*_FUL"', r"brownian.arms names '\*_FUL', which is no arm"),
        ("[0.5, 1.0]", "{low: 0.5, 1: 1.0}", "the name 1 is not text"),
        ("[0.5, 1.0]", "{}", "grid.lr must be a list of values"),
        ("PLAIN: {", "PLAIN: {use: $presets, ", r"arms.PLAIN: use .*, not '\$presets'"),
        ("PLAIN: {", "PLAIN: {values: {arm: 3}, ", "values.arm: that name stands for the arm of"),
    ],
)  # fmt: skip
def test_one_clear_line(experiment, old, new, message):
    assert old in AXES
    with pytest.raises(UserError, match=message) as caught:
        experiment(AXES.replace(old, new, 1)).runs("smoke", [0])
    assert "\n" not in str(caught.value)


def test_the_example_of_the_core_s_page_plans(experiment):
    page = (Path(__file__).parents[1] / "lrm" / "README.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```yaml\n(.*?)```", page, re.S)
    runs = experiment(text).runs("smoke", [0])
    assert len(runs) == 8 * 6
    assert {"ADAM_NONE", "ADAM_FULL", "MUON_FULL_VECTOR"} <= {run.arm for run in runs}
    assert {run.grid["recipe"] for run in runs} == {"LR", "SCALE"}


def test_the_core_s_page_lists_every_key_address_and_group():
    page = (Path(__file__).parents[1] / "lrm" / "README.md").read_text(encoding="utf-8")
    page = page.partition("### Rules: keys")[2].partition("\n## ")[0]
    keys, tensors, groups = re.findall(r"^\|---.*\n((?:\|.*\n)+)", page, re.M)

    def named(text: str) -> list[str]:
        return re.findall(r"`([\w.*\[\]]+)`", text)

    def cells(table: str) -> list[list[str]]:
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]

    listed = [name for row in cells(keys) for name in named(row[0])]
    assert sorted(name for name in listed if "." not in name) == sorted(Rule.model_fields)
    # What needs a word of its own; both axes have what the multiplier itself has but its kind.
    of_multipliers = {name.partition(".")[2] for name in listed if "." in name}
    assert of_multipliers == MultiplierRule.model_fields.keys() - {"lr", "weight_decay", "init"}
    for rule, model in (("multiplier", MultiplierRule), ("multiplier.row", AxisRule),
                        ("width_exponent", WidthExponent)):  # fmt: skip
        [row] = [row for row in cells(keys) if rule in named(row[0])]
        assert set(re.findall(r"\w+", row[1])) == model.model_fields.keys(), rule
    roles_listed = {}
    for _, role, addresses_listed in cells(tensors):
        roles_listed |= dict.fromkeys(named(addresses_listed), ROLES[named(role)[0]])
    assert roles_listed == roles()
    assert {named(name)[0]: tuple(named(stands)) for name, stands in cells(groups)} == GROUPS
