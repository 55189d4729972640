"""Kernels of other packages: their adapters, the choice between them, and its record.

Without a GPU the packages are played by naive float64 code with their signatures, layouts and
checks; with one, the same comparisons run against the packages themselves.
"""

import dataclasses
import math
import sys
import types
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from lrm import data
from lrm.bench.throughput import _folder, throughput
from lrm.bench.trainers import SuiteTrainer
from lrm.errors import UserError
from lrm.model import ops
from lrm.model.config import KernelConfig, ModelConfig
from lrm.model.falcon_h1 import FalconH1
from lrm.model.gpu import adapters, selection
from lrm.model.init import initialize
from lrm.model.recurrences import gated_delta
from lrm.multipliers import precision
from lrm.multipliers.precision import HALF
from lrm.plan.config import Execution
from lrm.plan.run import Cost, TrainRun
from lrm.store.files import read_json
from lrm.train import loop
from lrm.train.learner import build
from lrm.train.step import train_step

CASES = [(kernel, package) for kernel, found in adapters.ADAPTERS.items() for package in found]
DELTA = {"heads": 4, "key_dim": 8, "value_dim": 16, "chunk": 16}
CUDA = torch.device("cuda")
SMALL = ModelConfig(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    mamba_d_ssm=48,
    mamba_n_heads=12,
    mamba_n_groups=2,
    mamba_d_state=8,
    mamba_chunk_size=16,
    rope_theta=1.0e4,
    initializer_range=0.2,
)


def reasons(config, device, precision):
    """For every operation of the model and every package: None if usable, else why not."""
    return {
        kernel: {
            package: selection.unusable(kernel, package, config, device, precision)
            for package in adapters.ADAPTERS[kernel]
        }
        for kernel in selection.used(config)
    }


def naive_mamba(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False):
    """mamba_chunk_scan_combined: S <- exp(A dt) S + dt x B^T, y = S C + D x."""
    batch, length, heads, width = x.shape
    groups, state = B.shape[2:]
    assert dt.shape == (batch, length, heads) and A.shape == (heads,) and D.shape == (heads,)
    assert B.shape == C.shape == (batch, length, groups, state) and heads % groups == 0
    assert chunk_size >= 16 and chunk_size & (chunk_size - 1) == 0
    assert x.dtype == B.dtype == C.dtype and dt.dtype == A.dtype and dt.dtype not in HALF
    assert z is None and dt_bias is None and not dt_softplus
    xd, dt, A, B, C, D = (t.double() for t in (x, dt, A, B, C, D))
    # Head h reads group h // (heads / groups).
    of = torch.arange(heads) // (heads // groups)
    S, out = xd.new_zeros(batch, heads, width, state), []
    for t in range(length):
        S = S * torch.exp(A * dt[:, t])[..., None, None]
        S = S + torch.einsum("bh,bhp,bhn->bhpn", dt[:, t], xd[:, t], B[:, t, of])
        out.append(torch.einsum("bhpn,bhn->bhp", S, C[:, t, of]) + D[:, None] * xd[:, t])
    return torch.stack(out, 1).to(x.dtype)


def naive_gla(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, **options):
    """chunk_simple_gla: S <- exp(g) S + k v^T, o = scale q S; and the final state."""
    assert q.shape == k.shape and q.shape[:3] == v.shape[:3] == g.shape
    assert q.dtype == k.dtype == v.dtype and g.dtype not in HALF
    assert g_gamma is None and initial_state is None and not options
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = q.dtype
    q, k, v, g = (t.double() for t in (q, k, v, g))
    S, out = q.new_zeros(*q.shape[:1], q.shape[2], q.shape[3], v.shape[3]), []
    for t in range(q.shape[1]):
        S = S * g[:, t].exp()[..., None, None] + k[:, t, :, :, None] * v[:, t, :, None]
        out.append(scale * (q[:, t, :, None] @ S).squeeze(2))
    return torch.stack(out, 1).to(dtype), None


