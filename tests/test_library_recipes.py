"""Each recipe of the page, run as it stands, and what it should leave."""

import ast
import importlib.util
import re
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import peft
import pytest
import torch
import torch.distributed as dist
import transformers
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR
from torch.optim.swa_utils import SWALR

import lrm
from lrm.errors import UserError
from lrm.multipliers.attach import IMPLEMENTATIONS, Multipliers
from lrm.multipliers.report import Attached
from lrm.multipliers.sharding import whole

PAGE = Path(lrm.__file__).parent / "multipliers" / "RECIPES.md"


def blocks() -> dict[str, str]:
    """The code of each section, by its title; the first is what all begin with."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    found = {}
    for section in sections:
        if code := re.search(r"```python\n(.*?)```", section, re.DOTALL):
            found[section.partition("\n")[0]] = code.group(1)
    return found


BEGIN, *RECIPES = blocks()
# Recipes that train nothing.
STILL = ("Another vocabulary", "Checkpoints", "Going on with another placement", "A log of norms",
         "Sharded checkpoints")  # fmt: skip
# Runs in several processes alone.
SHARDED = "The Trainer under FSDP"
# accelerate shards on GPUs alone, and is told here that processes on CPUs are some.
AS_ON_GPUS = """
from accelerate.state import PartialState
from accelerate.utils import DistributedType


def begin(self, *arguments, init=PartialState.__init__, **named):
    init(self, *arguments, **named)
    if self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU


