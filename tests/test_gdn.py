"""The Gated Delta Network: its recurrence, its mixer and its parametrizations over width."""

import pytest
import torch
import torch.nn.functional as F
from recurrences import gated_delta

from lrm.model import ops


def inputs(length, batch=2, heads=3, key=16, value=32, dtype=torch.float64, seed=0):
    """q, k, v, g, beta of heads that remember for long and of heads that forget at once."""
    torch.manual_seed(seed)
    q, k = (F.normalize(torch.randn(batch, length, heads, key, dtype=dtype), dim=-1) for _ in "qk")
    v = torch.randn(batch, length, heads, value, dtype=dtype)
    rate = torch.tensor([1e-3, 0.3, 30.0], dtype=dtype)[:heads]
    g = -rate * torch.rand(batch, length, heads, dtype=dtype)
    return q, k, v, g, torch.rand(batch, length, heads, dtype=dtype)


def chunked(chunk):
    return lambda *tensors: ops.gated_delta(*tensors, chunk)


def outcome(function, tensors):
    """Output, final state and the gradient of every input for random gradients of both."""
    leaves = [each.detach().clone().requires_grad_() for each in tensors]
    found = function(*leaves)
    torch.manual_seed(1)
    weights = [torch.randn(each.shape, dtype=torch.float64).to(each) for each in found]
    grads = torch.autograd.grad(found, leaves, weights)
    return [*(each.detach() for each in found), *grads]


def distances(found, true):
    tiny = torch.finfo(torch.float64).tiny  # after one step the decay has no gradient
    pairs = zip(found, true, strict=True)
    return [((a - b).norm() / b.norm().clamp(min=tiny)).item() for a, b in pairs]


@pytest.mark.parametrize("length", [1, 5, 33, 128])
@pytest.mark.parametrize("chunk", [1, 16, 32, 64])
def test_chunks_equal_the_recurrence(length, chunk):
    """Output, final state and all gradients, also where a chunk is longer than the text."""
    tensors = inputs(length)
    true = outcome(gated_delta, tensors)
    assert max(distances(outcome(chunked(chunk), tensors), true)) < 4e-15
    low = [each.float() for each in tensors]
    assert max(distances(outcome(chunked(chunk), low), true)) < 1e-6


def test_gradients_are_those_of_differences():
    tensors = [each.requires_grad_() for each in inputs(11, 1, 2, 3, 4)]
    assert torch.autograd.gradcheck(chunked(4), tensors)
    lower = torch.randn(2, 16, 16, dtype=torch.float64).tril(-1).requires_grad_()
    assert torch.autograd.gradcheck(ops._unit_inverse, lower)


@pytest.mark.parametrize("chunk", [16, 32, 64])
def test_nearly_equal_keys_lose_no_digits(chunk):
    """All keys alike, little forgotten, all taken back: sums of powers would overflow here.

    As exact as the recurrence itself, whose gradient of g cancels too.
    """
    q, k, v, g, beta = inputs(128)
    k = F.normalize(k[:, :1] + 1e-3 * k, dim=-1)
    tensors = [each.float() for each in (q, k, v, 1e-4 * g.clamp(min=-1), 1 - 1e-3 * beta)]
    true = outcome(gated_delta, [each.double() for each in tensors])
    found = distances(outcome(chunked(chunk), tensors), true)
    plain = distances(outcome(gated_delta, tensors), true)
    assert max(plain) < 1e-4
    assert all(ours < 5 * theirs for ours, theirs in zip(found, plain, strict=True))


def test_it_is_the_rule_of_transformers():
    """Their chunks of another size, in float32; they multiply queries by dk ** -0.5."""
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    tensors = [each.float() for each in inputs(141)]

    def theirs(q, k, v, g, beta):
        scale = q.shape[-1] ** 0.5
        o, state = qwen.torch_chunk_gated_delta_rule(
            q * scale, k, v, g, beta, chunk_size=64, output_final_state=True
        )
        return o, state.transpose(-1, -2)

    found, reference = outcome(chunked(32), tensors), outcome(theirs, tensors)
    assert max(distances(found, reference)) < 2e-6


def test_half_precision_is_computed_in_float32():
    tensors = inputs(40)
    low = [each.bfloat16() if n < 3 else each.float() for n, each in enumerate(tensors)]
    with torch.autocast("cpu", torch.bfloat16):
        o, state = ops.gated_delta(*low, 16)
    exact, last = gated_delta(*(each.double() for each in low))
    assert o.dtype == torch.bfloat16 and state.dtype == torch.float32
    assert max(distances([o.double(), state.double()], [exact, last])) < 3e-3
    assert distances([state.double()], [last])[0] < 1e-6


def test_runs_at_once_are_computed_alike():
    """Under ``vmap``, which knows no hand-written backward, torch differentiates it itself."""
    tensors = inputs(21, batch=4)
    stacks = [each.unflatten(0, (2, 2)) for each in tensors]
    together = [each.flatten(0, 1) for each in outcome(torch.vmap(chunked(8)), stacks)]
    assert max(distances(together, outcome(chunked(8), tensors))) < 4e-15
