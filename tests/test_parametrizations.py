"""Parametrizations as classes, and rows and columns that learn each in their own way."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import lrm
from lrm.errors import UserError
from lrm.model.falcon_h1 import FalconH1
from lrm.multipliers.multiplier import AXES
from lrm.multipliers.parametrization import PARAMETRIZATIONS, Parametrization
from lrm.multipliers.placement import targets
from lrm.noise.closed_form import has_closed_form
from lrm.noise.tensor import simulate, walkers
from lrm.plan.config import MultiplierRule, Settings, validate
from lrm.plan.rules import resolve, table
from lrm.plan.timescales import products
from lrm.plan.yaml import preset_rules
from lrm.symmetry import derived
from lrm.symmetry.found import SMALL, find
from lrm.train.learner import begin_with, build
from lrm.train.step import train_step


class Square(Parametrization):
    """The root is learned: s = raw²."""

    name = "square"

    def value(self, raw):
        return raw * raw

    def raw(self, value):
        return abs(value) ** 0.5

    def relative_step(self, lr, value):
        return 2 * lr / value**0.5


@pytest.fixture
def square(monkeypatch):
    monkeypatch.setitem(PARAMETRIZATIONS, "square", Square())


BOTH = {
    "kind": "row_column",
    "lr": 0.02,
    "row": {"parametrization": "log", "lr": 0.05, "init": 2.0},
    "column": {"weight_decay": 0.3},
}


def test_rows_and_columns_are_set_apart(settings):
    """In the table of the rules and in the optimizer's groups."""
    config = settings(
        rules=[{"match": "mlp.up", "multiplier": BOTH}],
        multipliers={"weight_decay": 0.1, "column": {"init": 0.5}},
    )
    rows = [r for r in table(resolve(config), config) if r["tensor"] == "mlp.up@0"]
    said = [(r["multiplier"], r["lr"], r["weight_decay"], r["init"]) for r in rows[1:]]
    assert said == [("row (log)", 0.05, 0.1, 2.0), ("column", 0.02, 0.3, 0.5)]
    steps = {r["tensor"]: r["step"] for r in products(resolve(config), config) if "step" in r}
    assert steps["mlp.up@0.row"] == pytest.approx(0.05, rel=1e-12)
    assert steps["mlp.up@0.column"] == 0.04
    learner = build(config, 0)
    groups = {key: (g["lr"], g["weight_decay"]) for g in learner.optimizer.table()
              for key in g["tensors"]}  # fmt: skip
    assert groups["mlp.up@1.row"] == (0.05, 0.1) and groups["mlp.up@1.column"] == (0.02, 0.3)
    [scaling] = [s for key, s in learner.multipliers.scalings.items() if key == "mlp.up@0"]
    assert (scaling.row == np.float32(np.log(2.0))).all() and (scaling.column == 0.5).all()


def test_the_last_rule_wins_for_each_axis(settings):
    """A later rule for both axes speaks of each of them; one for an axis leaves the other."""
    given = [{"kind": "row_column", "row": {"lr": 0.5, "init": 3.0}}, {"lr": 0.25},
             {"column": {"lr": 0.125}}]  # fmt: skip
    found = []
    for count in (1, 2, 3):
        rules = [{"match": "mlp.up", "multiplier": each} for each in given[:count]]
        [plan] = [p for p in resolve(settings(rules=rules)) if p.key == "mlp.up@0"]
        found.append([(each.lr, each.init) for each in plan.multipliers])
    assert found == [[(0.5, 3.0), (0.01, 1.0)], [(0.25, 3.0), (0.25, 1.0)],
                     [(0.25, 3.0), (0.125, 1.0)]]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"kind": "column", "row": {"lr": 1.0}}, "kind = column has no row multipliers; drop row"),
        ({"parametrization": "lag"}, "no such parametrization; use direct, log, or, er, product .*'lag'"),
        ({"row": {"lrr": 1.0}}, r"unknown key row.lrr; did you mean lr\?"),
        ({"row": {"kind": "row"}}, "unknown key row.kind"),
        ({"column": {"lr": -1.0}}, "column.lr: .* greater than or equal to 0"),
    ],
)
def test_a_bad_rule_is_named(rule, message):
    with pytest.raises(UserError, match=message):
        validate(MultiplierRule, rule, "the test")


