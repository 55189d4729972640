"""What is a matrix on any model, and one line for what cannot work as it was written."""

import contextlib
import copy
import pickle
import warnings

import pytest
import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import lrm
from lrm.errors import UserError
from lrm.multipliers.effective import EffectiveWeight
from lrm.multipliers.layout import layout
from lrm.multipliers.roles import roles
from lrm.multipliers.sharding import whole


class Odd(nn.Module):
    """Parameters of torch's own modules, and some that their names alone describe."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.recurrent = nn.GRU(4, 4)
        self.up = nn.ConvTranspose1d(4, 6, 2)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.time_mix = nn.Parameter(torch.ones(4, 4))
        self.W = nn.Parameter(torch.ones(4, 4))
        self.table = nn.Parameter(torch.ones(4, 4))
        self.keys = nn.Linear(4, 4)
        self.values = nn.Parameter(torch.ones(4, 4))


def test_modules_of_torch_and_the_users_word():
    model = Odd()
    found = roles(model)
    matrices = {name for name, role in found.items() if role == "matrix"}
    assert matrices == {"attention.in_proj_weight", "attention.out_proj.weight",
                        "recurrent.weight_ih_l0", "recurrent.weight_hh_l0", "W",
                        "keys.weight"}  # fmt: skip
    assert found["up.weight"] == "convolution"
    assert layout(model.up, "weight", model.up.weight).row == 1
    found = roles(model, {"*": "vector", "table": "matrix"})
    assert [name for name, role in found.items() if role == "matrix"] == ["table"]
    with pytest.raises(UserError, match="role 'metrix' of 'table': use one of matrix"):
        roles(model, {"table": "metrix"})
    with pytest.raises(UserError, match="role: no parameter's name matches 'tabel'"):
        roles(model, {"tabel": "matrix"})

    handle = lrm.attach_multipliers(model, "hidden", role={"table": "matrix", "values": "matrix"})
    assert {"table", "values"} <= set(handle.effective)
    kinds = {id(p): g["kind"] for g in lrm.build_param_groups(model, 1.0, 0.1) for p in g["params"]}
    assert kinds[id(model._parameters["table"])] == "matrix"
    assert kinds[id(model.time_mix)] == "vector"
    names = list(model.state_dict())
    assert "multipliers.values.all.row" in names
    lrm.merge_multipliers(model)
    assert not any("multipliers" in name for name in model.state_dict())


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.Flatten(),
                         nn.Linear(8, 2))  # fmt: skip


def test_convolutions_are_not_left_out_in_silence():
    with pytest.warns(UserWarning, match="'all' leaves out convolutions, which hold most weights"):
        lrm.attach_multipliers(convolutional())
    with pytest.warns(UserWarning, match="'all' leaves out convolutions"):
        lrm.attach_multipliers(convolutional(), {"preset": "all", "4.weight": "scalar"})
    model = convolutional()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle = lrm.attach_multipliers(model, "convolutions")
    assert set(handle.effective) == {"0.weight", "2.weight", "4.weight"}
    x = torch.randn(2, 3, 5, 5)
    before = model.eval()(x)  # in training a BatchNorm takes the factor out again
    with torch.no_grad():
        handle.scalings["0.weight"].row.mul_(2.0)
    assert not torch.allclose(model(x), before)
    groups = lrm.build_param_groups(model, 1.0, 0.1)
    decay = {group["kind"]: group["weight_decay"] for group in groups}
    assert decay == {"convolution": 0.1, "vector": 0.0, "matrix": 0.1, "multiplier": 2e-3}


def test_multipliers_that_something_froze_are_told():
    model = two()
    handle = lrm.attach_multipliers(model)
    for parameter in model.parameters():  # as peft does
        parameter.requires_grad_(False)
    with pytest.warns(UserWarning, match="no multiplier learns: something froze them"):
        assert lrm.build_param_groups(model, 1.0, 0.1) == []
    next(iter(handle.scalings.values())).row.requires_grad_(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(lrm.build_param_groups(model, 1.0, 0.1)) == 1


def test_layers_without_a_parameter_that_is_a_matrix_are_told():
    class Quantized(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("qweight", torch.zeros(4, 4, dtype=torch.int32))

    model = nn.Sequential(nn.Embedding(8, 4), Quantized())
    with pytest.warns(UserWarning, match="'all' found no matrix in the layers of this model"):
        lrm.attach_multipliers(model)


def test_heads_and_matrices_by_their_names():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.output = nn.Embedding(9, 4), nn.Linear(4, 9)
            self.layer = nn.ModuleDict({"output": nn.Linear(9, 4), "out_proj": nn.Linear(4, 4)})
            self.wq, self.qkv = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(12, 4))
            self.quality, self.wpe = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(6, 4))

    found = {name: role for name, role in roles(Model()).items() if "bias" not in name}
    assert found == {
        "tokens.weight": "embedding", "output.weight": "head", "layer.output.weight": "matrix",
        "layer.out_proj.weight": "matrix", "wq": "matrix", "qkv": "matrix", "quality": "vector",
        "wpe": "vector",
    }  # fmt: skip


def test_torchs_own_layers_come_before_the_name_of_a_class():
    class NormedLinear(nn.Linear):
        pass

    class ConvNormAct(nn.Conv2d):
        pass

    class Conv1D(nn.Conv1d):
        pass

    class LayerNormLinear(nn.Module):
        """As TransformerEngine's: a norm and a matrix in one."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 6))

    class PlainNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

    for layer, role in (
        (NormedLinear(4, 6), "matrix"),
        (ConvNormAct(3, 8, 3), "convolution"),
        (Conv1D(4, 8, 3), "convolution"),
        (transformers.pytorch_utils.Conv1D(8, 4), "matrix"),
        (PlainNorm(), "vector"),
        (LayerNormLinear(), "matrix"),
    ):
        assert roles(layer)["weight"] == role, type(layer).__name__
    layer = Conv1D(4, 8, 3)
    assert layout(layer, "weight", layer.weight).row == 0


