"""The symmetries that the finder sees are those derived on paper, for every placement."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from lrm.errors import UserError
from lrm.model.config import ExpertsConfig
from lrm.plan import rules
from lrm.plan.config import Settings
from lrm.plan.yaml import preset_rules
from lrm.symmetry import derived as gauge
from lrm.symmetry import found as symmetry
from lrm.train.learner import build

L = symmetry.SMALL.num_hidden_layers
D = symmetry.SMALL.hidden_size
FF = symmetry.SMALL.intermediate_size
SSM = symmetry.SMALL.mamba_d_ssm
VALUES = symmetry.SMALL.num_key_value_heads * symmetry.SMALL.head_dim
PAIRS = VALUES // 2
CONVOLVED = SSM + 2 * symmetry.SMALL.mamba_d_state
ALL, FREE = "placement/all", "placement/symmetry_free"
FROZEN_NORMS = [
    {"match": "norm.mixer", "weight": "frozen"},
    {"match": "norm.mlp", "weight": "frozen"},
]
COLUMNS = {"kind": "column"}
EXPERTS = ExpertsConfig(count=3, active=2, size=4)
BEHIND = {"mlp.gate": "full", "mlp.up": "full"}

# Derived by hand: (preset, rules after it, changes of the model, expected number), and where the
# scales of conv1d's filters count too, ``+ filters`` in the name.
PLACEMENTS = {
    # The RMSNorm weights alone: nothing undoes a change of theirs.
    "none": (None, [], {}, 0),
    # The stream; by layer q·k, v·out, up·down and the two norms against the first matrices; the
    # final norm against the projector.
    "scalar": ("placement/scalar", [], {}, 5 * L + 2),
    # Rows against columns of the embedding and of 13 matrices a layer; the stream; by layer two
    # norms against columns, q·k by pair, v·out and up·down by channel.
    "all": (ALL, [], {}, 2 + L * (13 + 2 * D + PAIRS + VALUES + FF)),
    "all without norms": (ALL, FROZEN_NORMS, {}, 2 + L * (13 + PAIRS + VALUES + FF)),
    "all, inner norm": (
        ALL, [], {"mamba_rms_norm": True}, 2 + L * (13 + 2 * D + PAIRS + VALUES + FF + SSM),
    ),
    "all, attention only": (
        ALL, [], {"mixer": "attention"}, 2 + L * (7 + 2 * D + PAIRS + VALUES + FF),
    ),
    "all, SSM only": (ALL, [], {"mixer": "ssm"}, 2 + L * (9 + 2 * D + FF)),
    "all, no embedding": (
        ALL, [{"match": "embedding", "multiplier": {"kind": "none"}}], {},
        L * (13 + 2 * D + PAIRS + VALUES + FF),
    ),
    "all, conv1d": (
        ALL, [{"match": "ssm.conv", "multiplier": {"kind": "row"}}], {},
        2 + L * (13 + 2 * D + PAIRS + VALUES + FF + CONVOLVED),
    ),
    # Rows against columns of the embedding, of attention's, the SSM's and the MLP's output; the
    # stream; the MLP's input, which gate's rows and down's columns undo.
    # Besides, rows against columns of the router and of three matrices of each expert, and up·down
    # by channel in each.
    "all, experts": (
        ALL, [], {"mixer": "attention", "experts": EXPERTS},
        2 + L * (7 + 2 * D + PAIRS + VALUES + FF + 1 + 3 * 3 + 3 * 4),
    ),
    # What a norm takes in may change as a whole: of gate, where no change was free, and of up. Its
    # weights take the place of the matrix's rows.
    "all, experts, norms behind": (
        ALL, [], {"mixer": "attention", "experts": EXPERTS, "norms_behind": BEHIND},
        2 + L * (7 + 2 * D + PAIRS + VALUES + FF + 1 + 3 * 3 + 3 * 4 + 2 + 2 * 3),
    ),
    "symmetry_free": (FREE, [], {}, 4 * L + 2),
    # Where no nonlinearity but softmax follows, q (twice) and out undo a change of their input.
    "symmetry_free, attention only": (FREE, [], {"mixer": "attention"}, 4 * L + 2),
    "symmetry_free, SSM only": (FREE, [], {"mixer": "ssm"}, 3 * L + 2),
    "symmetry_free, inner norm": (
        FREE, [{"match": "ssm.out", "multiplier": {"kind": "row"}}], {"mamba_rms_norm": True},
        3 * L + 2 + L,
    ),
    "irredundant": ("placement/irredundant", [], {}, 0),
    # Against norm.mixer: rows of q (twice) and out, alone in a block, or inside of the SSM.
    "irredundant, attention only": ("placement/irredundant", [], {"mixer": "attention"}, L),
    "irredundant, inner norm": ("placement/irredundant", [], {"mamba_rms_norm": True}, L),
    # A filter is a row multiplier of x, B and C. Those of one channel undo the block's input.
    "all + filters": (ALL, [], {}, 2 + L * (13 + 2 * D + PAIRS + VALUES + FF + CONVOLVED)),
    "symmetry_free + filters": (FREE, [], {}, 5 * L + 2),
    "irredundant + filters": ("placement/irredundant", [], {}, 0),
}  # fmt: skip


def settings_of(preset: str | None, more: list, shape: dict) -> Settings:
    found = [*(preset_rules(preset) if preset else []), *more]
    return Settings(model=symmetry.SMALL.model_copy(update=shape), rules=tuple(found))


@functools.cache
def found_of(name: str) -> symmetry.Found:
    """What the finder sees at one of ``PLACEMENTS``."""
    preset, more, shape, _ = PLACEMENTS[name]
    return symmetry.find(settings_of(preset, more, shape), filters=name.endswith("+ filters"))


@pytest.mark.parametrize("name", PLACEMENTS)
def test_finder_agrees_with_what_was_derived(name):
    preset, more, shape, expected = PLACEMENTS[name]
    settings = settings_of(preset, more, shape)
    plans = rules.resolve(settings)
    filters = name.endswith("+ filters")
    derived = gauge.symmetries(plans, settings.model, filters)
    found = found_of(name)
    assert len(found.basis) == len(derived) == expected
    assert sum(gauge.count(plans, settings.model, filters).values()) == expected
    assert found.null < 1e-12 and found.other > 1e-7
    assert symmetry.distance(found.basis, derived) < 1e-5


def test_planted_symmetry_is_found():
    """Columns of the projector beside the final RMSNorm weights: one symmetry a channel."""
    planted = [{"match": "projector", "multiplier": COLUMNS}]
    found = symmetry.find(settings_of("placement/irredundant", planted, {}))
    assert len(found.basis) == D
    names = [block.key for block in found.scales for _ in range(block.size)]
    inside = np.isin(names, ["projector", "norm.final"])
    assert np.abs(found.basis[:, ~inside]).max() < 1e-6


def test_planted_asymmetry_is_none():
    """Half of a rotated pair may not go against the same half of the key's."""
    settings = settings_of(ALL, [], {})
    found, plans = found_of("all"), rules.resolve(settings)
    start, direction = 0, np.zeros(found.basis.shape[1])
    for block in gauge.scales(plans):
        if block.axis == "row" and block.key in ("attention.q@0", "attention.k@0"):
            # The first channel of the first key's head; two heads of q share it.
            heads = 2 if block.key == "attention.q@0" else 1
            for head in range(heads):
                direction[start + head * 4] = 1.0 if heads == 2 else -1.0
        start += block.size
    kept = found.basis @ direction
    assert np.linalg.norm(kept) < 0.9 * np.linalg.norm(direction)


