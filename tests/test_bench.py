"""The benchmark: its structure and its fairness, never its speed."""

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import warm
import yaml

from analysis.tables.criteria import every_criterion
from lrm.bench import delta, tables
from lrm.bench.measure import median
from lrm.bench.parts import BACKWARD, FORWARD, Marks
from lrm.bench.plan import ROWS, Bench
from lrm.bench.trainers import SuiteTrainer, TransformersTrainer
from lrm.errors import UserError
from lrm.plan.yaml import read_yaml
from lrm.train.device import equip
from lrm.train.learner import build
from lrm.train.step import train_step

ROOT = Path(__file__).parents[1]
# One layer: transformers' takes a minute to compile.
SMOKE = {
    "use": ["scale/smoke", "optimizer/adamw"],
    "model": {"num_hidden_layers": 1},
    "execution": {"precision": "float32"},
}
# The shipped variants at the smallest scale; a choice and a row that no version knows.
SMALL = {
    "cores": 1,
    "configurations": {"smoke": SMOKE},
    "rows": [
        {"name": "against transformers", "of": "suite", "against": "transformers", "at": ["smoke"]},
        {"name": "probes", "of": "probes", "against": "optimizer", "at": ["smoke"]},
        {"name": "unknown", "of": "unknown", "against": "plain", "at": ["smoke"]},
    ],
    "rounds": [
        {
            "name": "three",
            "variants": ["uncompiled", "probes", "optimizer"],
            "at": ["smoke"],
            "set": ["train.clip_norm=0.5"],
        }
    ],
    "parts": [{"of": "uncompiled", "at": "smoke"}, {"of": "plain", "at": "smoke"}],
    "memory": [{"of": "suite", "at": "smoke"}, {"of": "transformers", "at": "smoke"}],
    "whole": [{"of": "plain", "at": "smoke", "steps": 20}],
}