PartialState.__init__ = begin
"""


def need(code: str) -> None:
    """Skip a test of ``code`` that imports what is not installed, with a warning in the summary."""
    for node in ast.walk(ast.parse(code)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in {name.partition(".")[0] for name in names}:
            if importlib.util.find_spec(name) is None:
                told = f"{name} is not installed, its recipe was not run; see lrm-suite[recipes]"
                warnings.warn(told, stacklevel=2)
                pytest.skip(told)


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Runs a recipe in a new folder; what its names then mean."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(title: str, implementation: str = "forward", **given) -> dict:
        names: dict = {}
        torch.manual_seed(0)
        exec(compile(blocks()[BEGIN], BEGIN, "exec"), names)
        names |= given
        attached: list[Attached] = []

        def attach(*arguments, **named):
            attached.append(lrm.attach_multipliers(
                *arguments, **{"implementation": implementation, **named}
            ))  # fmt: skip
            return attached[-1]

        # Of merged models the values that they had.
        class Lrm:
            attach_multipliers = staticmethod(attach)
            __getattr__ = staticmethod(lambda name: getattr(lrm, name))

        merge = Multipliers.merge
        learned: dict[str, torch.Tensor] = {}

        def note(handle):
            for name, _, raw in handle.named():
                learned[name] = whole(raw.detach()).clone()

        def noting(handle):
            note(handle)
            return merge(handle)

        with monkeypatch.context() as patch:
            patch.setattr(Multipliers, "merge", noting)
            # A minute less than with the default one, whose C++ the suite's own tests compile.
            patch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
            code = blocks()[title].replace("import torch, transformers, lrm", "")
            names["lrm"] = Lrm()
            if title == "Several processes":
                # As torchrun does it: who starts the process keeps the store, on a free port.
                store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
                for name, value in of_torchrun(store.port).items():
                    patch.setenv(name, value)
            exec(compile(code, title, "exec"), names)
        for handle in attached:
            note(handle)
        names["learned"] = learned
        return names

    return run


def of_torchrun(port: int) -> dict[str, str]:
    """The environment that torchrun gives to one process."""
    return {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


@pytest.mark.parametrize("title", [title for title in RECIPES if title != SHARDED])
def test_recipe(title, recipe):
    need(blocks()[title])
    names = recipe(title)
    assert names["learned"]
    if title not in STILL:
        assert all((value != 1).any() for value in names["learned"].values())
    before = transformers.LlamaForCausalLM(names["config"])
    for folder in ("merged", "average"):
        if Path(folder).exists():
            loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
            assert list(loaded.state_dict()) == list(before.state_dict())
    if title == "transformers' Trainer":
        tokens = names["batches"][0]
        loaded = transformers.AutoModelForCausalLM.from_pretrained("merged")
        with torch.no_grad():
            want = names["loss_of"](names["model"].eval(), tokens)
            torch.testing.assert_close(names["loss_of"](loaded, tokens), want)
        state = torch.load("trainer/checkpoint-6/optimizer.pt", weights_only=True)
        assert len(state["param_groups"]) == 5
        rates = [group["lr"] / group["initial_lr"] for group in state["param_groups"]]
        assert rates == pytest.approx([0.1] * 5, abs=0.01)  # the floor of the schedule
    elif title in ("Checkpoints", "Sharded checkpoints"):
        tokens = names["batches"][0]
        losses = [names["loss_of"](names[name], tokens) for name in ("model", "again")]
        assert losses[0] == losses[1]
    elif title == "Lightning":
        tokens, training = names["batches"][0], names["training"]
        again = names["Training"].load_from_checkpoint("lightning.ckpt")
        assert lrm.effective_weights(again.model)
        lrm.merge_multipliers(again.model)
        for name, weight in again.model.state_dict().items():
            assert torch.equal(weight, training.model.state_dict()[name]), name
        state = torch.load("lightning.ckpt", weights_only=False)["optimizer_states"][0]
        assert len(state["param_groups"]) == 5
    elif title == "TRL":
        assert len(names["trainer"].optimizer.param_groups) == 5
        assert names["trainer"].state.global_step == 6
    elif title == "Quantizing by torchao":
        tokens = names["batches"][0]
        want, found = names["want"], names["merged"](tokens).logits
        assert type(names["merged"].model.layers[0].mlp.up_proj.weight).__name__ == "Int8Tensor"
        assert 0 < (found - want).abs().max() < 0.05 * want.abs().max()
        with pytest.raises(UserError, match="is of type Int8Tensor; attach before"):
            lrm.attach_multipliers(names["merged"])
        lrm.attach_multipliers(before)
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        with pytest.raises(UserError, match=r"cannot be replaced; .* merge the multipliers first"):
            quantize_(before, Int8WeightOnlyConfig())
    elif title == "LoRA beside multipliers":
        beside, again = names["beside"], names["again"].state_dict()
        # Rows and columns of two matrices in each of two layers, and what they are.
        assert sum(".multipliers." in name for name in beside) == 8 and len(beside) == 9
        assert all(torch.equal(again[name], value) for name, value in beside.items())
        with torch.no_grad():
            logits = [names[name](names["batches"][0]).logits for name in ("again", "merged")]
        torch.testing.assert_close(*logits)
    elif title == "Going on with another placement":
        with torch.no_grad():
            logits = [names[name].eval()(names["batches"][0]).logits for name in ("model", "again")]
        torch.testing.assert_close(*logits)
    elif title == "A log of norms":
        assert "model.layers.*.mlp.up_proj.weight" in repr(names["handle"])
        assert all(value > 0 for value in names["log"].values())


@pytest.mark.parametrize("title", ["transformers' Trainer", "accelerate", "Several processes",
                                   "Schedules, micro-batches and a gradient scaler"])  # fmt: skip
def test_recipes_with_the_other_implementation(title, recipe):
    """The same multipliers to rounding, in float32."""
    found = [recipe(title, implementation)["learned"] for implementation in IMPLEMENTATIONS]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_compiled_recipe_trains_as_without_a_compiler(recipe, monkeypatch):
    compiled = recipe("torch.compile")["learned"]
    monkeypatch.setattr(torch, "compile", lambda model, **how: model)
    torch.testing.assert_close(recipe("torch.compile")["learned"], compiled, rtol=1e-4, atol=1e-5)


def test_muon_moves_matrices_and_not_the_stacks_of_experts(recipe):
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=24,
        num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_experts=4, num_experts_per_tok=2,
    ))  # fmt: skip
    names = recipe("Muon for the matrices", model=model)
    muon, adamw = ([p for g in o.param_groups for p in g["params"]] for o in names["optimizers"])
    assert len(muon) == 5 and all(p.dim() == 2 for p in muon)  # q, k, v, out and the router
    assert sum(p.dim() == 3 for p in adamw) == 2
    assert {id(p) for p in muon + adamw} == {id(p) for p in model.parameters()}


SET_RATES = {
    "OneCycleLR": lambda o, rates: OneCycleLR(o, max_lr=rates, total_steps=10),
    "CyclicLR": lambda o, rates: CyclicLR(o, [0.0] * len(rates), rates, 4, cycle_momentum=False),
    "SWALR": lambda o, rates: SWALR(o, rates, anneal_epochs=4),
}


@pytest.mark.parametrize("name", SET_RATES)
def test_a_list_of_rates_keeps_those_of_each_group(recipe, name):
    """The page's advice for schedules that set the rate."""
    optimizer = recipe("accelerate")["optimizer"].optimizer
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = SET_RATES[name](optimizer, rates)
    top = [0.0] * len(rates)
    for _ in range(9):
        optimizer.step()
        schedule.step()
        top = [max(*pair) for pair in zip(top, schedule.get_last_lr(), strict=True)]
    assert top == pytest.approx(rates, rel=0.05) and len(set(rates)) == 2


