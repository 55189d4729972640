"""YAML, arms, grids, rules, identities: what a run is, and one clear line for what it cannot be."""

import dataclasses
import math
from pathlib import Path

import pytest
from conftest import missing_at, of_second_paper

from lrm.cli import parse_seeds
from lrm.errors import UserError
from lrm.plan import rules
from lrm.plan.experiment import SCALES, load
from lrm.plan.timescales import products
from lrm.plan.yaml import PRESETS, NotTuned, expand, names_in, read_yaml, substitute
from lrm.sweep.scheduler import ordered

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
BODY = """
title: a test
use: [scale/smoke]
grid: {S: [0.5, 2.0]}
rules: [{match: projector, relative_scale: $S}]
arms:
  A: {rules: [{match: norm.final, weight: frozen}]}
  B: {optimizer: {lr: 0.5}}
"""


@pytest.fixture
def experiment(tmp_path):
    """A function from YAML text to the experiment."""

    def make(text: str = BODY):
        path = tmp_path / "some_name" / "config.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return load(path)

    return make


def plan_of(run, key):
    return next(plan for plan in rules.resolve(run.settings) if plan.key == key)


def test_arms_times_grid_times_seeds(experiment):
    runs = experiment().runs("smoke", [0, 7])
    assert len(runs) == 8
    assert {run.experiment for run in runs} == {"some_name"}
    assert [run.label for run in runs][:2] == ["A S=0.5 seed=0", "A S=0.5 seed=7"]
    first = plan_of(runs[0], "projector")
    assert (first.lr, first.weight_decay) == (8.0e-3 * 0.5, 0.5 / 0.5)
    assert not plan_of(runs[0], "norm.final").trainable
    assert plan_of(runs[-1], "norm.final").trainable
    assert runs[-1].settings.optimizer.lr == 0.5


def test_arms_that_wait_for_a_search_are_left_out(experiment):
    text = BODY.replace("  B: {", "  B: {use: [tuned/$scale/NOWHERE], ")
    found = experiment(text)
    assert {run.arm for run in found.runs("smoke", [0])} == {"A"}
    assert found.untuned("smoke") == ["B"] and experiment().untuned("smoke") == []
    with pytest.raises(NotTuned, match="run make tune SCALE=smoke PUBLISH=1"):
        found.runs("smoke", [0], only=["B *"])
    with pytest.raises(NotTuned, match="tuned/smoke/NOWHERE"):
        experiment(text.replace("  A: {", "  A: {use: [tuned/$scale/NOWHERE], ")).runs("smoke", [0])


def test_an_arm_of_some_scales_only(experiment):
    text = BODY.replace("  B: {", "  B: {scales: [tiny, small], ")
    arms = {scale: {run.arm for run in experiment(text).runs(scale, [0])} for scale in SCALES}
    both = {"A", "B"}
    assert arms == {"smoke": {"A"}, "tiny": both, "mini": {"A"}, "small": both, "paper": {"A"}}
    # It is no setting, and says nothing of what a run is.
    assert experiment(text).runs("tiny", [0])[-1] == experiment().runs("tiny", [0])[-1]
    for wrong, said in (("[huge]", "unknown scale 'huge'"), ("tiny", "expected a list of scales")):
        with pytest.raises(UserError, match=f"arms.B: scales: {said}"):
            experiment(BODY.replace("  B: {", f"  B: {{scales: {wrong}, "))


def test_long_runs_come_first_so_that_workers_end_together():
    runs = load(EXPERIMENTS / "table1" / "config.yaml").runs("tiny", [0])
    (first, _), *rest = ordered([(run, Path()) for run in runs])
    assert first == runs[0]
    kinds = [run.kind for run, _ in rest]
    assert kinds == sorted(kinds)  # brownian, then train
    for kind in ("brownian", "train"):
        flops = [run.estimate().flops for run, _ in rest if run.kind == kind]
        assert flops == sorted(flops, reverse=True)