def test_a_word_of_positions_is_one_of_the_parameters_own():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.rel = nn.Parameter(torch.ones(12, 4)), nn.Parameter(torch.ones(6, 4))

    found = roles(nn.ModuleDict({"relative": nn.ModuleDict({"inner": Attention()})}))
    assert list(found.values()) == ["matrix", "vector"]


def test_a_role_may_be_said_again_behind_multipliers():
    """The pattern is of the model as it was, and multipliers are no matrices."""

    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(torch.randn(4, 6))

        def forward(self, x):
            return x @ self.W

    model, role = nn.Sequential(Turned()), {"*": "transposed"}
    lrm.attach_multipliers(model, "all", role=role)
    groups = lrm.build_param_groups(model, lr=1e-3, weight_decay=0.1, role=role)
    assert sum(len(group["params"]) for group in groups) == 3


def two() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 3)))


def test_the_report_and_norms():
    model = two()
    handle = lrm.attach_multipliers(model, row={"parametrization": "log"})
    lines = repr(handle).splitlines()
    assert lines[0] == ("multipliers (forward) on 2 of 4 parameters, which hold 42 of 51 entries; "
                        "19 entries added (37.25%)")  # fmt: skip
    assert [line.split() for line in lines[1:3]] == [
        ["parameter", "number", "role", "shape", "multipliers"],
        ["0.weight", "1", "matrix", "6×4", "row", "(log)", "+", "column"],
    ]
    assert lines[3].split() == ["0.bias", "1", "vector", "6", "none"]
    with torch.no_grad():
        handle.scalings["0.weight"].column.fill_(3.0)
    norms = handle.norms()
    rms = model[0]._parameters["weight"].square().mean().sqrt().item()
    assert norms["weight_norm/0.weight"] == pytest.approx(rms)
    assert norms["effective_norm/0.weight"] == pytest.approx(3 * rms)
    assert norms["column_multiplier/0.weight"] == 3.0 and norms["row_multiplier/1.1.weight"] == 1.0
    lrm.merge_multipliers(model)
    assert repr(handle) == "no multipliers; they were merged" and handle.norms() == {}