def naive_delta(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
    """chunk_gated_delta_rule: the state is (dk, dv), and half precision is asked for."""
    assert q.dtype == k.dtype == v.dtype and g.dtype == beta.dtype and g.dtype not in HALF
    assert q.shape == k.shape and q.shape[:3] == v.shape[:3] == g.shape == beta.shape
    assert initial_state is None and output_final_state and q.shape[-1] <= 256
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    o, state = gated_delta(*(t.double() for t in (scale * q, k, v, g, beta)))
    return o.to(q.dtype), state.transpose(-1, -2).float()


def naive_flash(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, deterministic=False):
    """flash_attn_func, (batch, length, heads, width); query head h reads h // (heads / kv)."""
    assert dropout_p == 0 and causal and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert q.dtype == k.dtype == v.dtype and q.shape[-1] <= 256
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    of = torch.arange(q.shape[2]) // (q.shape[2] // k.shape[2])
    scores = scale * torch.einsum("bihd,bjhd->bhij", q.double(), k.double()[:, :, of])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, float("-inf")).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", weights, v.double()[:, :, of]).to(q.dtype)


def naive_conv(x, weight, bias=None, seq_idx=None, activation=None):
    """causal_conv1d_fn, (batch, channels, length) with the checks of its C++."""
    channels, width = weight.shape
    assert x.shape[1] == channels and 2 <= width <= 4
    assert x.stride(2) == 1 or x.stride(1) == 1
    if x.stride(1) == 1 and x.stride(2) > 1:
        assert channels % 8 == x.stride(2) % 8 == x.stride(0) % 8 == 0
    assert activation == "silu"
    bias = torch.zeros_like(weight[:, 0]) if bias is None else bias
    assert weight.dtype == bias.dtype and len(bias) == channels
    padded = F.pad(x.double(), (width - 1, 0)).unfold(2, width, 1)
    out = torch.einsum("bclk,ck->bcl", padded, weight.double()) + bias.double()[:, None]
    # In x's strides, as the package leaves it.
    return torch.empty_like(x).copy_(F.silu(out))


NAIVE = {
    ("scan", "mamba_ssm"): naive_mamba,
    ("scan", "fla"): naive_gla,
    ("attention", "flash_attn"): naive_flash,
    ("convolution", "causal_conv1d"): naive_conv,
    ("delta", "fla"): naive_delta,
}


def forget():
    adapters.load.cache_clear()
    selection.unusable.cache_clear()


@pytest.fixture
def clean():
    """No package is remembered from before, none is left behind."""
    before = set(sys.modules)
    forget()
    yield
    forget()
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in adapters.PACKAGES:
            del sys.modules[name]


@pytest.fixture
def install(clean, monkeypatch):
    """A function that plays packages, by (operation, package) and what computes it."""

    def put(functions):
        forget()
        for (kernel, package), function in functions.items():
            place, _, name = adapters.PACKAGES[package].functions[kernel].partition(":")
            module = types.ModuleType(place)
            setattr(module, name, function)
            monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
            monkeypatch.setitem(sys.modules, place, module)

    return put


# Comparisons: leaves by name, and the door's function of them and of an implementation.


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def scan_case(heads, groups, width, state, length, chunk):
    leaves = {
        "xBC": draw(2, length, heads * width + 2 * groups * state),
        "dt": F.softplus(2 * draw(2, length, heads) - 3),
        "A": -torch.exp(draw(heads)),
        "D": draw(heads),
    }

    def function(xBC, dt, A, D, implementation="torch"):
        x, B, C = xBC.split([heads * width, groups * state, groups * state], -1)
        x = x.unflatten(-1, (heads, width))
        B, C = (t.unflatten(-1, (groups, state)) for t in (B, C))
        return ops.ssd(x, dt, A, B, C, chunk, D, implementation)

    return leaves, function, ("dt", "A", "D")