def test_an_lr_is_carried_on_to_another_length(experiment):
    """As a power of the number of steps; what is relative to it follows."""
    text = BODY + "optimizer: {lr_tuned_at: 5, lr_power: 0.5}\n"
    plain, carried = (
        dataclasses.replace(experiment(body).runs("smoke", [0])[-1], corpus="text")
        for body in (BODY, text)
    )
    by = math.sqrt(5 / plain.settings.train.steps)
    assert carried.settings.optimizer.lr == plain.settings.base_lr == plain.settings.optimizer.lr
    assert carried.settings.base_lr == pytest.approx(by * plain.settings.base_lr)
    for before, after in zip(plain.plans, carried.plans, strict=True):
        assert after.lr == pytest.approx(by * before.lr) and before.multipliers == after.multipliers
    assert plain.id != carried.id and "lr_tuned_at" not in str(plain.content())
    with pytest.raises(UserError, match=r"lr_power needs .*optimizer\.lr_tuned_at"):
        experiment(BODY + "optimizer: {lr_power: 0.5}\n").runs("smoke", [0])


def test_the_long_run_carries_its_rates_on_from_its_presets():
    """As steps^-1/2 without multipliers and steps^-1/4 with, from the length of the scale."""
    experiment = load(EXPERIMENTS / "long_run" / "config.yaml")
    for scale in ("smoke", "mini"):
        for run in experiment.runs(scale, [0]):
            if run.kind != "train":
                continue
            settings = run.settings
            preset = read_yaml(PRESETS / "tuned" / scale / f"{run.arm}.yaml")["optimizer"]["lr"]
            search = load(EXPERIMENTS / "tuning_search" / "config.yaml")
            arm = run.arm.removesuffix("_FULL")
            tuned_at = search.settings(scale, arm, None)[0].train.steps
            power = 0.25 if "LRM" in run.arm else 0.5
            by = (tuned_at / settings.train.steps) ** power
            assert settings.base_lr == pytest.approx(by * preset)


def test_noise_does_not_keep_gpus_from_training():
    runs = load(EXPERIMENTS / "table1" / "config.yaml").runs("small", [0])
    _, *rest = ordered([(run, Path()) for run in runs])
    kinds = [run.kind for run, _ in rest]
    assert kinds == sorted(kinds, reverse=True) and {"brownian", "train"} == set(kinds)


def test_precedence(experiment):
    """use < experiment < scale < arm < grid point < --set."""
    text = BODY + "optimizer: {lr: 0.1}\nscales: {smoke: {optimizer: {lr: 0.2}}}\n"
    by_arm = {run.arm: run for run in experiment(text).runs("smoke", [0])}
    assert by_arm["A"].settings.optimizer.lr == 0.2
    assert by_arm["B"].settings.optimizer.lr == 0.5
    changed = experiment(text).runs("smoke", [0], ["optimizer.lr=0.7", "execution.threads=2"])
    assert {run.settings.optimizer.lr for run in changed} == {0.7}
    assert {run.execution.threads for run in changed} == {2}


def test_values_may_differ_by_scale(experiment):
    text = BODY.replace("lr: 0.5", "lr: $rate") + "values: {rate: 0.25}\n"
    assert experiment(text).runs("smoke", [0])[-1].settings.optimizer.lr == 0.25
    text += "scales: {smoke: {values: {rate: 0.75}}}\n"
    assert experiment(text).runs("smoke", [0])[-1].settings.optimizer.lr == 0.75
    assert experiment(text).runs("tiny", [0])[-1].settings.optimizer.lr == 0.25


def test_the_last_rule_wins_field_by_field(experiment):
    text = """
title: rules
use: [scale/smoke]
rules:
  - {match: "mlp.*", lr: 0.5, multiplier: {kind: row_column, lr: 0.1}}
  - {match: mlp.up, lr_scale: 2.0, multiplier: {weight_decay: 0.3}}
  - {match: mlp.up@1, multiplier: {kind: scalar}}
  - {match: "attention.*", width_exponent: {lr: -1.0, forward: -0.5}}
base_width: 8
"""
    run = experiment(text).runs("smoke", [0])[0]
    up, up1, q = (plan_of(run, key) for key in ("mlp.up@0", "mlp.up@1", "attention.q@0"))
    assert up.lr == 1.0
    assert [(f.axis, f.lr, f.weight_decay) for f in up.multipliers] == [
        ("row", 0.1, 0.3), ("column", 0.1, 0.3)]  # fmt: skip
    assert [f.axis for f in up1.multipliers] == ["scalar"]
    assert (q.lr, q.forward) == (8.0e-3 / 4, 0.5)


