"""Exchange with transformers: exported runs, imported folders, norms of checkpoints."""

import dataclasses
import json
import shutil
import subprocess
import types
from pathlib import Path

import huggingface_hub
import numpy as np
import pandas as pd
import pytest
import torch
import transformers
import warm
import yaml
from conftest import TINY_MODEL
from safetensors.torch import load_file, save_file

import lrm
from analysis.explore.checkpoint_norms import render, summary
from lrm import data
from lrm.errors import UserError
from lrm.exchange import measure_checkpoint
from lrm.exchange.card import card as model_card
from lrm.exchange.export import corpus_of, export, trained
from lrm.model import transformers as hub
from lrm.plan.config import Execution, Settings, validate
from lrm.plan.run import Cost, TrainRun
from lrm.store.rundir import read_description
from lrm.train import loop
from lrm.train.learner import build

ROOT = Path(__file__).parents[1]
LRM = [warm.python, "-c", "from lrm.cli import main; main()"]  # the command, installed or not
RULES = [
    {"match": "mlp.*", "multiplier": {"kind": "row_column"}},
    {"match": "ssm.x", "multiplier": {"kind": "scalar"}, "forward": 0.7},
    {"match": "attention.[qv]", "forward": 1.3},
    {"match": "attention.k", "forward": 0.41},
    {"match": "mlp.up", "forward": 1.7},  # transformers has no field for it
    {"match": "projector", "forward": 4.5},
    {"match": "norm.final", "weight": "scalar"},
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module", params=["forward", "optimizer"])
def finished(request, results):
    """The directory of a run of twenty steps."""
    settings = validate(Settings, {
        "model": TINY_MODEL,
        "data": {"source": "synthetic", "synthetic_documents": 60, "validation_fraction": 0.2},
        "train": {"steps": 20, "batch_size": 4, "sequence_length": 16, "validation_sequences": 4,
                  "multiplier_implementation": request.param},
        "optimizer": {"lr": 1e-2, "weight_decay": 0.1},
        "schedule": {"warmup_steps": 2, "decay_steps": 4},
        "probes": {"every": 10, "vectors_every": 20, "sequences": 2},
        "rules": RULES,
    }, "test")  # fmt: skip
    corpus = data.prepare(settings.data, settings.model.vocab_size, results / "data")
    execution = Execution(precision="float32", compile="never")
    run = TrainRun("test", "smoke", "A", {}, 0, settings, execution, Cost(), corpus=corpus.hash)
    path = results / "runs" / "test" / run.id
    loop.train(run, path, results / "data")
    return path


@pytest.mark.parametrize("fold", [False, True])
def test_an_exported_run_loads_and_generates(finished, tmp_path, fold):
    folder = tmp_path / "out"
    export(finished, folder, fold)
    hf = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    words = transformers.AutoTokenizer.from_pretrained(folder)
    assert {path.stat().st_mode for path in folder.glob("*.safetensors")} == {
        (folder / "README.md").stat().st_mode
    }
    assert not any("multipliers" in name for name in hf.state_dict())
    assert hf.config.lm_head_multiplier == (1.0 if fold else 4.5)
    text = "a bore te tonal"  # of letters that the made-up words of the corpus have
    tokens = words(text, return_tensors="pt").input_ids
    assert words.decode(tokens[0]) == text
    model = trained(finished)
    torch.testing.assert_close(hf(tokens).logits, model(tokens), rtol=1e-4, atol=1e-4)
    made = hf.generate(tokens, max_new_tokens=5, do_sample=False)
    assert made.shape[1] <= tokens.shape[1] + 5 and isinstance(words.decode(made[0]), str)
    # It is the run's last model: its validation loss is the one on record.
    description = read_description(finished)
    corpus = data.prepare(
        train_settings(description).data, model.config.vocab_size, finished.parents[2] / "data"
    )
    sequences = torch.from_numpy(data.fixed_sequences(corpus.validation, 4, 16))
    loss, _ = model(sequences[:, :-1], sequences[:, 1:])
    recorded = json.loads((finished / "done.json").read_text())["validation_loss"]
    assert loss.item() == pytest.approx(recorded, rel=1e-5)
    # And so are those of the tokens that end a pair seen before, and of the others.
    each = torch.nn.functional.cross_entropy(
        model(sequences[:, :-1]).transpose(1, 2), sequences[:, 1:], reduction="none"
    )
    recalled = torch.from_numpy(data.recalled(sequences.numpy()))
    assert recalled.any() and not recalled.all()
    scalars = pd.read_parquet(finished / "scalars.parquet").set_index(["step", "stat"])["value"]
    for stat, among in (("recall_loss", recalled), ("other_loss", ~recalled)):
        assert scalars[20, stat] == pytest.approx(each[among].mean().item(), rel=1e-4), stat


def test_an_exported_run_ends_texts_as_its_tokenizer_does(finished, tmp_path, monkeypatch):
    """With what closed the documents that it was trained on, whatever its name."""
    content = (corpus_of(finished).path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(content.replace("<|endoftext|>", "</s>"))
    monkeypatch.setattr(
        "lrm.exchange.export.corpus_of", lambda path: types.SimpleNamespace(path=tmp_path)
    )
    before = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    export(finished, tmp_path / "out")
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert words.eos_token == "</s>" and len(words) == len(before)
    assert config.eos_token_id == words.eos_token_id == before.convert_tokens_to_ids("</s>")


def test_an_exported_run_has_a_model_card(finished, tmp_path):
    export(finished, tmp_path / "out")
    card = huggingface_hub.ModelCard.load(tmp_path / "out" / "README.md")
    assert (card.data.license, card.data.library_name) == ("apache-2.0", "transformers")
    recorded = json.loads((finished / "done.json").read_text())["validation_loss"]
    assert f"| validation loss | {recorded:.4f} nats a token |" in card.text
    parameters = sum(parameter.numel() for parameter in trained(finished).parameters())
    assert f"| parameters | {parameters:,}, float32 |" in card.text
    # Six MLP matrices in two layers, one slice of the SSM in each, and the gain of a norm.
    multipliers = "row and column of 6 tensors, scalar of 3 tensors; merged into the weights"
    assert f"| learnable multipliers | {multipliers} |" in card.text


def test_a_model_card_names_every_version_that_trained(finished):
    """Of a run that was stopped, and went on after a commit."""
    description = json.loads((finished / "run.json").read_text())
    first = description["environment"] | {"commit": "aaa"}
    again = [{**first, "step": step, "commit": "bbb"} for step in (7, 9)]
    told = description | {"environment": first, "resumed": again}
    text = model_card(told, train_settings(description), 1, None, None)
    assert f"| lrm {first['lrm']}, commit aaa; commit bbb from step 7 |" in text
    # A wheel and a container have no commit to tell.
    for record in (first, *again):
        record["commit"] = None
    text = model_card(told, train_settings(description), 1, None, None)
    assert f"| made by | lrm {first['lrm']} |" in text


def train_settings(description):
    return validate(Settings, description["settings"], "run.json")


def test_the_round_trip_is_exact(finished, tmp_path):
    """The same weights and the same multipliers, to the last bit, there and back twice."""
    export(finished, tmp_path / "a")
    first = hub.load_transformers(tmp_path / "a")
    hub.save_transformers(first, tmp_path / "b")
    second = hub.load_transformers(tmp_path / "b")
    assert first.forward_multipliers == second.forward_multipliers
    assert first.config == second.config
    for (name, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    model = trained(finished)
    kept = {k: v for k, v in model.forward_multipliers.items() if not k.startswith("mlp.up")}
    assert first.forward_multipliers == kept
    assert torch.equal(first.lm_head.weight, model.lm_head.weight)


def test_an_imported_model_trains_on_with_multipliers(finished, tmp_path):
    export(finished, tmp_path / "a")
    model = hub.load_transformers(tmp_path / "a")
    lrm.attach_multipliers(model, "hidden")
    optimizer = torch.optim.AdamW(lrm.build_param_groups(model, 1e-3, 0.1))
    tokens = torch.randint(300, (4, 17), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss, objective = model(tokens[:, :-1], tokens[:, 1:])
        objective.backward()
        lrm.clip_grad_norm_(model, 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    logits = model(tokens)
    lrm.merge_multipliers(model)
    hub.save_transformers(model, tmp_path / "b")
    again = hub.load_transformers(tmp_path / "b")
    torch.testing.assert_close(again(tokens), logits, rtol=1e-4, atol=1e-4)


def test_a_run_begins_where_an_imported_model_ended(finished, results, tmp_path):
    """By the settings that lrm.adopt prints; the weights are part of the run's identity."""
    export(finished, tmp_path / "a")
    printed = subprocess.run(
        [*LRM, "adopt", str(tmp_path / "a")],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    adopted = yaml.safe_load(printed)
    settings = train_settings(read_description(finished)).model_dump(exclude_unset=True)
    settings["train"] = {**settings["train"], **adopted["train"], "steps": 5}
    settings |= {"model": adopted["model"], "schedule": {"warmup_steps": 1, "decay_steps": 1}}
    for rules in (adopted["rules"], []):  # folded into the weights where no rule holds them
        begun = validate(Settings, {**settings, "rules": rules}, "test")
        learner = build(begun, seed=7)
        tokens = torch.randint(300, (2, 9))
        expected = trained(finished)(tokens)
        torch.testing.assert_close(learner.model(tokens), expected, rtol=1e-4, atol=1e-4)
        for implementation in ("forward", "optimizer"):  # wherever multipliers begin
            both = {"kind": "row_column", "init": 0.5}
            scalar = {"kind": "scalar", "init": 3.0}
            changed = [*rules, {"match": "mlp.*", "multiplier": both},
                       {"match": "projector", "relative_scale": 8.0, "compensate": True},
                       {"match": "ssm.*", "multiplier": scalar}]  # fmt: skip
            train = {**settings["train"], "multiplier_implementation": implementation}
            given = {**settings, "train": train, "rules": changed}
            multiplied = build(validate(Settings, given, "test"), seed=7)
            torch.testing.assert_close(multiplied.model(tokens), expected, rtol=1e-4, atol=1e-4)
    corpus = data.prepare(begun.data, begun.model.vocab_size, results / "data")
    execution = Execution(precision="float32", compile="never")
    run = TrainRun("test", "smoke", "B", {}, 0, begun, execution, Cost(), corpus=corpus.hash)
    before = run.id
    loop.train(run, results / "runs" / "test" / before, results / "data")
    weights = trained(results / "runs" / "test" / before)
    hub.save_transformers(weights, tmp_path / "a")
    assert run.id != before
    other = begun.model_copy(update={"model": begun.model.model_copy(update={"head_dim": 8})})
    message = r"has model.head_dim = 4, the settings 8; lrm adopt"
    with pytest.raises(UserError, match=message):
        build(other, 0)
    for ignored in ({"init_scale": 0.5}, {"init_seed": 3}):
        drawn = {**settings, "rules": [{"match": "projector", **ignored}]}
        with pytest.raises(UserError, match="is for initial values, and train.start gives others"):
            build(validate(Settings, drawn, "test"), 0)
    nowhere = begun.train.model_copy(update={"start": str(tmp_path)})
    with pytest.raises(UserError, match="is no model's folder"):
        _ = dataclasses.replace(run, settings=begun.model_copy(update={"train": nowhere})).id


def test_a_folder_appears_when_it_is_whole(finished, tmp_path, monkeypatch):
    def stopped(*given, **named):
        hub.save_transformers(*given, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as changed, pytest.raises(KeyboardInterrupt):
        changed.setattr("lrm.exchange.export.save_transformers", stopped)
        export(finished, tmp_path / "model")
    assert not list(tmp_path.iterdir())
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    export(finished, tmp_path / "link")
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "link"}
    assert hub.load_transformers(tmp_path / "empty")


def test_a_full_disk_is_told_in_one_line(finished, tmp_path):
    """Of the weights, which safetensors writes, under a limit on the size of files."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
        "from lrm.cli import main; main()"
    )
    done = subprocess.run(
        [warm.python, "-c", code, "export", str(finished), str(tmp_path / "out")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    # Behind what transformers says of its progress.
    told = f"error: cannot write {tmp_path / 'out'}: File too large; make room and run again"
    assert done.stderr.splitlines()[-1] == told
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exchanged_is_told_in_one_line(finished, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(UserError, match="full is there already; give the name of a new folder"):
        export(finished, tmp_path / "full")
    with pytest.raises(UserError, match="cannot write .*file/new: .*; choose a writable folder"):
        export(finished, tmp_path / "full" / "file" / "new")
    with pytest.raises(UserError, match="is no finished run"):
        export(tmp_path, tmp_path / "new")
    shutil.copytree(finished, tmp_path / "elsewhere")
    with pytest.raises(UserError, match="elsewhere lies outside of results/runs/<experiment>"):
        export(tmp_path / "elsewhere", tmp_path / "new")
    with pytest.raises(UserError, match="has no config.json"):
        hub.load_transformers(tmp_path)
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=16)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(UserError, match="holds a gpt2, not a falcon_h1"):
        hub.load_transformers(tmp_path / "gpt2")
    export(finished, tmp_path / "part")
    weights = tmp_path / "part" / "model.safetensors"
    kept = {k: v for k, v in load_file(weights).items() if "feed_forward" not in k}
    save_file(kept, weights, {"format": "pt"})
    with pytest.raises(UserError, match="part lacks 6 weights .* first is .*feed_forward"):
        hub.load_transformers(tmp_path / "part")
    export(finished, tmp_path / "shapes")
    weights = tmp_path / "shapes" / "model.safetensors"
    other = {k: v[:-1].clone() if "q_proj" in k else v for k, v in load_file(weights).items()}
    save_file(other, weights, {"format": "pt"})
    with pytest.raises(UserError, match="shapes lacks 2 weights .* first is .*q_proj"):
        hub.load_transformers(tmp_path / "shapes")
    with pytest.raises(UserError, match=r"has no .safetensors files"):
        measure_checkpoint.norms(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="model.safetensors is damaged"):
        measure_checkpoint.norms(tmp_path)
    with pytest.raises(UserError, match="nowhere is no folder"):
        measure_checkpoint.located("nowhere")
    with pytest.raises(UserError, match=r"a\.\.b/c cannot be fetched from the hub"):
        measure_checkpoint.located("a..b/c")
    packed = {"up.qweight": torch.ones(4, 8, dtype=torch.int32)}
    save_file(packed, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="up.qweight holds integers .torch.int32..*dequantize"):
        measure_checkpoint.norms(tmp_path)
    mask = torch.ones(1, 1, 8, 8, dtype=torch.uint8)
    others = {"attn.bias": mask, "index": torch.ones(4, 4, dtype=torch.int64),
              "experts.down_proj_bias": torch.ones(3, 4), "mixer.A_log": torch.ones(4, 3),
              "up.weight": torch.ones(4, 8)}  # fmt: skip
    save_file(others, tmp_path / "model.safetensors")
    assert set(measure_checkpoint.norms(tmp_path)["tensor"]) == {"up.weight"}
    quantized = {"up.weight": torch.ones(4, 8).to(torch.float8_e4m3fn)}
    save_file(quantized, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="up.weight is quantized to torch.float8_e4m3fn.*dequantiz"):
        measure_checkpoint.norms(tmp_path)
    save_file({"up.weight": torch.ones(0, 8)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="holds no matrices of floating-point numbers"):
        measure_checkpoint.norms(tmp_path)
    found = subprocess.run(
        [*LRM, "export", str(tmp_path), str(tmp_path / "new")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 2 and found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1 and not found.stdout


def test_norms_of_a_checkpoint(tmp_path):
    """Every matrix of any architecture, by layer; the figure and its numbers."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[7] = 0.0
    model.save_pretrained(tmp_path / "llama")
    target = measure_checkpoint.measure(str(tmp_path / "llama"), tmp_path / "results")
    table = pd.read_parquet(target / "norms.parquet")
    up = table[table["tensor"] == "model.layers.*.mlp.up_proj.weight"]
    assert len(up) == 6 and set(up["layer"]) == {0, 1, 2}
    for _, row in up.iterrows():
        weight = model.model.layers[row["layer"]].mlp.up_proj.weight
        across = 1 if row["stat"] == "row_norms" else 0  # outputs are rows
        wanted = weight.detach().double().square().mean(across).sqrt()
        np.testing.assert_allclose(row["value"], wanted, rtol=1e-6)
        assert row["over"] == weight.shape[across]
    numbers = summary(table).set_index(["tensor", "axis"])
    found = numbers.loc["model.layers.*.mlp.up_proj.weight", "rows"]
    assert found["dead"] == 1 and found["count"] == 144
    # Normal entries: the spread of pure noise.
    assert found["spread"] == pytest.approx(found["noise"], rel=0.2)
    assert "norms.png" in render(target)
    for kind in ("png", "pdf", "csv"):
        assert (target / f"norms.{kind}").stat().st_size > 500


def test_experts_that_are_stored_with_inputs_first_have_rows_that_are_outputs(tmp_path):
    config = transformers.GptOssConfig(
        vocab_size=32, hidden_size=8, intermediate_size=12, num_hidden_layers=1, head_dim=4,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=2,
        layer_types=["full_attention"],
    )  # fmt: skip
    model = transformers.GptOssForCausalLM(config)
    model.save_pretrained(tmp_path)
    table = measure_checkpoint.norms(tmp_path).set_index(["tensor", "stat"])["value"]
    experts = model.model.layers[0].mlp.experts
    for name, width in (("gate_up_proj", 24), ("down_proj", 8)):
        stack = getattr(experts, name).detach()
        assert stack.shape[-1] == width  # outputs come last
        found = table[f"model.layers.*.mlp.experts.{name}", "row_norms"]
        np.testing.assert_allclose(found, stack.square().mean(1).sqrt().flatten(), rtol=1e-6)


def test_the_command_exports_and_probes(finished, tmp_path):
    """As a user calls it: a folder that transformers loads, then the norms of its matrices."""

    def call(*arguments):
        found = subprocess.run(
            [*LRM, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True
        )
        assert found.returncode == 0, found.stderr
        return found.stdout

    call("export", finished, tmp_path / "out")
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").num_parameters() > 0
    said = call("probe", tmp_path / "out", "--results", tmp_path / "results")
    [table] = (tmp_path / "results").rglob("norms.parquet")
    assert len(pd.read_parquet(table)) and said == f"{table}\n"
    # The same again, but none of another folder that is called so.
    measure_checkpoint.measure(str(tmp_path / "out"), tmp_path / "results")
    (table.parent / "model.json").write_text('{"model": "/elsewhere/out"}')
    with pytest.raises(UserError, match="holds the norms of /elsewhere/out; move it away"):
        measure_checkpoint.measure(str(tmp_path / "out"), tmp_path / "results")


def test_weights_that_a_folder_holds_more_than_once_are_measured_once(tmp_path):
    """Copies in half precision, the maker's own files, and shards with an index."""
    weights = {"up.weight": torch.randn(4, 8), "down.weight": torch.randn(8, 4)}
    for name in ("model.fp16", "consolidated"):
        save_file(weights, tmp_path / f"{name}.safetensors")
    with pytest.raises(UserError, match=r"is in consolidated.safetensors and in model.fp16.safet"):
        measure_checkpoint.norms(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text("{}")
    with pytest.raises(UserError, match="index.json is damaged; fetch it again"):
        measure_checkpoint.norms(tmp_path)
    places = {name: f"model-{name[0]}.safetensors" for name in weights}
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(UserError, match="model-d.safetensors is damaged"):  # it is not there
        measure_checkpoint.norms(tmp_path)
    for name, place in places.items():
        save_file({name: weights[name]}, tmp_path / place)
    sharded = measure_checkpoint.norms(tmp_path)
    assert sorted(sharded["tensor"]) == ["down.weight"] * 2 + ["up.weight"] * 2
    save_file(weights, tmp_path / "model.safetensors")
    assert len(measure_checkpoint.norms(tmp_path)) == 4


def test_a_convolution_has_a_norm_for_each_filter(tmp_path):
    weights = {
        "patch.projection.weight": torch.randn(6, 3, 2, 2), "conv1.weight": torch.randn(5, 4, 3),
        "conv1d.weight": torch.randn(7, 1, 4), "experts.up": torch.randn(2, 4, 3),
    }  # fmt: skip
    save_file(weights, tmp_path / "model.safetensors")
    table = measure_checkpoint.norms(tmp_path).set_index("tensor")
    assert list(table["stat"]) == ["row_norms"] * 3 and "conv1d.weight" not in table.index
    assert dict(table["over"]) == {
        "patch.projection.weight": 12, "conv1.weight": 12, "experts.up": 3,
    }  # fmt: skip
    wanted = weights["conv1.weight"].square().mean((1, 2)).sqrt()
    np.testing.assert_allclose(table["value"]["conv1.weight"], wanted, rtol=1e-6)
    assert len(table["value"]["experts.up"]) == 8
