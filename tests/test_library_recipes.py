"""Each recipe of the page, run as it stands, and what it should leave."""

import ast
import importlib.util
import re
import warnings
from pathlib import Path

import peft
import pytest
import torch
import transformers

import lrm
from lrm.errors import UserError

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

    def run(title: str, names: dict | None = None) -> dict:
        torch.manual_seed(0)
        if names is None:
            names = {}
            exec(compile(blocks()[BEGIN], BEGIN, "exec"), names)
        exec(compile(blocks()[title], title, "exec"), names)
        return names

    return run


@pytest.mark.parametrize("title", RECIPES)
def test_recipe(title, recipe):
    need(blocks()[title])
    names = recipe(title)
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
        assert len(state["param_groups"]) == 4
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
        assert len(state["param_groups"]) == 4
    elif title == "TRL":
        assert len(names["trainer"].optimizer.param_groups) == 4
        assert names["trainer"].state.global_step == 6
    elif title == "Quantizing by torchao":
        tokens = names["batches"][0]
        want, found = names["want"], names["merged"](tokens).logits
        assert type(names["merged"].model.layers[0].mlp.up_proj.weight).__name__ == "Int8Tensor"
        assert 0 < (found - want).abs().max() < 0.05 * want.abs().max()
        with pytest.raises(UserError, match="is quantized .*; attach before quantizing"):
            lrm.attach_multipliers(names["merged"])
        lrm.attach_multipliers(before)
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        with pytest.raises(UserError, match=r"cannot be replaced; .* merge the multipliers first"):
            quantize_(before, Int8WeightOnlyConfig())
    elif title == "Going on with another placement":
        with torch.no_grad():
            logits = [names[name].eval()(names["batches"][0]).logits for name in ("model", "again")]
        torch.testing.assert_close(*logits)
    elif title == "A log of norms":
        assert "model.layers.*.mlp.up_proj.weight" in repr(names["handle"])
        assert all(value > 0 for value in names["log"].values())


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
    other = code.replace("attach_multipliers(model)", 'attach_multipliers(model, "hidden")')
    exec(compile(blocks()[BEGIN], BEGIN, "exec"), names)
    with pytest.raises(UserError, match="embed_tokens.weight has row_column there and none here"):
        exec(compile(other, "with another placement", "exec"), names)


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
