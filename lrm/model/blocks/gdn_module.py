"""The Gated Delta Network, and what tries its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrm.model import ops
from lrm.model.activations import Activations, record
from lrm.model.blocks.gdn import CONVOLVED, GATES, GatedDeltaNet
from lrm.model.config import ModelConfig
from lrm.model.gpu.adapters import Kernels
from lrm.model.gpu.selection import draw
from lrm.model.norm import RMSNorm, add_norms, normed
from lrm.multipliers.precision import upcast

# Of the length of queries and keys, as in the kernels of flash-linear-attention.
_EPS = 1.0e-6
# Of a sequence, at which ``statistics`` looks: a quarter of its length apart.
PLACES = ("first", "quarter", "half", "three_quarters", "last")


class GatedDeltaNetModule(nn.Module):
    """Convolved queries, keys and values; the gated delta rule; RMSNorm by head, gate, projection.

    q, k and v pass a causal convolution and SiLU, and q and k get unit length. By head,
    ``alpha = exp(-exp(A_log) softplus(a_proj(u) + dt_bias))`` is what a step keeps of the state and
    ``beta = sigmoid(b_proj(u))`` how far it is rewritten. What is read passes an RMSNorm, is
    multiplied by ``silu(g_proj(u))`` and projected.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        factors: Mapping[str, float],
        implementations: Kernels,
    ) -> None:
        super().__init__()
        declared = GatedDeltaNet()
        sizes, rows = declared.sizes_of(config), declared.widths_of(config)
        d, heads, values = config.hidden_size, sizes["heads"], rows["gdn.v"]
        self.layer = layer
        self.implementations = implementations
        self.heads, self.chunk = heads, sizes["chunk"]
        self.rows = list(rows.values())
        for name, width in rows.items():
            convolution = nn.Conv1d(width, width, sizes["kernel"], groups=width, bias=False)
            self.add_module(f"{name[-1]}_proj", nn.Linear(d, width, bias=False))
            self.add_module(f"{name[-1]}_conv1d", convolution)
        self.g_proj = nn.Linear(d, values, bias=False)
        self.a_proj = nn.Linear(d, heads, bias=False)
        self.b_proj = nn.Linear(d, heads, bias=False)
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.dt_bias = nn.Parameter(torch.zeros(heads))
        self.o_norm = RMSNorm(sizes["value_dim"], config.rms_norm_eps)
        self.o_proj = nn.Linear(values, d, bias=False)
        add_norms(self, declared, config)
        named = ("gdn.gate", "gdn.out", *declared.points, *CONVOLVED, *GATES)
        self.factors = {name: factors.get(f"{name}@{layer}", 1.0) for name in named}

    def forward(self, u: Tensor, activations: Activations = None) -> Tensor:
        """Map u (batch, length, d) to the mixer's output of the same shape."""
        projected = self._projected(u, CONVOLVED, (self.q_proj, self.k_proj, self.v_proj))
        gates = self._projected(u, GATES, (self.a_proj, self.b_proj))
        gate = ops.linear(u, self.g_proj.weight, self.factors["gdn.gate"])
        filters = torch.cat([self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight])
        convolved = ops.causal_conv1d(projected, filters, None, self.implementations.convolution)
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in convolved.split(self.rows, -1))
        alpha, beta = upcast(gates).chunk(2, -1)
        log_kept = -torch.exp(upcast(self.A_log)) * F.softplus(alpha + upcast(self.dt_bias))
        written = torch.sigmoid(beta)
        o, state = ops.gated_delta(
            _unit(q), _unit(k), v, log_kept, written, self.chunk, self.implementations.delta
        )
        if self.factors["gdn.read"] != 1.0:
            o = o * self.factors["gdn.read"]
        read = self.o_norm(o)
        y = (read * F.silu(gate).view(read.shape)).flatten(-2)
        values = {"gdn.out": ops.linear(y, self.o_proj.weight, self.factors["gdn.out"])}
        out = normed(values, "gdn.out", self.out_norm)
        if activations is not None:
            values |= dict(zip(CONVOLVED, projected.split(self.rows, -1), strict=True))
            values |= dict(zip(GATES, (alpha, beta), strict=True))
            values |= {"gdn.conv_q": q, "gdn.conv_k": k, "gdn.conv_v": v, "gdn.gate": gate}
            values |= {"gdn.kept": log_kept.exp(), "gdn.written": written}
            values |= {"gdn.state": state, "gdn.read": o, "norm.gdn": read}
            record(activations, self.layer, values)
        return out

    def _projected(self, u: Tensor, names: Sequence[str], maps: Sequence[nn.Linear]) -> Tensor:
        """What the ``maps`` make of u, side by side: one product, of weights that lie together."""
        weights = [
            each.weight if self.factors[name] == 1.0 else each.weight * self.factors[name]
            for name, each in zip(names, maps, strict=True)
        ]
        return F.linear(u, torch.cat(weights))