def attention_case(heads, kv_heads, width, length):
    leaves = {n: draw(2, length, h, width) for n, h in
              (("q", heads), ("k", kv_heads), ("v", kv_heads))}  # fmt: skip

    def function(q, k, v, implementation="torch"):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return ops.attention(q.contiguous(), k.contiguous(), v, 0.3, implementation)

    return leaves, function, ()


def delta_case(heads, key, value, length):
    leaves = {
        "q": F.normalize(draw(2, length, heads, key), dim=-1),
        "k": F.normalize(draw(2, length, heads, key), dim=-1),
        "v": draw(2, length, heads, value),
        "g": -F.softplus(2 * draw(2, length, heads) - 3),
        "beta": torch.sigmoid(draw(2, length, heads)),
    }

    def function(q, k, v, g, beta, implementation="torch"):
        return ops.gated_delta(q, k, v, g, beta, 32, implementation)[0]

    return leaves, function, ("g", "beta")


def convolution_case(channels, width, length):
    leaves = {
        "x": draw(2, length, channels),
        "weight": draw(channels, 1, width),
        "bias": draw(channels),
    }
    return leaves, ops.causal_conv1d, ("weight", "bias")


SHAPES = {
    "scan": (
        scan_case,
        [
            (4, 1, 16, 16, 70, 32),
            (4, 2, 64, 16, 33, 16),
            (6, 3, 16, 64, 64, 64),
            (3, 3, 64, 128, 5, 128),
        ],
    ),
    "attention": (attention_case, [(4, 2, 16, 70), (8, 2, 64, 33), (4, 4, 64, 64), (3, 1, 16, 1)]),
    "convolution": (convolution_case, [(96, 4, 70), (64, 2, 33), (8, 3, 2), (40, 4, 1)]),
    "delta": (delta_case, [(2, 16, 32, 70), (3, 64, 128, 33), (1, 32, 32, 64), (3, 16, 16, 5)]),
}
EVERY = [
    pytest.param(kernel, package, shape, id=f"{package}-{'x'.join(map(str, shape))}")
    for kernel, package in CASES
    for shape in SHAPES[kernel][1]
]


def outcome(function, leaves, weight=None):
    """The output, the gradient of every leaf, and the output's weight in the loss."""
    inputs = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
    out = function(**inputs)
    weight = torch.randn_like(out) if weight is None else weight.to(out.dtype)
    grads = torch.autograd.grad((out * weight).sum(), list(inputs.values()))
    return {"output": out.detach(), **dict(zip(inputs, grads, strict=True))}, weight


def half(leaves, exact, device="cpu"):
    """What autocast hands over: bfloat16, but for the tensors that stay in float32."""
    return {
        name: leaf.to(device, torch.float32 if name in exact else torch.bfloat16)
        for name, leaf in leaves.items()
    }


def distances(found, true):
    return {name: ((found[name].double() - value.double()).norm() / value.double().norm()).item()
            for name, value in true.items()}  # fmt: skip


@pytest.mark.parametrize(("kernel", "package", "shape"), EVERY)
def test_adapters_hand_over_the_right_tensors(kernel, package, shape, install):
    """Against plain torch in float64: layout, groups, scale, D and every gradient."""
    install(NAIVE)
    torch.manual_seed(0)
    leaves, function, _ = SHAPES[kernel][0](*shape)
    true, weight = outcome(function, leaves)
    found, _ = outcome(partial(function, implementation=package), leaves, weight)
    for name, value in true.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize(("kernel", "package"), CASES)
def test_adapters_keep_dtypes_under_autocast(kernel, package, install):
    """The naive packages assert that dt, A and gates come in float32 beside bfloat16."""
    install(NAIVE)
    torch.manual_seed(0)
    case, shapes = SHAPES[kernel]
    leaves, function, exact = case(*shapes[0])
    low = half(leaves, exact)
    true, weight = outcome(function, {name: leaf.double() for name, leaf in low.items()})
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = outcome(partial(function, implementation=package), low, weight)
    assert found["output"].dtype == torch.bfloat16
    assert {name: found[name].dtype for name in low} == {n: t.dtype for n, t in low.items()}
    assert max(distances(found, true).values()) < 0.02