def test_the_report_says_why_there_are_none_and_what_is_odd():
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=8)
    )
    model.lm_head = nn.Linear(16, 32)  # no longer tied
    own = nn.Module()
    own.kernel = nn.Parameter(torch.ones(4, 4))
    model = nn.ModuleDict({"text": model, "image": nn.Conv2d(3, 2, 3), "own": own}).bfloat16()
    block = model["text"].transformer.h[0]
    block.attn.c_attn.weight.requires_grad_(False)
    lines = repr(lrm.attach_multipliers(model, "hidden")).splitlines()
    told = {line.split()[0]: line.split("  ")[-1].strip() for line in lines[2:-3]}
    assert told["text.transformer.wte.weight"] == "none, by the placement"
    assert told["text.lm_head.weight"].startswith("none, as heads by default")
    assert told["image.weight"] == "none; placement='convolutions' has them"
    assert told["text.transformer.wpe.weight"] == "none"
    assert [line.split(" (")[0] for line in lines[-3:]] == [
        "1 frozen: their multipliers learn and they do not",
        "5 in half precision: their multipliers are in float32",
        "1 whose role is told by their names alone, matrices as outputs × inputs; role={...} says "
        "another one, such as 'transposed'",
    ]
    odd = nn.ModuleList([nn.Linear(4, 4), nn.Module()])
    odd[1].codebook = nn.Parameter(torch.ones(4, 4))
    [line] = [said for said in repr(lrm.attach_multipliers(odd, "hidden")).splitlines()
              if "codebook" in said and "taken for vectors" in said]  # fmt: skip
    assert line.startswith("1 of several rows and columns that their names do not tell")
    model.to(torch.float8_e4m3fn)
    assert {p.dtype for n, p in model.named_parameters() if "multipliers" in n} == {torch.float32}


def test_what_cannot_be_attached_leaves_the_model_as_it_was(monkeypatch):
    """A scripted layer, a module with such a name, and a failure behind some layers."""
    scripted = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4)))
    with pytest.raises(UserError, match="1.weight belongs to a scripted module, .*, and then"):
        lrm.attach_multipliers(scripted, "hidden")
    named = two()
    named[0].multipliers = nn.Linear(1, 1)
    with pytest.raises(UserError, match="'multipliers' of its own, .*; rename it, or give"):
        lrm.attach_multipliers(named, {"0.weight": "row"})
    model, build = two(), EffectiveWeight.__init__
    names = list(model.state_dict())

    def fail(self, weight, *arguments):
        if weight is model[1][1]._parameters["weight"]:
            raise RuntimeError("no memory")
        build(self, weight, *arguments)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="no memory"):
        patch.setattr(EffectiveWeight, "__init__", fail)
        lrm.attach_multipliers(model)
    for each in (scripted, model):
        assert type(each[0]) is nn.Linear and not hasattr(each[0], "multipliers")
    assert list(model.state_dict()) == names and lrm.merge_multipliers(model) is model
    assert len(lrm.attach_multipliers(model).effective) == 2


def test_a_tensor_of_another_type_is_called_by_it():
    with FakeTensorMode():
        model = two()
        with pytest.raises(UserError, match="0.weight is of type FakeTensor; attach before"):
            lrm.attach_multipliers(model)


