"""What strangers met on a third reading of the library: each of these once failed in silence."""

import copy

import pytest
import torch
from test_library_later import both, spread
from torch import nn

import lrm
from lrm.errors import UserError
from lrm.multipliers.roles import roles


class InputsFirst(nn.Module):
    """Two layers by hand, ``x @ W``, the first of them square, and a stack of two."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.W = nn.Parameter(torch.randn(4, 4))
        self.W_out = nn.Parameter(torch.randn(4, 6))
        self.experts = nn.Parameter(torch.randn(2, 6, 3))

    def forward(self, x):
        return (torch.tanh(x @ self.W) @ self.W_out) @ self.experts


TURNED = {"*": "transposed"}


@both
def test_matrices_with_inputs_first_have_rows_of_outputs(implementation):
    model, x = InputsFirst(), torch.randn(5, 4)
    plain = copy.deepcopy(model)
    handle = lrm.attach_multipliers(model, role=TURNED, implementation=implementation)
    sizes = {name: tuple(p.shape) for name, _, p in handle.named()}
    assert sizes == {"W.row": (4,), "W.column": (4,), "W_out.row": (6,), "W_out.column": (4,),
                     "experts.row": (2, 3), "experts.column": (2, 6)}  # fmt: skip
    assert "transposed" in repr(handle) and "outputs × inputs" not in repr(handle)
    spread(handle)
    for name in ("W", "W_out", "experts"):
        scaling = handle.scalings[name]
        wanted = getattr(plain, name) * scaling.row[..., None, :] * scaling.column[..., None]
        assert torch.allclose(getattr(model, name), wanted)
    kinds = {group["kind"] for group in lrm.build_param_groups(model, 1e-3, 0.1)}
    assert kinds == {"matrix", "multiplier"}
    expected = model(x)
    lrm.merge_multipliers(model)
    assert torch.allclose(model(x), expected)
    # Groups of a plain model too, and rows of a part of the outputs.
    [first, _] = lrm.build_param_groups(InputsFirst(), 1e-3, 0.1, role=TURNED)
    assert first["kind"] == "matrix" and len(first["params"]) == 2
    parts = {"W_out": [(0, 5, "row"), (5, 6, "scalar")]}
    assert "W_out[0:5]" in lrm.attach_multipliers(InputsFirst(), parts, role=TURNED).scalings


def test_checkpoints_know_which_matrices_have_inputs_first():
    saved = InputsFirst()
    spread(lrm.attach_multipliers(saved, role=TURNED))
    state, x = saved.state_dict(), torch.randn(5, 4)
    again = InputsFirst()
    lrm.attach_multipliers(again, **lrm.saved_placement(state))
    again.load_state_dict(state)
    assert torch.equal(again(x), saved(x))
    # Of the square one shapes tell nothing.
    for role, there, here in (
        ({"W_*": "transposed"}, "row_column, transposed,", "row_column"),
        ({"*": "matrix", "W": "transposed"}, "row_column, transposed,", "row_column"),
    ):
        other = InputsFirst()
        lrm.attach_multipliers(other, role=role)
        with pytest.raises(UserError, match=f"has {there} there and {here} here; attach by"):
            other.load_state_dict(state)


def test_the_role_transposed_is_for_matrices_of_ones_own():
    for model, role, message in (
        (nn.Linear(4, 3), "weight", "weight belongs to torch's own Linear, which says itself"),
        (nn.LayerNorm(4), "bias", "bias has fewer than two dimensions; name matrices alone"),
    ):
        with pytest.raises(UserError, match=message):
            roles(model, {role: "transposed"})
    assert "matrices as outputs × inputs" in repr(lrm.attach_multipliers(InputsFirst()))