@pytest.mark.parametrize("scan", ["mamba_ssm", "fla"])
@pytest.mark.parametrize("mixer", ["both", "attention", "ssm", "gdn"])
def test_the_whole_model_with_other_kernels(mixer, scan, install):
    calls = []
    install({name: (lambda *a, f=f, n=name, **k: calls.append(n) or f(*a, **k))
             for name, f in NAIVE.items()})  # fmt: skip
    config = SMALL.model_copy(update={"mixer": mixer, "mixer_sizes": {"gdn": DELTA}})
    chosen = adapters.Kernels(scan, "flash_attn", "causal_conv1d", "fla")
    tokens = torch.randint(61, (2, 21), generator=torch.Generator().manual_seed(1))
    found = {}
    for name, choice in (("torch", adapters.PLAIN), ("other", chosen)):
        model = FalconH1(config, implementations=choice).double()
        initialize(model, config, 0)
        logits = model(tokens)
        F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        grads = {n: p.grad for n, p in model.named_parameters()}
        found[name] = {"logits": logits.detach(), **grads}
    for name, value in found["torch"].items():
        torch.testing.assert_close(found["other"][name], value, rtol=1e-8, atol=1e-10, msg=name)
    assert set(calls) == {(kernel, getattr(chosen, kernel)) for kernel in selection.used(config)}


# The choice.


def test_settings_name_the_packages_there_are():
    for kernel, field in KernelConfig.model_fields.items():
        assert set(field.annotation.__args__) == {"auto", "torch", *adapters.ADAPTERS[kernel]}
    assert set(adapters.ADAPTERS) == set(KernelConfig.model_fields)
    there = {(kernel, p) for p, entry in adapters.PACKAGES.items() for kernel in entry.functions}
    assert set(CASES) == there


@pytest.fixture
def agreeing(install, monkeypatch):
    """All packages are there and agree with torch, but for those of the set given."""
    install(NAIVE)
    wrong: set[str] = set()
    monkeypatch.setattr(
        selection, "trial", lambda kernel, package, *_: "it is wrong" if package in wrong else None
    )
    return wrong


def test_auto_takes_the_first_that_is_usable(agreeing):
    auto = KernelConfig()
    best = adapters.Kernels("mamba_ssm", "flash_attn", "causal_conv1d")
    assert selection.select(auto, SMALL, CUDA, "bfloat16") == best
    assert reasons(SMALL, CUDA, "bfloat16") == {
        "scan": {"mamba_ssm": None, "fla": None},
        "attention": {"flash_attn": None},
        "convolution": {"causal_conv1d": None},
    }
    forget()
    agreeing |= {"mamba_ssm", "causal_conv1d"}
    chosen = selection.select(auto, SMALL, CUDA, "bfloat16")
    assert chosen == adapters.Kernels("fla", "flash_attn", "torch")
    line = selection.summary(chosen, auto, SMALL, CUDA, "bfloat16")
    assert "scan fla of unknown version (mamba_ssm: it is wrong), attention flash_attn" in line
    assert line.endswith("convolution torch (causal_conv1d: it is wrong)")


def test_torch_elsewhere_and_where_it_is_asked_for(agreeing):
    auto, cpu = KernelConfig(), torch.device("cpu")
    assert selection.select(auto, SMALL, cpu, "bfloat16") == adapters.PLAIN
    assert selection.select(auto, SMALL, torch.device("mps"), "bfloat16") == adapters.PLAIN
    assert selection.select(auto, SMALL, CUDA, "float32") == adapters.PLAIN
    plain = KernelConfig(scan="torch", attention="torch", convolution="torch")
    assert selection.select(plain, SMALL, CUDA, "bfloat16") == adapters.PLAIN
    assert selection.summary(adapters.PLAIN, auto, SMALL, cpu, "float32") == (
        "kernels on cpu in float32: scan torch, attention torch, convolution torch"
    )