@pytest.mark.parametrize("column", ["direct", "square", "or", "er", "product"])
def test_both_implementations_train_alike(settings, square, column):
    """Log rows beside other columns, whole matrices and slices: the same run in float64."""
    rules = [{"match": match, "multiplier": {**BOTH, "column": {"parametrization": column}}}
             for match in ("attention.*", "ssm.[zx]", "mlp.*")]  # fmt: skip
    losses = {}
    for implementation in ("forward", "optimizer"):
        config = settings(rules=rules, train={"multiplier_implementation": implementation})
        learner = build(config, seed=0, dtype=torch.float64)
        generator = torch.Generator().manual_seed(1)
        losses[implementation] = [
            train_step(learner, torch.randint(0, 300, (3, 17), generator=generator), config, n)[0]
            for n in range(6)
        ]
    torch.testing.assert_close(losses["forward"], losses["optimizer"], rtol=1e-11, atol=1e-11)


def test_a_parametrization_is_one_class(settings, square):
    """One that the test brings: tables, noise, what begins with other values, symmetries."""
    for each in PARAMETRIZATIONS.values():
        value = torch.tensor([0.3, 1.7], dtype=torch.float64)
        given = each.value(each.raw(value))
        scale = (value / given).mean()  # where there is a magnitude, it has it
        torch.testing.assert_close(given * scale, value)
        alone = each.raw(0.7) if each.magnitude is None else each.raw(1.0)
        assert each.value(alone) == pytest.approx(0.7 if each.magnitude is None else 1.0)
        moved = each.value(each.raw(2.0) + 1e-6) / each.value(each.raw(2.0)) - 1
        if each.magnitude is None:
            assert scale == pytest.approx(1.0) and moved == pytest.approx(
                each.relative_step(1e-6, 2.0), rel=1e-4
            )
        assert copy.deepcopy(each) is each is pickle.loads(pickle.dumps(each))
    rules = [{"match": "mlp.up", "multiplier": {"kind": "row", "parametrization": "square",
                                                "lr": 0.02, "init": 4.0}}]  # fmt: skip
    config = settings(rules=rules)
    plans = resolve(config)
    assert {r["multiplier"] for r in table(plans, config)} == {None, "row (square)"}
    [step] = {r["step"] for r in products(plans, config) if r["tensor"].endswith(".row")}
    assert step == pytest.approx(0.02)  # from 2 to 2.02: 4 becomes 4.08
    walker = walkers(plans, ("mlp.up@0",), config)[1]
    assert not has_closed_form(walker)
    _, norms = simulate(walker, config, draws=4, seed=0)
    assert norms[0] == pytest.approx(4.0) and norms[-1] == pytest.approx(4.0, rel=0.2)
    multipliers = build(config, 0).multipliers
    begin_with(multipliers, {f"mlp.up@{n}.row": torch.full((24,), 9.0) for n in (0, 1)}, True)
    assert all((s.values()["row"] == 1.0).all() for s in multipliers.scalings.values())


def test_symmetries_are_the_same_in_any_parametrization(square):
    rules = [{"match": "attention.out", "multiplier": {"kind": "row_column"}},
             {"match": "mlp.down", "multiplier": {"kind": "row_column"}}]  # fmt: skip
    model = SMALL.model_copy(update={"num_hidden_layers": 1, "mixer": "attention"})
    config = validate(Settings, {"model": model.model_dump(), "rules": rules}, "the test")
    found = [find(config)]
    assert len(found[0].basis) == len(derived.symmetries(resolve(config), model)) > 0
    for row, column in (("square", "log"), ("or", "er")):
        own = {"row": {"parametrization": row}, "column": {"parametrization": column}}
        other = validate(Settings, {**config.model_dump(), "multipliers": own}, "the test")
        assert len(derived.symmetries(resolve(other), model)) == len(found[0].basis)
        found.append(find(other))
    for each in found[1:]:
        np.testing.assert_allclose(
            each.basis.T @ each.basis, found[0].basis.T @ found[0].basis, atol=1e-8
        )


SPLIT = {"lr": 0.02, "weight_decay": 0.1, "magnitude_lr": 0.05, "magnitude_weight_decay": 0.0}