def _unit(x: Tensor) -> Tensor:
    """x over its length in the last dimension, in float32 at least."""
    x = upcast(x)
    return x * (x.square().sum(-1, keepdim=True) + _EPS).rsqrt()


def statistics(activations: Mapping[str, Tensor]) -> dict[tuple[str, str], Tensor]:
    """Of one layer, means over tokens by head: (stat, tensor) → (heads,).

    ``head_mean`` of ``gdn.kept`` and ``gdn.written`` is that of α and β, and ``above_half`` the
    share of β > ½. ``deviation`` of ``gdn.alpha`` and ``gdn.beta`` is the standard deviation of
    z_α and z_β. ``memory`` is L = Σ_τ Π_{τ < j ≤ t} α_j, in tokens: how many the state sums.
    ``cosine_<place>`` is ⟨q, k⟩ of unit vectors at one place of the sequences, the mean over them,
    ``absolute_cosine_<place>`` that of its absolute value, and ``unrelated_cosine`` the mean over
    all pairs of places in a sequence.
    """
    kept, written = activations["gdn.kept"], activations["gdn.written"]
    q, k = (_unit(activations[f"gdn.conv_{name}"]) for name in "qk")
    found = {
        ("head_mean", "gdn.kept"): kept.mean((0, 1)),
        ("head_mean", "gdn.written"): written.mean((0, 1)),
        ("above_half", "gdn.written"): (written > 0.5).double().mean((0, 1)),
        ("memory", "gdn.kept"): _memory(kept),
        ("unrelated_cosine", "gdn.q"): (q.mean(1) * k.mean(1)).sum(-1).mean(0),
    }
    for name in GATES:
        found["deviation", name] = activations[name].flatten(0, 1).std(0, correction=0)
    cosines = (q * k).sum(-1)
    for quarter, place in enumerate(PLACES):
        there = cosines[:, quarter * (cosines.shape[1] - 1) // (len(PLACES) - 1)]
        found[f"cosine_{place}", "gdn.q"] = there.mean(0)
        found[f"absolute_cosine_{place}", "gdn.q"] = there.abs().mean(0)
    return found


def _memory(kept: Tensor) -> Tensor:
    """Mean over tokens of L_t = 1 + α_t L_{t−1}; kept (sequences, length, heads)."""
    reached = total = torch.zeros_like(kept[:, 0])
    for now in kept.unbind(1):
        reached = 1 + now * reached
        total = total + reached
    return total.mean(0) / kept.shape[1]


def delta_trial(config: ModelConfig, device: torch.device, dtype: torch.dtype):
    """Inputs of the delta rule at this model's shapes, and the rule as a function of them."""
    sizes = GatedDeltaNet().sizes_of(config)
    heads, length = sizes["heads"], 141
    widths = {"q": sizes["key_dim"], "k": sizes["key_dim"], "v": sizes["value_dim"]}
    leaves = {
        name: draw(seed, 2, length, heads, width).to(device, dtype)
        for seed, (name, width) in enumerate(widths.items(), 2)
    }
    # With A from 1/16 to 16 some heads remember for long and some forget at once.
    rates = torch.logspace(-4, 4, heads, base=2)
    steps = -rates * F.softplus(draw(5, 2, length, heads) - 3)
    leaves |= {"g": steps.to(device), "beta": torch.sigmoid(draw(6, 2, length, heads)).to(device)}

    def function(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, implementation: str = "torch"
    ) -> Tensor:
        q, k = _unit(q), _unit(k)
        return ops.gated_delta(q, k, v, g, beta, sizes["chunk"], implementation)[0]

    return leaves, function


def convolution_trial(config: ModelConfig, device: torch.device, dtype: torch.dtype):
    """Inputs of the convolution at this model's shapes, and the convolution."""
    channels = sum(GatedDeltaNet().widths_of(config).values())
    kernel = GatedDeltaNet().sizes_of(config)["kernel"]
    leaves = {
        "x": draw(2, 2, 141, channels).to(device, dtype),
        "weight": draw(3, channels, 1, kernel).to(device),
    }

    def function(x: Tensor, weight: Tensor, implementation: str = "torch") -> Tensor:
        return ops.causal_conv1d(x, weight, None, implementation)

    return leaves, function