@pytest.mark.parametrize("inner", [False, True])
def test_multipliers_that_distributed_data_parallel_does_not_know_are_told(inner):
    def attach(wrapped):
        lrm.attach_multipliers(wrapped.module if inner else wrapped)
        wrapped(torch.ones(2, 4))

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        message = "DistributedDataParallel does not know of 0.weight.row; call" if inner else (
            "call lrm.attach_multipliers before DistributedDataParallel")  # fmt: skip
        with pytest.raises(UserError, match=message):
            attach(nn.parallel.DistributedDataParallel(two()))
        model = two()
        lrm.attach_multipliers(model)
        model(torch.ones(2, 4))
        for _ in range(2):
            nn.parallel.DistributedDataParallel(model)(torch.ones(2, 4)).sum().backward()
        # A copy asks of its own multipliers, and not of those that it was copied from.
        model = two()
        lrm.attach_multipliers(model)
        copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        for own in (copied, pickled, model):
            nn.parallel.DistributedDataParallel(own)(torch.ones(2, 4)).sum().backward()
            assert not own._forward_pre_hooks
    finally:
        dist.destroy_process_group()


def test_a_preset_with_exceptions_and_rates_by_kind():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
    placement = {"preset": "all", "2.weight": "scalar", "1.*": "none"}
    handle = lrm.attach_multipliers(model, placement)
    axes = {name: found.parts[0].axes for name, found in handle.effective.items()}
    assert axes == {"0.weight": ("row", "column"), "2.weight": ("scalar",)}
    groups = lrm.build_param_groups(
        model, 1e-3, 0.1, by_kind={"embedding": {"lr": 0.5}, "multiplier": {"weight_decay": 0.0}},
        no_decay=["2.*"],
    )  # fmt: skip
    found = {(g["kind"], g["lr"], g["weight_decay"]): len(g["params"]) for g in groups}
    assert found == {("embedding", 0.5, 0.1): 1, ("matrix", 1e-3, 0.1): 1,
                     ("vector", 1e-3, 0.0): 2, ("head", 1e-3, 0.0): 1,
                     ("multiplier", 1e-2, 0.0): 3}  # fmt: skip
    with pytest.raises(UserError, match="by_kind: 'heads' may be one of matrix, embedding, head"):
        lrm.build_param_groups(model, 1e-3, 0.1, by_kind={"heads": {"lr": 1.0}})
    with pytest.raises(UserError, match=r"no_decay: no parameter's name matches 'nor\*'"):
        lrm.build_param_groups(model, 1e-3, 0.1, no_decay=["nor*"])