@pytest.mark.parametrize("name", ["or", "er"])
def test_direction_and_magnitude(settings, name):
    """Where they start, their groups, norms and gradients (section 3.3 of the scale vectors)."""
    rule = {"kind": "row_column", "row": {"parametrization": name, "init": 3.0, **SPLIT}}
    config = settings(rules=[{"match": "mlp.up", "multiplier": rule}])
    learner = build(config, seed=0, dtype=torch.float64)
    groups = {key: (g["lr"], g["weight_decay"]) for g in learner.optimizer.table()
              for key in g["tensors"]}  # fmt: skip
    assert groups["mlp.up@0.row"] == (0.02, 0.1)
    assert groups["mlp.up@0.row_magnitude"] == (0.05, 0.0)
    steps = {r["tensor"]: r["step"] for r in products(resolve(config), config) if "step" in r}
    assert steps["mlp.up@0.row_magnitude"] == pytest.approx({"or": 0.05 / 3, "er": 0.05}[name])
    scaling = learner.multipliers.scalings["mlp.up@0"]
    values = scaling.values()
    assert (values["row"] == 1.0).all() and values["row_magnitude"].item() == pytest.approx(3.0)
    with torch.no_grad():
        scaling.row.normal_(1.0, 0.3, generator=torch.Generator().manual_seed(2))
    tokens = torch.randint(0, 300, (3, 17), generator=torch.Generator().manual_seed(1))
    train_step(learner, tokens, config, 0)
    alpha, value = scaling.row.detach(), scaling.values()["row"].detach()
    mean = value.square().mean() if name == "or" else value.log().mean().exp()
    assert mean.item() == pytest.approx(1.0, rel=1e-12)
    # The direction's gradient has no part along what the magnitude moves.
    along = alpha if name == "or" else torch.ones_like(alpha)
    gradient = _gradient(learner, tokens, scaling.row)
    assert gradient.norm() > 1e-4 and abs(along @ gradient) < 1e-12


def _gradient(learner, tokens, parameter):
    _, objective = learner.model(tokens[:, :-1], tokens[:, 1:])
    [found] = torch.autograd.grad(objective, parameter)
    return found


@pytest.mark.parametrize("name", ["or", "er"])
def test_a_shift_of_the_direction_changes_nothing(settings, name):
    """OR is free of the size of α, ER of a constant beside it; both are the vector they hold."""
    rule = {"kind": "row", "parametrization": name}
    config = settings(rules=[{"match": "mlp.gate", "multiplier": rule}])
    learner = build(config, seed=0, dtype=torch.float64)
    tokens = torch.randint(0, 300, (2, 9), generator=torch.Generator().manual_seed(1))
    plain = build(settings(), seed=0, dtype=torch.float64)
    torch.testing.assert_close(learner.model(tokens), plain.model(tokens), rtol=1e-12, atol=1e-12)
    scaling = learner.multipliers.scalings["mlp.gate@1"]
    with torch.no_grad():
        scaling.row.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(2))
        before = learner.model(tokens)
        moved = scaling.row * 7.0 if name == "or" else scaling.row + 7.0
        scaling.row.copy_(moved)
        torch.testing.assert_close(learner.model(tokens), before, rtol=1e-12, atol=1e-12)
        values = scaling.values()
        vector = values["row"] * values["row_magnitude"]
        plain.model.model.layers[1].feed_forward.gate_proj.weight.mul_(vector[:, None])
        torch.testing.assert_close(plain.model(tokens), before, rtol=1e-12, atol=1e-12)


def test_a_scalar_has_no_direction(settings):
    rules = [{"match": "mlp.gate", "multiplier": {"kind": "scalar", "parametrization": "or"}}]
    with pytest.raises(UserError, match="'mlp.gate': parametrization = or is for rows and columns"):
        resolve(settings(rules=rules))


def test_noise_moves_direction_and_magnitude(settings):
    """Brownian motion of each apart; the direction's norm stays, the magnitude's grows."""
    rule = {"kind": "row", "parametrization": "or", "lr": 0.05}
    config = settings(rules=[{"match": "mlp.up", "multiplier": rule}], train={"steps": 200})
    found = {w.key: w for w in walkers(resolve(config), ("mlp.up@0",), config)}
    _, norms = simulate(found["mlp.up@0.row"], config, draws=8, seed=0)
    np.testing.assert_allclose(norms, 1.0, rtol=1e-5)
    _, norms = simulate(found["mlp.up@0.row_magnitude"], config, draws=8, seed=0)
    assert norms[-1].std() > 0.1