def test_identity_changes_with_the_mathematics_only(experiment):
    def ids(*overrides, corpus="abc", seeds=(0,)):
        runs = experiment().runs("smoke", list(seeds), list(overrides))
        return [dataclasses.replace(run, corpus=corpus).id for run in runs]

    base = ids()
    assert len(set(base)) == len(base)
    assert ids("execution.threads=2", "execution.checkpoint_every=7") == base
    for other in (
        ids("train.steps=61"),
        ids("optimizer.beta2=0.9"),
        ids(corpus="abd"),
        ids(seeds=(1,)),
    ):
        assert not set(other) & set(base)
    assert ids("train.steps=60") == base  # the value that it has anyway
    assert ids("data.synthetic_seed=3") == base  # the corpus hash tells what was read


def test_arms_of_equal_mathematics_are_two_runs(experiment):
    """Otherwise one of them would be missing from the table."""
    text = BODY.replace(
        "B: {optimizer: {lr: 0.5}}", "B: {rules: [{match: norm.final, weight: frozen}]}"
    )
    runs = [dataclasses.replace(r, corpus="abc") for r in experiment(text).runs("smoke", [0])]
    assert len({run.id for run in runs}) == 4


def test_identity_of_a_brownian_motion(experiment):
    """Its length and probes enter, the validation set does not."""
    text = BODY + "brownian: {match: [projector], arms: [A]}\n"

    def ids(*overrides):
        runs = experiment(text).runs("smoke", [0, 1], list(overrides))
        return [run.id for run in runs if run.kind == "brownian"]

    assert len(ids()) == 2  # one for each S, whatever the seeds
    assert ids("train.validation_sequences=7", "data.synthetic_seed=2") == ids()
    assert not set(ids("probes.every=5", "probes.vectors_every=10")) & set(ids())
    assert not set(ids("train.steps=61")) & set(ids())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title:", "titel:", "title is missing"),
        ("grid:", "gird:", "unknown key gird; did you mean grid?"),
        ("optimizer: {lr", "optimizer: {lrr", "unknown key optimizer.lrr; did you mean lr?"),
        ("lr: 0.5", "lr: 5e-1", "'5e-1' is text, not a number; write 5.0e-1"),
        ("lr: 0.5", "lr: true", "optimizer.lr"),
        ("lr: 0.5", "lr: -1.0", "greater than 0"),
        ("weight: frozen", "weigth: frozen", "unknown key rules.1.weigth; did you mean weight?"),
        ("weight: frozen", "weight: cold", "rules.1.weight"),
        ("match: norm.final", "match: norm.last", "'norm.last' matches no tensor"),
        ("match: norm.final", "match: norm.ssm", "matches nothing in this model"),
        ("match: norm.final", "match: mlp.up@x", "is no layer"),
        (
            "$S",
            "$T",
            "$T is no grid axis and no value at this scale; there are scale, arm, S; define it",
        ),
        ("scale/smoke", "scale/smok", "no preset 'scale/smok'"),
        ("[0.5, 2.0]", "0.5", "grid.S must be a list"),
        ("arms:", "arms: [", "not valid YAML"),
        ("title: a", "title: b\ntitle: a", "the key 'title' is given twice"),
        ("use: [scale/smoke]", "use: scale/smoke", "use must be a list of presets"),
        ("use: [scale/smoke]", "use: [3]", "use must be a list of presets"),
        ("grid: {S: [0.5, 2.0]}", "grid: [1, 2]", "grid must map names to values"),
        ("grid: {S: [0.5, 2.0]}", "grid: {seed: [1]}", "that name is a column of every table"),
        ("[0.5, 2.0]", "[[0.5, 2.0]]", "must be a list of values (numbers or text)"),
        ("[0.5, 2.0]", "[0.5, 0.5]", "has a value twice"),
        ("  A:", "  1:", "the name 1 is not text; put it in quotes"),
        ("  A:", "  NO:", "the name False is not text; put it in quotes"),
        ("lr: 0.5", "eps: 0.0", "greater than 0"),
        ("optimizer: {lr: 0.5}", "model: {initializer_range: -0.1}", "greater than 0"),
        ("optimizer: {lr: 0.5}", "execution: {device: meta}", "execution"),
        ("optimizer: {lr: 0.5}", "probes: {every: 7}", "must be a multiple of every = 7"),
        ("title: a test", "title: a test\nat: [smoke, tin]", "at: unknown scale 'tin'; use smoke"),
        ("norm.final, weight: frozen", "norm.final, forward: 2.0", "are for matrices"),
        ("norm.final, weight: frozen", "mlp.up, compensate: true", "is for a relative_scale"),
        ("norm.final, weight: frozen", "norm.final, init_seed: 2", "init_seed is for values that"),
        (
            "match: norm.final, weight: frozen",
            "match: norm.final, weight: scalar, multiplier: {kind: row}",
            "weight = scalar is a multiplier already",
        ),
        ("rules: [{match: norm.final, weight: frozen}]", "model: {head_dim: 3}", "must be even"),
        (
            "rules: [{match: norm.final, weight: frozen}]",
            "model: {num_key_value_heads: 4, num_attention_heads: 6}",
            "num_key_value_heads = 4 must divide num_attention_heads = 6",
        ),
        (
            "rules: [{match: norm.final, weight: frozen}]",
            "schedule: {decay_steps: 100}",
            "exceed train.steps",
        ),
        (
            "match: norm.final, weight: frozen",
            "match: norm.final, multiplier: {kind: column}",
            "needs a matrix",
        ),
    ],
)
def test_one_clear_line(experiment, old, new, message):
    assert old in BODY
    with pytest.raises(UserError) as caught:
        for run in experiment(BODY.replace(old, new, 1)).runs("smoke", [0]):
            rules.resolve(run.settings)
    text = str(caught.value)
    assert message in text and "\n" not in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "use: [optimizer/muon]",
        "model: {mixer: attention}",
        "run: lrm.plan.run:TheoryRun\ntheory: {simulate: sizes}\nmodel: {mixer: gdn}",
        "scales: {tiny: {use: [scale/tiny]}}",
    ],
)
def test_a_model_of_no_size_is_not_the_paper_s(experiment, text):
    message = r"nothing says how large the model is; write use: \[scale/\$scale\], or model.hidden"
    with pytest.raises(UserError, match=message):
        experiment(f"title: x\n{text}\n").runs("smoke", [0])