def call(*arguments, code=0, python=None, **options):
    """``python -m lrm.bench``; returns its output and its progress."""
    found = subprocess.run(
        [python or warm.python, "-m", "lrm.bench", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        **options,
    )
    assert found.returncode == code, found.stdout + found.stderr
    return found.stdout, found.stderr


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A whole benchmark of two pairs of a few steps: its record, tables and progress."""
    folder = tmp_path_factory.mktemp("bench")
    plan = {**read_yaml(ROWS), **SMALL}
    plan["variants"]["unknown"] = {"settings": {"execution": {"unknown": True}}}
    # The compiled peer has a test of its own, in peers.py; whole runs are compiled here.
    for variant in ("probes", "optimizer"):
        plan["variants"][variant]["settings"]["execution"]["compile"] = "never"
    plan["variants"]["suite"]["search"] = [{"execution.threads": [1, 2]}]
    plan["variants"]["transformers"]["search"] = [{"attention": ["eager", "sdpa"]}]
    (folder / "rows.yaml").write_text(yaml.safe_dump(plan))
    Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).mkdir(exist_ok=True)
    (folder / "compiled").symlink_to(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    options = ("--rows", folder / "rows.yaml", "--pairs", 2, "--seconds", 0.001)
    text, progress = call(*options, "--results", folder, "--name", "it")
    return json.loads((folder / "bench" / "it.json").read_text()), text, progress


def test_a_record_is_complete(measured):
    record, text, progress = measured
    assert record["finished"] >= record["started"]
    machine = record["machine"]
    for name in ("processor", "cores", "flags", "memory_bytes", "system", "python", "torch",
                 "transformers", "process_environment"):  # fmt: skip
        assert machine[name], name
    assert "commit" in machine  # None without git
    assert "MALLOC_TOP_PAD_" in machine["process_environment"]
    against, probes, *three = record["rows"]
    assert [(row["of"]["variant"], row["against"]["variant"]) for row in three] == [
        ("probes", "uncompiled"), ("optimizer", "uncompiled"), ("optimizer", "probes")
    ]  # fmt: skip
    assert all(row["of"]["settings"]["train"]["clip_norm"] == 0.5 for row in three)
    # The same rounds.
    assert three[0]["against"]["rates"] == three[1]["against"]["rates"]
    assert three[1]["of"]["rates"] == three[2]["of"]["rates"]
    assert (record["rows_of"], record["only"]) == ("rows.yaml", None)
    for row in record["rows"]:
        assert len(row["ratios"]) == 2
        assert row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]
        for side in (row["of"], row["against"]):
            assert len(side["rates"]) == 2
            assert side["processes"] * side["threads"] == 1
            assert side["tokens_per_second"]["low"] == min(side["rates"])
    assert [trial["picks"]["attention"] for trial in against["against"]["trials"]] == [
        "eager",
        "sdpa",
    ]
    # A measurement of probes holds whole intervals of them, and so does the other side's.
    for side in (probes["of"], probes["against"]):
        assert side["steps_per_measurement"] % side["settings"]["probes"]["every"] == 0
    assert against["tokens_per_step"] == 256
    for heading in ("tokens per second", "one step by parts", "peak memory", "whole runs"):
        assert heading in text
    assert tables.render(record) == text.rstrip("\n")
    assert "kept in" in progress


def test_both_sides_learn_the_same(measured):
    """The same weights, batches, loss, clipping and optimizer: the same loss after some steps."""
    of, against = (measured[0]["rows"][0][name] for name in ("of", "against"))
    assert of["parameters"] == against["parameters"]
    assert of["loss_after_warm_up"] == pytest.approx(against["loss_after_warm_up"], rel=1e-4)


def test_what_is_not_known_is_left_out_with_a_reason(measured):
    record, text, progress = measured
    reasons = {(one["row"], one["variant"]): one["reason"] for one in record["left_out"]}
    assert "unknown key unknown" in reasons["unknown", "unknown"]
    assert "2 threads" in reasons["against transformers", "suite"]
    assert "compiled layers have no parts" in reasons["parts", "plain"]
    assert len(reasons) == 3
    assert not any("/" in reason for reason in reasons.values())
    assert progress.count("left out") == 3


def test_parts_and_memory_and_whole_runs(measured):
    record, _, _ = measured
    [parts], memory, [whole] = record["parts"], record["memory"], record["whole"]
    found = {(part["part"], part["direction"]) for part in parts["parts"]}
    for part in ("embedding", "norms", "attention", "ssm in_proj", "ssm conv", "ssm scan",
                 "ssm out", "mlp", "projector, loss"):  # fmt: skip
        assert {(part, FORWARD), (part, BACKWARD)} <= found
    assert {("data", ""), ("optimizer", ""), ("logging", "")} <= found
    assert parts["accounted"] > 0
    for one in memory:
        assert one["allocated"] > 4 * one["parameters"]
    assert {"seconds", "tokens_per_second", "probe_fraction"} <= whole.keys()


@pytest.mark.parametrize("autocast", [None, torch.autocast("cpu", torch.bfloat16)])
@pytest.mark.parametrize("implementation", ["none", "forward", "optimizer"])
def test_backward_is_given_to_the_part_whose_forward_made_it(settings, autocast, implementation):
    """The marks' order against autograd's own numbers of the nodes."""
    changes = {}
    if implementation != "none":
        changes["train"] = {"multiplier_implementation": implementation}
        changes["rules"] = [{"match": "mlp.*", "multiplier": {"kind": "row_column"}},
                            {"match": "ssm.x", "multiplier": {"kind": "row"}}]  # fmt: skip
    settings = settings(**changes)
    learner = build(settings, 0)
    batch = torch.randint(settings.model.vocab_size, (4, 17))
    ran = []  # (autograd's number of the node, the part that was entered last)
    parts = []  # (autograd's number of the first node of the part, the part), in the forward
    original = torch.autograd.backward

    def watched(tensors, *arguments, **named):
        if not isinstance(tensors, torch.Tensor):  # W̄'s gradients on their way to W's
            return original(tensors, *arguments, **named)
        parts.extend(zip(marks.numbers, marks.entered, strict=True))
        for node in _graph(tensors):
            node.register_prehook(
                lambda _, node=node: ran.append((node._sequence_nr(), marks.events[-1][0]))
            )
        original(tensors, *arguments, **named)

    torch.autograd.backward = watched
    try:
        with Marks(learner.model) as marks:
            marks.enter("optimizer")
            train_step(learner, batch, settings, 0, autocast)
    finally:
        torch.autograd.backward = original
    assert len(ran) > 100
    for number, (part, direction) in ran:
        assert direction == BACKWARD
        if number < 2**62:  # the nodes that add up a leaf's gradient come as soon as they can
            assert part == [name for start, name in parts if start <= number][-1]
    names = [name for _, name in parts]
    layer = ["norms", "norms", "ssm in_proj", "ssm conv", "ssm scan", "ssm scan", "ssm out",
             "residual", "attention", "residual", "norms", "norms", "mlp", "residual"]  # fmt: skip
    assert names == ["embedding", *layer, *layer, "norms", "projector, loss"]
    apart = {direction for part, direction in marks.seconds() if part == "multipliers"}
    assert apart == ({FORWARD, BACKWARD} if implementation == "optimizer" else set())


def test_the_parts_of_a_gated_delta_network(settings):
    own = {"heads": 2, "key_dim": 4, "value_dim": 8, "kernel": 4, "chunk": 8}
    settings = settings(model={"mixer": "gdn", "mixer_sizes": {"gdn": own}})
    learner = build(settings, 0)
    batch = torch.randint(settings.model.vocab_size, (4, 17))
    with Marks(learner.model) as marks:
        marks.enter("optimizer")
        train_step(learner, batch, settings, 0)
    parts = {part for part, direction in marks.seconds() if direction == BACKWARD}
    mixer = {"gdn in_proj", "gdn conv", "gdn scan", "gdn out"}
    assert parts == {"embedding", "norms", *mixer, "residual", "mlp", "projector, loss"}


def _graph(root):
    nodes, waiting = [], [root.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.append(node)
            waiting += [child for child, _ in node.next_functions]
    return nodes


def test_marks_leave_the_model_as_it_was(settings):
    settings = settings()
    batch = torch.randint(settings.model.vocab_size, (4, 17))
    losses = []
    for marked in (False, True):
        learner = build(settings, 0)
        for step in range(2):
            if marked:
                with Marks(learner.model) as marks:
                    marks.enter("optimizer")
                    losses.append(train_step(learner, batch, settings, step)[0])
                assert {way for _, way in marks.seconds()} == {FORWARD, BACKWARD, ""}
            else:
                losses.append(train_step(learner, batch, settings, step)[0])
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in learner.model.modules())
    assert torch.equal(losses[0], losses[2]) and torch.equal(losses[1], losses[3])


def test_the_peer_follows_schedule_groups_and_clipping(settings, smoke_runs):
    """Of the compiled one: ``peers.py``."""
    assert_the_peer_follows(settings, smoke_runs, "uncompiled")


def assert_the_peer_follows(settings, smoke_runs, variant):
    """Ten steps with warmup, decay and a clipping norm that binds: equal losses and norms."""
    bench = Bench(ROWS, 1)
    candidate = bench.candidate(variant, "tiny 8x64")
    [smallest, *_] = smoke_runs("projector")
    model = smallest.settings.model.model_dump() | SMOKE["model"]
    changed = settings(model=model, train={"clip_norm": 0.3, "z_loss": 0.0})
    # Made anew, so that its plans follow its settings.
    run = dataclasses.replace(candidate.run, settings=changed)
    equipment = equip(run.execution, run.settings.model)
    sides = [cls(run, 3, equipment) for cls in (SuiteTrainer, TransformersTrainer)]
    generator = np.random.default_rng(0)
    for step in range(10):
        batch = torch.from_numpy(generator.integers(0, changed.model.vocab_size, (8, 33)))
        (loss, norm, clipped), (peer_loss, peer_norm, peer_clipped) = (
            side.step(batch, step) for side in sides
        )
        assert norm > 0.3 and clipped and peer_clipped
        torch.testing.assert_close(loss, peer_loss, rtol=1e-4, atol=0)
        torch.testing.assert_close(norm, peer_norm, rtol=2e-3, atol=0)


def test_every_shipped_row_is_known():
    bench = Bench(ROWS, 2)
    for contest in bench.plan.contests:
        for configuration in contest.at:
            for variant in contest.variants:
                found = bench.candidate(variant, configuration, overrides=contest.set)
                assert found.tokens >= 512
    stages = [stage for n in ("suite", "transformers") for stage in bench.plan.variants[n].search]
    assert [math.prod(map(len, stage.values())) for stage in stages] == [4, 3, 2, 8, 3]
    big = bench.candidate("transformers", "20M 8x512", {"attention": "sdpa"})
    assert big.attention == "sdpa" and big.tokens == 4096


def _shipped(bench):
    """(configuration, variant, what it is set against) of every row of a record."""
    return {
        (place, of, against)
        for contest in bench.plan.contests
        for place in contest.at
        for against, of in itertools.combinations(contest.variants, 2)
    }


def test_every_row_that_a_claim_reads_is_shipped():
    """I1.3 asks what (a) and (b) cost at two sizes and at tiny, I1b of long steps."""
    criterion = every_criterion()["I1b"]
    bench = Bench(ROWS, 2)
    bench.narrow(["long steps*"])
    [place] = criterion["configurations"]
    assert {
        (place, names[of], names["none"])
        for names in criterion["variants"].values()
        for of in ("forward", "optimizer")
    } <= _shipped(bench)
    criterion = every_criterion()["I1.3"]
    bench = Bench(ROWS, 2)
    bench.narrow(["multipliers*"])
    places = [*criterion["configurations"], criterion["small"]]
    asked = {
        (place, names[of], names["none"])
        for place in places
        for names in criterion["variants"].values()
        for of in ("forward", "optimizer")
    }
    assert len(asked) == 12 and asked <= _shipped(bench)
    # One process on both cores, where a step is long.
    threads = {
        place: {bench.candidate("plain", place, overrides=each.set).threads}
        for each in bench.plan.contests
        for place in each.at
    }
    assert threads == {place: {1 if place == criterion["small"] else 2} for place in places}


def test_rows_of_recipes_are_those_of_steepest_width():
    bench = Bench(ROWS.with_name("recipes.yaml"), 2)
    assert len(_shipped(bench)) == 4
    for width in (64, 256):
        runs = {
            variant: bench.candidate(variant, f"width {width}").run
            for variant in ("muP", "scalars", "steepest")
        }
        assert {run.settings.model.hidden_size for run in runs.values()} == {width}
        kinds = {name: {plan.optimizer for plan in run.plans} for name, run in runs.items()}
        assert kinds["muP"] == kinds["scalars"] == {"adamw"} and "adamw" not in kinds["steepest"]
        scaled = [name for name, run in runs.items() if any(plan.multipliers for plan in run.plans)]
        assert scaled == ["scalars"]


def test_rows_of_scale_vectors_are_known_and_those_that_sv22_reads():
    bench = Bench(ROWS.with_name("scale_vectors.yaml"), 2)
    rows = _shipped(bench)
    criterion = every_criterion()["SV22"]
    of, against = criterion["variants"]["of"], criterion["variants"]["against"]
    assert {(place, of, against) for place in criterion["configurations"].values()} <= rows
    plans = {}
    for place, *variants in rows:
        for variant in variants:
            run = bench.candidate(variant, place).run
            plans[variant] = {each for plan in run.plans for each in plan.multipliers}
            assert run.settings.train.z_loss == 0 and run.execution.compile == "always"
            # Vectors learn at the LR of matrices, as in the experiments.
            assert {each.lr for each in plans[variant]} == {run.settings.optimizer.lr}
    assert {each.weight_decay for each in plans["unified"]} == {0.0, 0.1}
    large = bench.candidate("standard", "Llama 20M 8x512").run
    assert large.estimate().parameters == pytest.approx(20.5e6, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"rows": [{"name": "a", "of": "plain", "against": "none", "at": ["smoke"]}]},
            "no variant",
        ),
        ({"memory": [{"of": "plain", "at": "none"}]}, "no configuration 'none'"),
        ({"variants": {"plain": {"tris": []}}}, "unknown key variants.plain.tris"),
        ({"cores": 0}, "cores"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line(tmp_path, changes, words):
    plan = {"cores": 1, "configurations": {"smoke": SMOKE}, "variants": {"plain": {}}, **changes}
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump(plan))
    with pytest.raises(UserError, match=words) as error:
        Bench(tmp_path / "rows.yaml", 1)
    assert "\n" not in str(error.value)


def test_no_record_is_overwritten(tmp_path):
    """Nor is anything measured first."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "it.json").write_text("{}")
    _, told = call("--results", tmp_path, "--name", "it", code=2)
    assert told.startswith("error: ") and "it.json is there already; move it away" in told
    assert not (tmp_path / "data").exists()


def test_without_transformers_one_line_names_the_remedy(tmp_path):
    """A folder that shadows nothing: its finder says that the package is not there."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'transformers' else found(name, *a)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {"PYTHONPATH": path, "PATH": "", "OMP_NUM_THREADS": "1"}
    _, progress = call("--results", tmp_path, code=2, python=sys.executable, env=environment)
    assert progress.count("\n") == 1
    assert "transformers" in progress and "pip install 'lrm-suite[evaluation]'" in progress


def test_publishing_asks_for_rows_of_the_suite_and_for_pairs(tmp_path):
    for options in (("--pairs", 5), ("--rows", tmp_path / "rows.yaml")):
        _, progress = call("--publish", *options, "--results", tmp_path, code=2)
        assert "at least 20 pairs" in progress
    _, progress = call("--only", "nothing*", "--results", tmp_path, code=2)
    assert "against transformers" in progress


def test_medians_with_order_statistics():
    found = median(range(1, 21))
    # P(X_(6) <= median <= X_(15)) of 20 values is 95.9%.
    assert (found.median, found.low, found.high) == (10.5, 6, 15)
    assert found.coverage == pytest.approx(0.9586, abs=1e-4)
    few = median([3.0, 1.0])
    assert (few.low, few.high, few.coverage) == (1.0, 3.0, 0.5)
    assert median([2.0]).coverage == 0.0
    # Against simulation, on a distribution with heavy tails whose median is 0.
    draws = np.random.default_rng(1).standard_cauchy((4000, 9))
    inside = [m.low <= 0 <= m.high for m in map(median, draws.tolist())]
    assert np.mean(inside) == pytest.approx(median(draws[0].tolist()).coverage, abs=0.02)


def test_the_delta_rule_is_timed_in_turn(tmp_path, capsys):
    """Each rule in each round, on inputs for which they agree."""
    shapes = {"small": (2, 40, 2, 4, 6)}
    tensors = delta.inputs(shapes["small"])
    results = {name: rule(*tensors)[0] for name, rule in delta.rules().items()}
    assert {"chunks of 32", "step by step", "transformers"} <= results.keys()
    for name, found in results.items():
        torch.testing.assert_close(found, results["step by step"], rtol=1e-4, atol=1e-5, msg=name)
    rows = delta.measure(6, shapes)
    assert [len(row["seconds"]) for row in rows] == [6] * len(results)
    lines = delta.render({"rows": rows}).splitlines()
    assert len(lines) == 1 + len(results)
    [ours] = [line for line in lines if "chunks of 32" in line]
    assert "1.00  1.00 to 1.00" in ours
    with pytest.raises(SystemExit) as stopped:
        delta.main(["--rounds", "5"])
    assert stopped.value.code == 2 and "--rounds of 6 or more" in capsys.readouterr().err