def test_operations_that_the_model_has_not_are_left_alone(agreeing):
    config = SMALL.model_copy(update={"mixer": "attention"})
    wanted = KernelConfig(scan="fla")
    agreeing.add("fla")
    chosen = selection.select(wanted, config, CUDA, "bfloat16")
    assert chosen == adapters.Kernels(attention="flash_attn")
    assert set(reasons(config, CUDA, "bfloat16")) == {"attention"}


def hide(package, monkeypatch):
    """As if it were not installed."""

    class Hidden:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [n for n in sys.modules if n.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Hidden, *sys.meta_path])


@pytest.mark.parametrize(
    ("device", "precision", "said"),
    [
        ("cpu", "bfloat16", "it runs on CUDA only, and this is cpu; choose another execution.dev"),
        ("cuda", "float32", "it is used in half precision only; set execution.precision to bf"),
        ("cuda", "bfloat16", "not installed; run pip install fla-core; or set it to auto or torch"),
    ],
)
def test_a_kernel_that_is_asked_for_and_not_usable(device, precision, said, clean, monkeypatch):
    hide("fla", monkeypatch)
    wanted = KernelConfig(scan="fla")
    with pytest.raises(UserError) as caught:
        selection.select(wanted, SMALL, torch.device(device), precision)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith("execution.kernels.scan = 'fla' is not usable here: ")


def package_on_disk(folder, init: str, scan: str):
    inner = folder / "mamba_ssm" / "ops" / "triton"
    inner.mkdir(parents=True)
    (folder / "mamba_ssm" / "__init__.py").write_text(init)
    for path in (inner, inner.parent):
        (path / "__init__.py").touch()
    (inner / "ssd_combined.py").write_text(scan)


SCAN = "from mamba_ssm.ops.triton import more\ndef mamba_chunk_scan_combined(): return more.VALUE\n"


def test_the_scan_is_found_without_the_cuda_extension(clean, tmp_path, monkeypatch):
    """As after MAMBA_SKIP_CUDA_BUILD=TRUE: importing mamba_ssm itself fails."""
    package_on_disk(tmp_path, "import selective_scan_cuda\n", SCAN)
    (tmp_path / "mamba_ssm" / "ops" / "triton" / "more.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert adapters.load("mamba_ssm", "scan")() == 7
    assert adapters.missing("mamba_ssm", "scan") is None
    # Nothing half made is left under the package's name.
    assert "mamba_ssm" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="selective_scan_cuda"):
        import mamba_ssm  # noqa: F401


@pytest.mark.parametrize(
    ("scan", "said"),
    [
        ("import a_missing_one\n", "installed, but needs a_missing_one, which is not; install"),
        ("import mamba_ssm.ops.older\n", "installed, but this version has no mamba_ssm.ops.older"),
        (
            "raise ImportError('x.so: undefined symbol: _Z3\\nmore')\n",
            "importing it fails (ImportError: x.so: undefined symbol: _Z3); install it anew",
        ),
        ("raise RuntimeError\n", "importing it fails (RuntimeError); install it anew"),
        ("", "importing it fails (AttributeError: module 'mamba_ssm.ops.triton.ssd_combined'"),
    ],
)
def test_a_broken_package_is_told_from_a_missing_one(scan, said, clean, tmp_path, monkeypatch):
    package_on_disk(tmp_path, "", scan)
    monkeypatch.syspath_prepend(tmp_path)
    why = adapters.missing("mamba_ssm", "scan")
    assert said in why and "\n" not in why
    assert selection.select(KernelConfig(), SMALL, CUDA, "bfloat16").scan == "torch"


# The trial that a package must pass before it is used.