@pytest.mark.parametrize(
    "text",
    [
        "use: [scale/paper]",
        "arms: {A: {use: [scale/$scale]}}",
        "scales: {smoke: {use: [scale/smoke]}}",
        "model: {hidden_size: 64, intermediate_size: 128}",
        "run: lrm.plan.run:TheoryRun\ntheory: {simulate: flow, design: standard}",
    ],
)
def test_a_size_may_be_stated_anywhere(experiment, text):
    assert experiment(f"title: x\n{text}\n").runs("smoke", [0])


def test_values_that_nothing_refers_to(experiment):
    values = BODY + "values: {unused: 3}\n"
    with pytest.raises(UserError, match=r"values.unused: no setting refers to \$unused; use or"):
        experiment(values).check_names()
    of_tiny = "scales: {tiny: {values: {unused: 3}}}"
    for old, new in (("  A: {", "  A: {values: {unused: 3}, "), ("arms:", f"{of_tiny}\narms:")):
        with pytest.raises(UserError, match="values.unused: no setting"):
            experiment(BODY.replace(old, new)).check_names()
    # Another arm, another scale or a preset may refer to it.
    arm = values.replace("lr: 0.5", "lr: $unused")
    for text in (arm, arm.replace("B: {", "B: {scales: [tiny], ")):
        experiment(text).check_names()
    preset = BODY + "values: {input_decay: 0.3}\n"
    with pytest.raises(UserError, match="values.input_decay: no setting"):
        experiment(preset).check_names()
    experiment(preset.replace("  B: {", "  B: {use: [vector_decay/input], ")).check_names()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.step=3", "unknown key train.step; did you mean steps?"),
        ("train.steps", "write it as key=value"),
        ("train.steps=many", "train.steps"),
        ("optimizer.lr=1e-4", "write 1.0e-4"),
        ("rules=[]", "change them in the YAML"),
        ("nonsense.key=1", "unknown key nonsense"),
    ],
)
def test_overrides_that_are_wrong(experiment, override, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        experiment().runs("smoke", [0], [override])


def test_fewer_steps_keep_the_shape_of_the_schedule(experiment):
    [run, *_] = experiment().runs("smoke", [0], ["train.steps=30"])
    assert (run.settings.schedule.warmup_steps, run.settings.schedule.decay_steps) == (2, 5)
    [run, *_] = experiment().runs("smoke", [0], ["train.steps=30", "schedule.decay_steps=7"])
    assert (run.settings.schedule.warmup_steps, run.settings.schedule.decay_steps) == (5, 7)
    # One that repeats what is planned is meant, too.
    [planned, *_] = experiment().runs("smoke", [0])
    for name in ("warmup_steps", "decay_steps"):
        value = getattr(planned.settings.schedule, name)
        [run, *_] = experiment().runs("smoke", [0], ["train.steps=30", f"schedule.{name}={value}"])
        assert run.settings.schedule == planned.settings.schedule


def test_only_and_scale(experiment):
    every = experiment().runs("smoke", [0])
    some = experiment().runs("smoke", [0], only=["A*"])
    assert len(some) == 2
    assert experiment().runs("smoke", [0], only=["A*", "B*"]) == every
    with pytest.raises(UserError, match=r"--only 'C\*' selects no run; labels look like"):
        experiment().runs("smoke", [0], only=["A*", "C*"])
    with pytest.raises(UserError, match="'C.' --only 'D.' selects no run; labels look like"):
        experiment().runs("smoke", [0], only=["C*", "D*"])
    with pytest.raises(UserError, match="unknown scale"):
        experiment().runs("huge", [0])


def test_seeds():
    assert parse_seeds("3") == [0, 1, 2]
    assert parse_seeds("100-102,7") == [100, 101, 102, 7]
    assert parse_seeds("5,") == [5]
    for text in ("", "a", "3-1"):
        with pytest.raises(UserError, match="write a number"):
            parse_seeds(text)
    assert parse_seeds("99") == list(range(99)) and parse_seeds("200-200") == [200]
    with pytest.raises(UserError, match="write 200-200 for that seed, or 0-199 for so many"):
        parse_seeds("200")


@pytest.mark.parametrize("name", sorted(p.parent.name for p in EXPERIMENTS.glob("*/config.yaml")))
@pytest.mark.parametrize("scale", SCALES)
def test_every_experiment_plans_at_every_scale(name, scale):
    experiment = load(EXPERIMENTS / name / "config.yaml")
    missing = missing_at(experiment, scale)
    if missing:
        with pytest.raises(UserError, match=missing):
            experiment.runs(scale, [0])
        return
    for run in experiment.runs(scale, [0]):
        if run.kind == "evaluation":
            assert run.after in experiment.runs(scale, [0]) and run.estimate().flops > 0
            continue
        plans = rules.resolve(run.settings)
        assert products(plans, run.settings) or run.settings.optimizer.weight_decay == 0
        if scale == "paper" and run.kind == "train":
            if name.startswith("sv_"):
                parameters, tokens = of_second_paper(run)
                assert run.estimate().parameters == pytest.approx(parameters, rel=0.01)
                assert run.estimate().tokens == pytest.approx(tokens, rel=0.01)
                continue
            if name not in ("mlp_scale_design", "width_scaling", "table1"):  # of other shapes
                assert run.estimate().parameters == 521_411_104
            if name not in ("projector_controls", "table1"):  # which vary batch or length
                length = 240e9 if name == "long_run" else 30e9
                assert run.estimate().tokens == pytest.approx(length, rel=0.01)


WIDE = """
title: a test
use: [scale/smoke]
grid: {width: [16, 32, 64]}
width: {hidden_size: $width, steps_exponent: 1}
model: {num_key_value_heads: 2}
rules: [{match: projector, width_exponent: {lr: -1, forward: -0.5}}]
"""


def test_width_grows_every_size_and_the_steps(experiment):
    narrow, same, wide = experiment(WIDE).runs("smoke", [0])
    for name in ("hidden_size", "intermediate_size", "mamba_d_ssm", "mamba_n_heads",
                 "num_attention_heads", "num_key_value_heads"):  # fmt: skip
        stated = getattr(same.settings.model, name)
        assert getattr(narrow.settings.model, name) * 2 == stated
        assert getattr(wide.settings.model, name) == stated * 2
    assert wide.settings.model.head_dim == same.settings.model.head_dim
    assert wide.settings.model.vocab_size == same.settings.model.vocab_size
    assert [run.settings.train.steps for run in (narrow, same, wide)] == [30, 60, 120]
    assert wide.settings.schedule.decay_steps == 2 * same.settings.schedule.decay_steps
    assert plan_of(wide, "projector").lr == plan_of(same, "projector").lr / 2
    assert plan_of(narrow, "projector").forward == pytest.approx(2**0.5)
    plain = experiment(WIDE.replace(", steps_exponent: 1", "")).runs("smoke", [0])
    assert {run.settings.train.steps for run in plain} == {60}


def test_sizes_of_a_mixer_that_the_model_lacks_forbid_no_width(experiment):
    odd = WIDE.replace("model: {", "model: {mixer: attention, mamba_n_heads: 3, ")
    narrow, same, wide = experiment(odd).runs("smoke", [0])
    found = [run.settings.model.mamba_n_heads for run in (narrow, same, wide)]
    assert found == [3, 3, 6]  # where they can, they grow, for the sake of published ids
    with pytest.raises(UserError, match="width: hidden_size 16 makes mamba_n_heads 1.5"):
        experiment(odd.replace("mixer: attention", "mixer: both")).runs("smoke", [0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("num_key_value_heads: 2", "num_key_value_heads: 1"),
         "width: hidden_size 16 makes num_key_value_heads 0.5"),
        (("width: {hidden_size", "width: {hidden"), "width: unknown key hidden"),
        (("use: [scale/smoke]\n", "use: [scale/paper]\n"), "state model.hidden_size too"),
        (("hidden_size: $width", "hidden_size: 0"), "width: hidden_size"),
    ],
)  # fmt: skip
def test_impossible_widths_are_one_line(experiment, change, message):
    with pytest.raises(UserError, match=message):
        experiment(WIDE.replace(*change)).runs("smoke", [0])


def test_a_name_ends_where_its_letters_do():
    names = {"scale": "smoke", "arm": "ADAM_FULL", "S": "0.5"}
    assert substitute("$S", names, "here") == "0.5"
    assert substitute(["at $scale/$S", "$scale"], names, "here") == ["at smoke/0.5", "smoke"]
    assert names_in({"a": ["$one-b", "$two"]}) == {"one", "two"}
    with pytest.raises(UserError, match=r"\$arm_LONG is no grid axis"):
        substitute("$arm_LONG", names, "here")
    for wrong in ("tuned/$scale/$arm_LONG", "tuned/$scale/${arm}"):
        with pytest.raises(UserError, match=r"only \$scale, \$arm, \$S stand for") as told:
            list(expand({"use": [wrong]}, names, "here"))
        assert not isinstance(told.value, NotTuned)
    layers = [layer for layer, _ in expand({"use": ["tuned/$scale/$arm"]}, names, "here")]
    assert list(layers[0]) == ["optimizer"]