def test_slips_get_one_line():
    model = two()
    for act, message in [
        (lambda: lrm.clip_grad_norm_(model.parameters(), 1.0),
         "lrm.clip_grad_norm_ takes the model, not generator; pass model, not model.parameters"),
        (lambda: lrm.build_param_groups(model.parameters(), 1e-3, 0.1), "takes the model"),
        (lambda: lrm.attach_multipliers(model, None), "placement None is none; give a preset"),
        (lambda: lrm.attach_multipliers(model, {"preset": "most"}), "unknown placement 'most'"),
        (lambda: lrm.attach_multipliers(model, lambda name, module, parameter: True),
         "0.weight: True is no kind of multipliers; use one of none, scalar"),
        (lambda: lrm.attach_multipliers(model, "scalar", row={"parametrization": "lgo"}),
         "unknown parametrization 'lgo'; use one of direct, log"),
        (lambda: lrm.attach_multipliers(model, lr=-1.0), "lr is -1.0; give a number that is not"),
        (lambda: lrm.build_param_groups(model, -1e-3, 0.1), "lr is -0.001; give a number"),
        (lambda: lrm.clip_grad_norm_(model, 1.0), "no gradients to clip; .* after backward"),
        (lambda: lrm.attach_multipliers(nn.Embedding(5, 4, sparse=True), {"weight": "row"}),
         "weight has sparse gradients; build its module with sparse=False"),
        (lambda: lrm.attach_multipliers(model, {0: "row"}), "pattern 0 is no text; give a param"),
        (lambda: lrm.attach_multipliers(model, role={0: "matrix"}), "pattern 0 is no text"),
        (lambda: lrm.attach_multipliers(model, role={"0.weight": ["matrix"]}),
         r"role \['matrix'\] of '0.weight': use one of matrix"),
        (lambda: lrm.attach_multipliers(model, {"0.weight": [(0, None, "row")]}),
         "0.weight: rows 0 to None are no whole numbers"),
        (lambda: lrm.attach_multipliers(model, {"0.weight": [("0", "3", "row")]}),
         "0.weight: rows '0' to '3' are no whole numbers"),
        (lambda: lrm.attach_multipliers(model, {"0.weight": [(0, 3.0, "row")]}),
         "0.weight: rows 0 to 3.0 are no whole numbers"),
        (lambda: lrm.attach_multipliers(model, {"0.weight": [(0, 3, "row"), (0, 3, None)]}),
         "0.weight: rows 0 to 3 overlap others"),
        (lambda: lrm.attach_multipliers(model, {"0.weight": [(0, 3, ["row"])]}),
         r"0.weight: unknown kind \['row'\]; use one of none, scalar"),
        (lambda: lrm.attach_multipliers(model, lr=torch.tensor([1e-3, 1e-2])),
         r"lr is tensor\(\[0.0010, 0.0100\]\); give a number"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=message):
            act()
        assert type(model[0]) is nn.Linear and list(model.state_dict()) == list(two().state_dict())
    quantized = nn.Linear(4, 4)
    quantized.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)
    with pytest.raises(UserError, match="weight holds integers .*int8.; attach before quantizing"):
        lrm.attach_multipliers(quantized)
    coarse = nn.Linear(4, 4)
    coarse.weight = nn.Parameter(torch.zeros(4, 4).to(torch.float8_e4m3fn))
    with pytest.raises(UserError, match="weight is in torch.float8_e4m3fn, too coarse"):
        lrm.attach_multipliers(coarse)


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_inner_modules_and_models_on_the_meta_device(implementation):
    model = two()
    lrm.attach_multipliers(model, implementation=implementation)
    with pytest.raises(UserError, match="Sequential is part of the model that has the multipl"):
        lrm.merge_multipliers(model[1])
    with pytest.raises(UserError, match="has multipliers already"):
        lrm.attach_multipliers(model[1])
    model[0].weight.requires_grad_(False)
    lrm.merge_multipliers(model)
    assert not model[0].weight.requires_grad and model[1][1].weight.requires_grad
    assert lrm.merge_multipliers(model) is model

    with torch.device("meta"):
        model = two()
    handle = lrm.attach_multipliers(model, implementation=implementation, parametrization="log")
    model.to_empty(device="cpu")
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    for _, multiplier, raw in handle.named():
        assert (multiplier.parametrization.value(raw) == 1.0).all()
    assert 0 < model[0].weight.abs().max() <= 0.5
    weight = model[0]._parameters["weight"]
    assert torch.equal(model[0].weight, weight)