@pytest.mark.parametrize(("kernel", "package"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_trial_passes_who_agrees(kernel, package, dtype, install):
    install(NAIVE)
    assert selection.trial(kernel, package, model_of(kernel), torch.device("cpu"), dtype) is None


def model_of(kernel):
    """A small model that has the operation."""
    if kernel == "delta":
        return SMALL.model_copy(update={"mixer": "gdn", "mixer_sizes": {"gdn": DELTA}})
    return SMALL


def other_groups(x, dt, A, B, C, chunk_size, D):
    return naive_mamba(x, dt, A, B.flip(2), C.flip(2), chunk_size, D)


def no_gradient_of_A(x, dt, A, B, C, chunk_size, D):
    return naive_mamba(x, dt, A.detach() + 0 * A, B, C, chunk_size, D)


def default_scale(**inputs):
    return naive_gla(**{**inputs, "scale": None})


def default_scale_of_the_rule(**inputs):
    return naive_delta(**{**inputs, "scale": None})


def not_taken_back(**inputs):
    return naive_delta(**{**inputs, "k": 0.3 * inputs["k"], "v": inputs["v"] / 0.3})


def not_causal(q, k, v, softmax_scale, causal, deterministic):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, scale=softmax_scale, enable_gqa=True)
    return out.transpose(1, 2)


def no_activation(x, weight, bias, activation):
    out = F.conv1d(x.float(), weight[:, None], bias, padding=3, groups=len(weight))
    return out[..., : x.shape[2]].to(x.dtype)


def not_finite(x, weight, bias, activation):
    return naive_conv(x, weight, bias, activation=activation) * float("nan")


def failing(*args, **options):
    raise RuntimeError("out of resource: shared memory\nRequired: 1")


@pytest.mark.parametrize(
    ("kernel", "package", "function", "said"),
    [
        ("scan", "mamba_ssm", other_groups, "it disagrees with torch by "),
        ("scan", "mamba_ssm", no_gradient_of_A, "it disagrees with torch by 100% in gradient of A"),
        ("scan", "fla", default_scale, "it disagrees with torch by "),
        ("delta", "fla", default_scale_of_the_rule, "it disagrees with torch by "),
        ("delta", "fla", not_taken_back, "it disagrees with torch by "),
        ("attention", "flash_attn", not_causal, "it disagrees with torch by "),
        ("convolution", "causal_conv1d", no_activation, "it disagrees with torch by "),
        ("convolution", "causal_conv1d", not_finite, "it disagrees with torch by nan% in "),
        (
            "attention",
            "flash_attn",
            failing,
            "it fails at these shapes (RuntimeError: out of resource: shared memory)",
        ),
    ],
)
def test_the_trial_finds_who_does_not(kernel, package, function, said, install):
    install({(kernel, package): function})
    model = model_of(kernel)
    why = selection.trial(kernel, package, model, torch.device("cpu"), torch.bfloat16)
    assert why.startswith(said) and "\n" not in why


def test_the_trial_leaves_the_random_state_alone(install):
    install(NAIVE)
    before = torch.get_rng_state()
    selection.trial("convolution", "causal_conv1d", SMALL, torch.device("cpu"), torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


# The record.


class Stop(Exception):
    pass


def test_a_run_records_its_kernels_and_keeps_to_them(settings, tmp_path, monkeypatch, clean):
    config = settings()
    corpus = data.prepare(config.data, config.model.vocab_size, tmp_path / "data")
    execution = Execution(precision="float32", checkpoint_every=3, device="cpu")
    run = TrainRun("test", "smoke", "A", {}, 0, config, execution, Cost(), corpus=corpus.hash)
    folder, notes = tmp_path / "run", []

    def stop(step, loss):
        if step > 3:
            raise Stop

    with pytest.raises(Stop):
        loop.train(run, folder, tmp_path / "data", stop, note=notes.append)
    assert notes == ["kernels on cpu in float32: scan torch, attention torch, convolution torch"]
    plain = {"scan": "torch", "attention": "torch", "convolution": "torch"}
    assert read_json(folder / "run.json")["execution"]["kernels"] == plain
    with monkeypatch.context() as patch:
        patch.setattr(selection, "select", lambda *_: adapters.Kernels(scan="fla"))
        with pytest.raises(UserError, match="was begun with kernels = .*'scan': 'torch'.*'fla "):
            loop.train(run, folder, tmp_path / "data")
    loop.train(run, folder, tmp_path / "data")
    assert (folder / "done.json").exists()
    asked = dataclasses.replace(
        run, execution=Execution(kernels=KernelConfig(attention="flash_attn"), device="cpu")
    )
    with pytest.raises(UserError, match="execution.kernels.attention = 'flash_attn' is not usable"):
        loop.train(asked, tmp_path / "other", tmp_path / "data")
    assert asked.id == run.id


def test_kernels_are_set_on_the_command_line(smoke_runs):
    run = smoke_runs("projector", overrides=["execution.kernels.scan=torch"])[0]
    assert run.execution.kernels == KernelConfig(scan="torch")
    with pytest.raises(UserError, match="kernels.scan: Input should be 'auto', 'torch', 'mamba"):
        smoke_runs("projector", overrides=["execution.kernels.scan=triton"])


def test_an_experiment_is_found_by_folder_or_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    there = Path("experiments/some")
    there.mkdir(parents=True)
    assert _folder(Path("some")) == _folder(there) == there
    assert _folder(Path("other")) == Path("other")


def test_throughput_trains_and_counts(smoke_runs):
    run = smoke_runs("projector")[-1]
    execution = Execution(precision="float32", device="cpu", micro_batch=4)
    run = dataclasses.replace(run, execution=execution)
    found = throughput(run, steps=3, warmup=1, peak_flops=1e12)
    assert found["tokens_per_second"] * found["seconds_per_step"] == pytest.approx(8 * 32)
    assert found["utilisation"] == pytest.approx(found["flops_per_second"] / 1e12)
    assert found["kernels"]["scan"] == "torch" and found["device"] == "cpu"
    assert found["peak_memory"] is None and found["precision"] == "float32"
    first = throughput(run, steps=1, warmup=0)
    assert first["utilisation"] is None
    # An untrained model's loss is about log(vocabulary); then it learns the one batch.
    assert first["loss"] == pytest.approx(math.log(run.settings.model.vocab_size), abs=0.5)
    assert found["loss"] < first["loss"] - 0.5


def test_code_that_is_made_while_it_is_timed_is_an_error(smoke_runs, monkeypatch):
    run = smoke_runs("projector")[-1]
    run = dataclasses.replace(run, execution=Execution(precision="float32", device="cpu"))
    step = SuiteTrainer.step

    def slow(trainer, batch, number):
        if number == 2:
            torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(3))
        return step(trainer, batch, number)

    monkeypatch.setattr(SuiteTrainer, "step", slow)
    assert throughput(run, steps=2, warmup=3)["steps"] == 2
    torch._dynamo.reset()
    with pytest.raises(UserError, match="the 2 steps that are timed, behind 1 of warm-up: 1; "):
        throughput(run, steps=2, warmup=1)


# Compiled layers.


def steps_of_layers(settings, mixer, kernels=adapters.PLAIN, compiled=True, whole=False, count=4):
    """Three bfloat16 steps of a model of ``count`` layers: losses, and how many parts are made."""
    model = {"num_hidden_layers": count, "mixer": mixer}
    if mixer == "gdn":
        model["mixer_sizes"] = {"gdn": DELTA}
    config = settings(model=model)
    learner, counter = build(config, 0, kernels=kernels), CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    for layer in learner.model.model.layers:
        if compiled:
            layer.compile(dynamic=False, backend=counter, fullgraph=whole)
    batch = torch.randint(300, (4, 17), generator=torch.Generator().manual_seed(0))
    context, losses, frames = torch.autocast("cpu", torch.bfloat16), [], []
    for step in range(3):
        losses.append(train_step(learner, batch, config, step, context)[0].item())
        frames.append(counter.frame_count)
    return losses, frames


@pytest.mark.parametrize("mixer", ["both", "gdn"])
def test_the_compiler_never_meets_what_it_cannot_trace(mixer, settings, monkeypatch):
    """torch 2.11 cannot trace whether a device knows autocast: a layer is one graph even so."""
    unknown = torch.compiler.disable(precision.is_autocast_available)
    monkeypatch.setattr(precision, "is_autocast_available", unknown)
    _, frames = steps_of_layers(settings, mixer, whole=True)
    _, of_two = steps_of_layers(settings, mixer, whole=True, count=2)
    assert frames == of_two == 3 * frames[:1]


@pytest.mark.parametrize(("kernel", "package"), CASES)
def test_a_package_is_called_between_compiled_parts(kernel, package, settings, install):
    """It is not traced: all layers share their parts, and further steps make none."""
    install({**NAIVE, (kernel, package): torch.compiler.disable(NAIVE[kernel, package])})
    mixer = "gdn" if kernel == "delta" else "both"
    kernels = adapters.Kernels(**{kernel: package})
    losses, frames = steps_of_layers(settings, mixer, kernels)
    _, of_two = steps_of_layers(settings, mixer, kernels, count=2)
    assert frames == of_two == 3 * frames[:1] and frames[0] > 1
    plain, _ = steps_of_layers(settings, mixer, kernels, compiled=False)
    # The second tells of gradients; later ones carry off what was rounded.
    assert losses[:2] == pytest.approx(plain[:2], abs=0.01) and plain[1] < plain[0] - 0.1


# On a machine with a GPU and the packages.


def need(package: str, kernel: str) -> None:
    forget()
    if why := adapters.missing(package, kernel):
        pytest.skip(f"{package}: {why}")


@pytest.mark.cuda
@pytest.mark.parametrize(("kernel", "package", "shape"), EVERY)
def test_packages_agree_with_torch(kernel, package, shape):
    need(package, kernel)
    torch.manual_seed(0)
    leaves, function, exact = SHAPES[kernel][0](*shape)
    low = half(leaves, exact, CUDA)
    true, weight = outcome(function, {name: leaf.float() for name, leaf in low.items()})
    found, _ = outcome(partial(function, implementation=package), low, weight)
    assert {name: found[name].dtype for name in low} == {n: t.dtype for n, t in low.items()}
    far = distances(found, true)
    assert far["output"] < 0.02 and max(far.values()) < 0.05, far


@pytest.mark.cuda
@pytest.mark.parametrize(("kernel", "package"), CASES)
def test_packages_pass_the_trial_at_the_size_of_the_paper(kernel, package):
    need(package, kernel)
    mixer = "gdn" if kernel == "delta" else "both"
    config = ModelConfig(mixer=mixer)
    assert selection.unusable(kernel, package, config, CUDA, "bfloat16") is None


@pytest.mark.cuda
@pytest.mark.parametrize(("kernel", "package"), CASES)
def test_training_with_a_package_follows_torch(kernel, package, settings):
    need(package, kernel)
    sizes = {"head_dim": 16, "mamba_d_ssm": 64, "mamba_d_state": 16, "mamba_chunk_size": 16}
    if kernel == "delta":
        own = {"heads": 2, "key_dim": 16, "value_dim": 32}
        sizes |= {"mixer": "gdn", "mixer_sizes": {"gdn": own}}
    config = settings(model=sizes, train={"steps": 20, "sequence_length": 64})
    batch = torch.randint(300, (4, 65), generator=torch.Generator().manual_seed(0)).to(CUDA)
    losses = {}
    for name, chosen in (
        ("torch", adapters.PLAIN),
        ("other", adapters.Kernels(**{kernel: package})),
    ):
        learner = build(config, 0, CUDA, kernels=chosen)
        context = torch.autocast("cuda", torch.bfloat16)
        losses[name] = [
            train_step(learner, batch, config, step, context)[0].item() for step in range(20)
        ]
    assert losses["other"] == pytest.approx(losses["torch"], abs=0.02)
    assert losses["other"][-1] < losses["other"][0] - 0.1