def two_linears() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def test_the_library_sets_axes_apart():
    """Its groups, one trajectory in both implementations, and what it does not know."""
    x, losses = torch.randn(16, 4, dtype=torch.float64), {}
    for implementation in ("forward", "optimizer"):
        model = two_linears()
        lrm.attach_multipliers(
            model, "hidden", implementation=implementation, lr=0.02,
            row={"parametrization": "log", "weight_decay": 0.5}, column={"lr": 0.04},
        )  # fmt: skip
        groups = lrm.build_param_groups(model, lr=0.03, weight_decay=0.1)
        rates = [(g["lr"], g["weight_decay"]) for g in groups if g["kind"] == "multiplier"]
        assert rates == [(0.02, 0.5), (0.04, 2e-3)]
        optimizer = torch.optim.AdamW(groups)
        for _ in range(5):
            optimizer.zero_grad()
            loss = (model(x) - x[:, :3]).square().mean()
            loss.backward()
            optimizer.step()
            losses.setdefault(implementation, []).append(loss.item())
    np.testing.assert_allclose(losses["forward"], losses["optimizer"], rtol=1e-11)


def test_the_library_saves_and_merges_directions():
    """A checkpoint tells the parametrization and both LRs; merging leaves the same outputs."""
    x = torch.randn(5, 4, dtype=torch.float64)
    model = two_linears()
    split = {"parametrization": "or", "magnitude_lr": 0.25, "magnitude_weight_decay": 0.5}
    lrm.attach_multipliers(model, "hidden", lr=0.02, row=split, column={"parametrization": "er"})
    groups = lrm.build_param_groups(model, lr=0.03, weight_decay=0.1)
    rates = {(g["lr"], g["weight_decay"]) for g in groups if g["kind"] == "multiplier"}
    assert rates == {(0.02, 2e-3), (0.25, 0.5)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "multipliers" in name:
                parameter.add_(torch.linspace(0.1, 0.7, parameter.numel(), dtype=torch.float64))
    saved, wanted = model.state_dict(), model(x)
    again = two_linears()
    lrm.attach_multipliers(again, **lrm.saved_placement(saved))
    again.load_state_dict(saved)
    torch.testing.assert_close(again(x), wanted)
    found = lrm.build_param_groups(again, lr=0.03, weight_decay=0.1)
    assert {(g["lr"], g["weight_decay"]) for g in found if g["kind"] == "multiplier"} == rates
    torch.testing.assert_close(lrm.merge_multipliers(again)(x), wanted)
    other = two_linears()
    lrm.attach_multipliers(other, "hidden", row={"parametrization": "er"})
    with pytest.raises(UserError, match="every row has or there and er here"):
        other.load_state_dict(saved)


def test_the_library_tells_what_it_does_not_know():
    for options, message in [
        ({"row": {"init": 2.0}}, "row: unknown setting 'init'; use one of lr, weight_decay, par"),
        ({"parametrization": "lag"}, "parametrization 'lag'; use one of direct, log, or, er"),
        ({"column": {"parametrization": "lag"}}, "unknown parametrization 'lag'"),
    ]:
        with pytest.raises(UserError, match=message):
            lrm.attach_multipliers(two_linears(), **options)


@pytest.mark.parametrize("name", ["all", "scalar"])
def test_the_library_places_as_the_preset_does(settings, name):
    """On the suite's own model; a merged matrix counts as one there, and here by its slices."""
    config = settings(rules=preset_rules(f"placement/{name}"))
    by_preset: dict[str, set] = {}
    for plan in resolve(config):
        axes = tuple(each.axis for each in plan.multipliers)
        if axes or plan.address.rows:
            by_preset.setdefault(plan.address.parameter, set()).add(axes)
    given = targets(FalconH1(config.model), name, {"lr": 0.01, "weight_decay": 0.0,
                                                   "parametrization": "direct"})  # fmt: skip
    by_library = {t.parameter: {tuple(each.axis for each in t.multipliers)} for t in given}
    assert by_library == by_preset and set().union(*by_preset.values()) <= set(AXES.values())