class Bypass(nn.Module):
    """Computes with the parameter, and not with what its module gives."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.cached = [self.inner.weight]

    def forward(self, x):
        return x @ self.cached[0].T


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_multipliers_that_nothing_computes_with_are_told(implementation):
    model = Bypass()
    lrm.attach_multipliers(model, "hidden", implementation=implementation)
    optimizer = torch.optim.AdamW(lrm.build_param_groups(model, 1e-2, 0.1))
    model(torch.ones(2, 4)).sum().backward()
    with pytest.raises(UserError, match="inner.weight has a gradient and its multipliers have no"):
        optimizer.step()


def test_multipliers_that_were_rounded_are_told():
    model = nn.Sequential(nn.Linear(4, 3))
    handle = lrm.attach_multipliers(model, "hidden")
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    assert "1 whose multipliers are in half precision, too coarse to learn in" in repr(handle)
    optimizer = torch.optim.AdamW(lrm.build_param_groups(model, 1e-2, 0.1))
    model(torch.ones(2, 4).bfloat16()).sum().backward()
    with pytest.raises(UserError, match="multipliers of 0.weight are in torch.bfloat16, too coa"):
        optimizer.step()


def test_another_module_of_the_class_is_a_plain_one():
    model = nn.Sequential(nn.Linear(4, 3))
    lrm.attach_multipliers(model, "hidden")
    other = type(model[0])(5, 2, bias=False)
    assert type(other) is nn.Linear and other.weight.shape == (2, 5) and other.bias is None


def test_a_classifier_is_no_head_whatever_its_shape_and_name():
    """As many classes as kinds of tokens, and a module that is called a head."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 16, "vocab_size": 40}  # fmt: skip
    for kinds in (1, 2):
        config = transformers.BertConfig(**sizes, type_vocab_size=kinds, num_labels=kinds)
        model = transformers.BertForSequenceClassification(config)
        assert lrm.attach_multipliers(model).roles["classifier.weight"] == "matrix"
    vision = nn.ModuleDict({"positions": nn.Embedding(9, 8), "tags": nn.Embedding(5, 8),
                            "layer": nn.Linear(8, 8), "head": nn.Linear(8, 10)})  # fmt: skip
    assert lrm.attach_multipliers(vision).roles["head.weight"] == "matrix"
    own = nn.ModuleDict({"layer": nn.Linear(8, 8), "head": nn.Linear(8, 10)})
    assert lrm.attach_multipliers(own).roles["head.weight"] == "head"
    words = nn.ModuleDict({"tokens": nn.Embedding(10, 4), "head": nn.Linear(8, 10)})
    assert lrm.attach_multipliers(words).roles["head.weight"] == "head"


def test_a_head_in_a_wrapper_is_a_head():
    peft = pytest.importorskip("peft")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(vocab_size=32, num_attention_heads=2, **sizes)
    for wanted, heads in (
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
         ["original_module", "modules_to_save.default"]),
        ({"target_modules": ["q_proj", "lm_head"]}, ["base_layer"]),
    ):  # fmt: skip
        model = peft.get_peft_model(
            transformers.LlamaForCausalLM(config), peft.LoraConfig(**wanted)
        )
        found = [name for name, role in roles(model).items() if role == "head"]
        assert found == [f"base_model.model.lm_head.{head}.weight" for head in heads]


def test_the_older_fsdp_is_refused():
    class FullyShardedDataParallel(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

    with pytest.raises(UserError, match="fully_shard, behind lrm.attach_multipliers"):
        lrm.attach_multipliers(FullyShardedDataParallel(), "hidden")


def test_what_cannot_be_multiplied_or_cut_is_told():
    model = nn.Sequential(
        torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), nn.Linear(6, 4)
    )
    with pytest.raises(UserError, match="is parametrized; take that away first"):
        lrm.attach_multipliers(model, {"0.parametrizations.weight.original1": "row"})
    with pytest.raises(UserError, match="rows True to 3 are no whole numbers"):
        lrm.attach_multipliers(model, {"1.weight": [(True, 3, "row")]})


def test_all_is_merged_or_nothing():
    """One of two parts has norms behind its matrices, which cannot be folded."""
    parts = nn.ModuleDict({"plain": nn.Linear(4, 4), "other": nn.Linear(4, 4)})
    first, second = (lrm.attach_multipliers(part, {"weight": "row"}) for part in parts.values())
    second.stays = "it has norms behind matrices"
    with pytest.raises(UserError, match="norms behind matrices"):
        lrm.merge_multipliers(parts)
    assert len(first.effective) == len(second.effective) == 1