def test_a_trainer_goes_on_from_its_checkpoint(recipe):
    """Interrupted at step 3 of 6: the weights of a run that never was."""
    whole = recipe("transformers' Trainer")["model"].state_dict()
    Path("trainer/checkpoint-6").rename("elsewhere")
    names: dict = {}
    torch.manual_seed(0)
    exec(compile(blocks()[BEGIN], BEGIN, "exec"), names)
    code = blocks()["transformers' Trainer"].replace(
        "trainer.train()", "trainer.train(resume_from_checkpoint=True)"
    )
    exec(compile(code, "resumed", "exec"), names)
    for name, weight in names["model"].state_dict().items():
        torch.testing.assert_close(weight, whole[name], rtol=1e-5, atol=1e-6)
    other = code.replace('attach_multipliers(model, "scalar"', 'attach_multipliers(model, "hidden"')
    exec(compile(blocks()[BEGIN], BEGIN, "exec"), names)
    with pytest.raises(UserError, match="q_proj.weight has scalar there and row_column here"):
        exec(compile(other, "with another placement", "exec"), names)


def test_a_sharded_trainer_trains_as_one_process_does(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    begin, code = f"import torch\ntorch.manual_seed(0)\n{blocks()[BEGIN]}", blocks()[SHARDED]
    alone = code.replace("        fsdp=True,\n", "").replace('fsdp_config={"version": 2},', "")
    alone = alone.replace("dist.get_rank() == 0", "True")
    found = []
    for world, body in ((1, alone), (2, code)):
        folder = tmp_path / str(world)
        folder.mkdir()
        size = f"max_steps=6, per_device_train_batch_size={8 // world}"
        body = body.replace("max_steps=6", size)
        told = 'print(type(model).__name__, file=open("class.txt", "w"))\n'
        several = world > 1
        (folder / "script.py").write_text((AS_ON_GPUS if several else "") + begin + body + told)
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        command = [sys.executable, *(torchrun if several else []), "script.py"]
        subprocess.run(command, cwd=folder, check=True, timeout=600)
        merged = transformers.AutoModelForCausalLM.from_pretrained(folder / "merged")
        found.append(merged.state_dict())
    assert (tmp_path / "2" / "class.txt").read_text().startswith("FSDP")
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("multipliers_first", [False, True])
def test_a_lora_update_is_merged_in_either_order(recipe, multipliers_first):
    names = recipe("LoRA beside multipliers")
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(names["config"])
    lora = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, lora)
    handle = lrm.attach_multipliers(adapted, {"*.base_layer.weight": "row_column"})
    with torch.no_grad():
        for _, _, parameter in handle.named():
            parameter.uniform_(0.5, 2.0)
        tokens = names["batches"][0]
        want = adapted(tokens).logits
        if multipliers_first:
            merged = lrm.merge_multipliers(adapted).merge_and_unload()
        else:
            merged = adapted.merge_and_unload()
            torch.testing.assert_close(merged(tokens).logits, want, rtol=1e-4, atol=1e-5)
            lrm.merge_multipliers(adapted)
        torch.testing.assert_close(merged(tokens).logits, want, rtol=1e-4, atol=1e-5)
    plain = transformers.LlamaForCausalLM(names["config"])
    assert list(merged.state_dict()) == list(plain.state_dict())