def test_logarithmic_multipliers_have_the_same_symmetries():
    direct = settings_of("placement/scalar", [], {})
    log = direct.model_copy(
        update={"multipliers": direct.multipliers.model_copy(update={"parametrization": "log"})}
    )
    first, second = found_of("scalar"), symmetry.find(log)
    assert symmetry.distance(first.basis, second.basis) < 1e-5


@pytest.mark.parametrize("name", ["scalar", "all", "symmetry_free"])
def test_model_is_the_same_far_along_a_symmetry(name):
    """Not to first order alone: e^a with a of 1 changes no logit."""
    settings = settings_of(f"placement/{name}", [], {})
    learner = build(settings, 0, dtype=torch.float64)
    plans = learner.plans
    basis = gauge.symmetries(plans, settings.model)
    tokens = torch.arange(settings.model.vocab_size)[None]
    before = learner.model(tokens)
    direction = torch.from_numpy(basis[np.random.default_rng(0).integers(len(basis))])
    scale, start = direction / direction.abs().max(), 0
    with torch.no_grad():
        for block in gauge.scales(plans):
            parameter = symmetry.parameter_of(learner, block)
            parameter *= scale[start : start + block.size].exp()
            start += block.size
    torch.testing.assert_close(learner.model(tokens), before, rtol=1e-9, atol=1e-12)


def test_nothing_to_find_is_an_error():
    frozen = [*FROZEN_NORMS, {"match": "norm.final", "weight": "frozen"}]
    with pytest.raises(UserError, match="no multiplier and no RMSNorm weight learns"):
        symmetry.find(settings_of(None, frozen, {}))


def test_command_line(capsys):
    symmetry.main(["irredundant", "symmetry_free", "--layers", "1"])
    said = capsys.readouterr().out
    assert "irredundant: " in said and " 0 symmetries derived, 0 found" in said
    assert "6 symmetries derived, 6 found" in said
    with pytest.raises(UserError, match="no preset"):
        symmetry.main(["nosuch"])