@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
def test_gradients_on_two_meshes_of_devices_are_clipped_together(norm_type):
    """As with parallel experts beside layers that are sharded otherwise."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model = copy.deepcopy(plain)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for layer, shape in zip(model, [(1,), (1, 1)], strict=False):
            mesh = init_device_mesh("cpu", shape)
            for name, each in list(layer.named_parameters()):
                shared = distribute_tensor(each.detach(), mesh, [Replicate()] * len(shape))
                setattr(layer, name, nn.Parameter(shared))
        generator = torch.Generator().manual_seed(0)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            other.grad = torch.randn(other.shape, generator=generator)
            one.grad = other.grad.clone()
            if hasattr(one, "device_mesh"):
                places = [Replicate()] * one.device_mesh.ndim
                one.grad = distribute_tensor(one.grad, one.device_mesh, places)
        want = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5, norm_type)
        torch.testing.assert_close(lrm.clip_grad_norm_(model, 0.5, norm_type), want)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(whole(one.grad), other.grad)
    finally:
        dist.destroy_process_group()


def test_a_tied_weight_whose_first_module_was_replaced_is_told():
    """The multipliers went with it, though the other module still reads through them."""
    config = transformers.LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8,
                                      num_hidden_layers=1, num_attention_heads=2,
                                      tie_word_embeddings=True)  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    lrm.attach_multipliers(model, "scalar")
    model.set_input_embeddings(nn.Embedding(16, 8))
    with pytest.raises(UserError, match="embed_tokens.weight has multipliers, and its layer is no"):
        lrm.build_param_groups(model, lr=1e-3, weight_decay=0.1)
    lrm.merge_multipliers(model)
    lrm.attach_multipliers(model, "scalar")
    assert lrm.build_param_groups(model, lr=1e-3, weight_decay=0.1)


@pytest.mark.parametrize("placement", ["scalar", "all", {"*": "row"}])
@pytest.mark.parametrize("within", [False, True])
def test_a_traced_model_is_saved_and_loaded(placement, within, tmp_path):
    """As the page says of ``torch.jit.trace``, also of weights that are kept."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    lrm.attach_multipliers(model, placement)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    x = torch.randn(16, 8)
    with lrm.same_weights(model) if within else contextlib.nullcontext():
        model(x)
        traced = torch.jit.trace(model, x)
    traced.save(tmp_path / "traced.pt")
    found = torch.jit.load(tmp_path / "traced.pt")(x)
    torch.testing.assert_close(found, model(x))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_cell_is_read_step_by_step(kind):
    """Its output and gradients are those of the merged cell and of equation (4)."""
    torch.manual_seed(0)
    cell = kind(4, 5).double()
    handle = lrm.attach_multipliers(cell, "hidden")
    assert set(handle.weights) == {"weight_ih", "weight_hh"}
    for parameter in cell.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    x = torch.randn(3, 2, 4).double()

    def last(cell):
        state = None
        for each in x:
            state = cell(each, state)
        return state[0] if isinstance(state, tuple) else state

    alone = last(cell)
    with lrm.same_weights(cell):
        together = last(cell)
    torch.testing.assert_close(alone, together, rtol=1e-14, atol=1e-14)
    given = [torch.autograd.grad(y.square().sum(), list(cell.parameters())) for y in
             (alone, together)]  # fmt: skip
    torch.testing.assert_close(*given, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(last(lrm.merge_multipliers(cell)), alone, rtol=1e-12, atol=1e-13)


def test_a_bag_of_embeddings_is_an_embedding():
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(10, 4).double()
    model = nn.Sequential(bag, nn.Linear(4, 3).double())
    groups = lrm.build_param_groups(model, lr=0.1, weight_decay=0.1)
    assert [g["kind"] for g in groups if any(p is bag.weight for p in g["params"])] == ["embedding"]
    lrm.attach_multipliers(model, "all")
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    tokens = torch.tensor([[1, 2, 2], [7, 0, 9]])
    before = model(tokens)
    torch.testing.assert_close(lrm.merge_multipliers(model)(tokens), before)
