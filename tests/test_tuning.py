"""The search for hyperparameters: what it decides, what it tries, that it is resumed."""

import argparse
import dataclasses
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm

from lrm.errors import UserError
from lrm.plan import yaml
from lrm.plan.experiment import load
from lrm.plan.rules import resolve
from lrm.plan.run import TrainRun
from lrm.plan.search import Search
from lrm.plan.yaml import PRESETS
from lrm.store.digests import sealed
from lrm.store.files import write_listed
from lrm.sweep.tuning import command as tuning_command
from lrm.sweep.tuning import presets, trials
from lrm.sweep.tuning.driver import ArmTuning, Tuning
from lrm.sweep.tuning.points import Point, layer
from lrm.sweep.tuning.stages import ArmSearch, Decision, Trial
from lrm.sweep.tuning.trials import TrialLog, TrialRun

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "experiments" / "tuning_search" / "run.py"
EXPERIMENT = load(PROGRAM.with_name("config.yaml"))
STAGES = {
    "NONE": {},
    "LR": {"tune": "lr", "groups": ("mlp", "projector")},
    "FULL": {"tune": "forward", "groups": ("mlp",)},
}
GROUPS = {"mlp": ("mlp.*",), "projector": ("projector",)}


def rules(**more) -> Search:
    return Search.model_validate({"groups": GROUPS, "stages": STAGES, **more})


def searched(search: Search, loss, arm: str = "ADAM") -> ArmSearch:
    """The search of an arm whose trials have these losses."""
    arm = ArmSearch(search, search.stages_of(arm), arm)
    asking = arm.run()
    asked = next(asking)
    try:
        while True:
            assert asked and len(set(asked)) == len(asked), "nothing, or the same twice"
            asked = asking.send({trial: loss(trial) for trial in asked})
    except StopIteration:
        return arm


def noise(trial: Trial, size: float) -> float:
    """Of the seed, which all points share, and a little of its own."""
    own = random.Random(repr(trial)).gauss(0, size)
    return random.Random(trial.seed).gauss(0, 0.1) + own


def test_the_base_lr_is_found_wherever_it_is():
    for best in (-7, -1, 0, 3, 6):
        arm = searched(rules(), lambda trial, best=best: 0.1 * abs(trial.point.lr - best))
        assert [decision.point for decision in arm.decisions] == [Point(best)] * 3
        at_full = {trial.point.lr for trial in arm.losses if trial.full}
        assert {best - 1, best, best + 1} <= at_full, "both neighbours were tried in full"


def test_a_neighbour_takes_a_second_seed_only_where_the_first_is_for_it():
    """The higher neighbour is better with one confirming seed and worse on the mean of both."""

    def loss(trial):
        lucky = trial.full and trial.point.lr == 1 and trial.seed == rules().confirm_seeds[0]
        return 0.1 * abs(trial.point.lr) - 0.15 * lucky

    arm = searched(rules(), loss)
    assert arm.decisions[0].point == Point()
    tried = sorted((trial.point.lr, trial.seed) for trial in arm.losses if trial.full)
    first, second = rules().confirm_seeds
    assert tried == [(-1, first), (0, first), (0, second), (1, first), (1, second)]


def test_an_lr_that_diverges_with_the_second_seed_is_no_choice():
    """Its neighbours are far behind with the first seed, and the better of them counts."""

    def loss(trial):
        if trial.point.lr == 0 and trial.seed == 1:
            return math.inf
        return 0.1 * abs(trial.point.lr) + 0.01 * (trial.point.lr > 0)

    search = rules(reach=1, seeds=(0, 1), confirm_seeds=(0, 1), stages={"NONE": {}})
    arm = searched(search, loss)
    assert arm.decisions[0].point == Point(-1)
    arm = searched(search, lambda t: math.inf if t.seed == 1 and t.point.lr > -4 else loss(t))
    assert arm.decisions[0].point == Point(-4), "however far the first that finishes is"


def test_an_lr_that_diverges_is_no_choice():
    arm = searched(rules(), lambda trial: math.inf if trial.point.lr > 1 else -trial.point.lr)
    assert arm.decisions[0].point == Point(1)


def test_changes_that_gain_are_kept_and_go_further():
    """The best factor of the MLP's LR is 4, which takes two rounds; the projector's is 1."""

    def loss(trial):
        factors = dict(trial.point.factors)
        mlp = math.log2(factors.get(("lr", "mlp"), 1.0))
        projector = math.log2(factors.get(("lr", "projector"), 1.0))
        forward = math.log2(factors.get(("forward", "mlp"), 1.0))
        gap = abs(mlp - 2) + abs(projector) + 0.1 * abs(forward + 1) + abs(trial.point.lr)
        return 0.1 * gap + noise(trial, 1e-4)

    arm = searched(rules(), loss)
    none, lr, full = (decision.point for decision in arm.decisions)
    assert none == Point() and dict(lr.factors) == {("lr", "mlp"): 4.0}
    assert dict(full.factors) == {("lr", "mlp"): 4.0, ("forward", "mlp"): 0.5}


def test_an_arm_may_try_only_what_another_search_has_kept():
    """Every factor gains; of those that the arm may try, the MLP's goes further."""

    def loss(trial):
        changed = sum(abs(math.log2(value)) for _, value in trial.point.factors)
        return abs(trial.point.lr) - 0.1 * changed + noise(trial, 1e-4)

    search = rules(only_changes={"MUON*": {"LR": {"mlp": (0.5,)}, "FULL": {}}})
    arm = searched(search, loss, "MUON_LRM")
    tried = {trial.point.factors for trial in arm.losses}
    assert tried == {(), ((("lr", "mlp"), 0.5),), ((("lr", "mlp"), 0.25),)}
    assert dict(arm.decisions[1].point.factors) == {("lr", "mlp"): 0.25}
    assert arm.decisions[2].notes == ("this tier has nothing to try",)
    assert search.stages_of("ADAM") == search.stages
    # Behind the stages that are named it would try all: it ends there.
    search = rules(only_changes={"MUON*": {"LR": {"mlp": (0.5,)}}})
    assert list(search.stages_of("MUON")) == ["NONE", "LR"]


@pytest.mark.parametrize("changes, message", [
    ({"LRS": {}}, "only_changes.ADAM.LRS: no such stage; there are NONE, LR, FULL"),
    ({"FULL": {"projector": (2.0,)}}, "'projector' is no group of this stage; its groups are mlp"),
    ({"NONE": {"mlp": (2.0,)}}, "'mlp' is no group of this stage; it has none"),
])  # fmt: skip
def test_changes_of_a_stage_that_is_not_there(changes, message):
    with pytest.raises(ValueError, match=message):
        rules(only_changes={"ADAM": changes})


def test_two_changes_that_only_gain_alone_are_not_combined():
    def loss(trial):
        changed = len(trial.point.factors)
        return {0: 1.0, 1: 0.9, 2: 1.2}[min(changed, 2)] + abs(trial.point.lr) + trial.seed

    arm = searched(rules(), loss)
    assert len(arm.decisions[1].point.factors) == 1


def test_what_does_not_last_in_full_runs_is_dropped():
    def loss(trial):
        gain = 0.1 * len(trial.point.factors)
        return abs(trial.point.lr) + (gain if trial.full else -gain) + noise(trial, 1e-4)

    arm = searched(rules(), loss)
    assert [decision.point for decision in arm.decisions] == [Point()] * 3
    assert "gained -0." in arm.decisions[1].notes[0]


def test_what_fails_together_is_tried_alone_where_the_search_says_so():
    """In full runs the MLP's LR still gains, and the projector's takes more than that away."""

    def loss(trial):
        factors = dict(trial.point.factors)
        mlp, projector = (factors.get(("lr", name), 1.0) == 2.0 for name in GROUPS)
        gain = 0.2 * mlp + (-0.3 if trial.full else 0.1) * projector
        return abs(trial.point.lr) - gain + noise(trial, 1e-4)

    stages = {"NONE": {}, "LR": {"tune": "lr", "groups": ("mlp", "projector")}}
    once, twice = (
        searched(rules(stages=stages, factors=(2.0,), rounds=1, retry=retry), loss).decisions[-1]
        for retry in (False, True)
    )
    assert once.point == Point() and "gained -0." in once.notes[0]
    assert dict(twice.point.factors) == {("lr", "mlp"): 2.0}
    assert twice.notes == once.notes, "what failed is still told"


def test_short_runs_try_changes_at_their_own_best_lr():
    """There a higher base LR is best, so that at that of full runs raising any LR would gain."""

    def loss(trial):
        factors = dict(trial.point.factors)
        raised = math.log2(factors.get(("lr", "mlp"), 1.0))
        best = 0 if trial.full else 2
        return 0.1 * abs(trial.point.lr + raised - best) + noise(trial, 1e-4)

    stages = {"NONE": {}, "LR": {"tune": "lr", "groups": ("mlp", "projector")}}
    at_full, own = (searched(rules(stages=stages, short_lr=short), loss) for short in (False, True))
    tried = [{t.point.lr for t in arm.losses if t.point.factors and not t.full}
             for arm in (at_full, own)]  # fmt: skip
    assert tried == [{0}, {2}]
    assert "within the errors" in at_full.decisions[-1].notes[0]
    assert own.decisions[-1].notes == ("this tier added nothing",)
    assert [decision.point for decision in own.decisions] == [Point()] * 2


def test_each_stage_settles_the_base_lr_of_its_short_runs():
    """In longer ones a lower LR is best than in shorter ones, and a kept change moves it too."""
    stages = {"NONE": {}, "LR": {"tune": "lr", "groups": ("mlp",)},
              "LRWD": {"tune": "weight_decay", "groups": ("mlp",), "length": 0.75}}  # fmt: skip

    def loss(trial):
        factors = dict(trial.point.factors)
        lr, decay = (factors.get((what, "mlp"), 1.0) for what in ("lr", "weight_decay"))
        moved = lr == 2.0
        best = (0 if trial.full else 1 if trial.length else 3) + moved
        # A higher decay stands in for the lower LR that runs at another one would want.
        miss = trial.point.lr - best - 0.4 * math.log2(decay)
        return 0.1 * abs(miss) - 0.2 * moved + noise(trial, 1e-4)

    arm = searched(rules(stages=stages, short_lr=True, rounds=1), loss)
    tried = {what: {t.point.lr for t in arm.losses if (what, "mlp") in dict(t.point.factors)
                    and not t.full and t.length == length}
             for what, length in (("lr", None), ("weight_decay", 0.75))}  # fmt: skip
    assert tried == {"lr": {3}, "weight_decay": {2}}
    assert [(d.point.lr, len(d.point.factors)) for d in arm.decisions] == [(0, 0), (1, 1), (1, 1)]
    assert arm.decisions[-1].notes == ("this tier added nothing",)


def test_two_seeds_that_are_alike_bear_no_gain_alone():
    """A gain of 0.007 on both seeds in full runs, others spread by 0.03."""

    def loss(trial):
        base = 1.0 + abs(trial.point.lr)
        if trial.full or not trial.point.factors:
            return base - 0.007 * bool(trial.point.factors)
        return base - 0.1 - 0.04 * (trial.seed % 2)

    stages = {"NONE": {}, "LR": {"tune": "lr", "groups": ("mlp",)}}
    for pooled in (False, True):
        arm = searched(rules(stages=stages, factors=(2.0,), rounds=1, pooled=pooled), loss)
        assert bool(arm.decisions[-1].point.factors) != pooled


@pytest.mark.parametrize("noisy", [0.0, 0.02])
def test_every_arm_is_held_to_the_same_noise(noisy):
    """A gain of 0.018 in full runs is kept, and one of 0.010 is not, however its seeds differ."""
    stages = {"NONE": {}, "LR": {"tune": "lr", "groups": ("mlp",)}}
    for gain, kept in ((0.018, True), (0.010, False)):

        def loss(trial, gain=gain):
            base, changed = 1.0 + abs(trial.point.lr), bool(trial.point.factors)
            if trial.full:
                return base - changed * (gain + noisy * (trial.seed % 2 - 0.5))
            return base - 0.1 * changed

        arm = searched(rules(stages=stages, factors=(2.0,), rounds=1, spread=0.010), loss)
        assert bool(arm.decisions[-1].point.factors) is kept


@pytest.mark.parametrize("noisy", [0.0, 0.02])
def test_short_runs_of_every_arm_are_held_to_the_same_noise(noisy):
    """A gain of 0.018 in short runs is kept, and one of 0.010 is not, however its seeds differ."""
    for gain, kept in ((0.018, True), (0.010, False)):

        def loss(trial, gain=gain):
            base, changed = 1.0 + abs(trial.point.lr), bool(trial.point.factors)
            if trial.full:
                return base - 0.1 * changed
            return base - changed * (gain + noisy * (trial.seed % 2 - 0.5))

        stages = {"NONE": {}, "LR": {"tune": "lr", "groups": ("mlp",)}}
        search = rules(stages=stages, factors=(2.0,), rounds=1, short_spread={"ADAM_L*": 0.010})
        assert bool(searched(search, loss).decisions[-1].point.factors) is kept
        # Another arm is held to what its own seeds say.
        other = searched(search, loss, "MUON").decisions[-1].point.factors
        assert bool(other) is (noisy == 0)


def test_a_stage_may_have_longer_short_runs():
    """All of its trials have that length, and a change that gains in them alone is found."""
    stages = {"NONE": {}, "LR": {"tune": "lr", "groups": ("mlp",)},
              "LRWD": {"tune": "weight_decay", "groups": ("mlp",), "length": 0.75}}  # fmt: skip

    def loss(trial):
        acts = trial.full or trial.length == 0.75
        changes = len([what for what, _ in trial.point.factors if what[0] == "weight_decay"])
        return abs(trial.point.lr) - 0.1 * changes * acts

    arm = searched(rules(stages=stages, factors=(2.0,), rounds=1), loss)
    assert dict(arm.decisions[-1].point.factors) == {("weight_decay", "mlp"): 2.0}
    assert {t.length for t in arm.losses if t.full} == {None}
    assert {t.length for t in arm.losses if not t.full} == {None, 0.75}
    run = ArmTuning(EXPERIMENT, base_of("ADAM"), {}, TrialLog(Path("nowhere"))).run_of
    whole = base_of("ADAM").settings.train.steps
    for trial, steps in ((Trial(Point(), 0, length=0.75), 0.75), (Trial(Point(), 0), 0.5)):
        assert run(trial).settings.train.steps == round(steps * whole)


def test_short_runs_are_shorter_than_full_ones():
    """Else a trial would count twice, in short and in full."""
    for wrong in ({"length": 1.0}, {"stages": {"NONE": {"length": 1.0}}}):
        with pytest.raises(ValueError, match="length\n  Input should be less than 1"):
            rules(**wrong)


@pytest.mark.parametrize("pooled, most", [(False, 20), (True, 14)])
def test_noise_alone_is_seldom_kept(pooled, most):
    """With nothing to gain, two standard errors of few seeds and full runs let little through."""
    kept = 0
    for number in range(200):

        def loss(trial, number=number):
            return abs(trial.point.lr) + random.Random(f"{number}{trial}").gauss(0, 0.01)

        arm = searched(rules(pooled=pooled), loss)
        kept += bool(arm.decisions[-1].point.factors)
    assert kept < most, kept


def test_the_budget_ends_a_stage():
    most = 15
    arm = searched(rules(trials=most), lambda trial: abs(trial.point.lr) - len(trial.point.factors))
    assert len(arm.losses) <= most
    assert any("budget of 15 trials" in note for d in arm.decisions for note in d.notes)
    assert len(arm.decisions) == 3


def test_a_group_must_be_there():
    for wrong, said in (
        ({"tune": "lr", "groups": ("nothing",)}, "no group 'nothing'"),
        ({"tune": "lr"}, "belong together"),
    ):
        with pytest.raises(ValueError, match=said):
            rules(stages={"NONE": wrong})
    with pytest.raises(ValueError, match="only the lr"):
        Search.model_validate({"groups": {"a": ("multipliers",)},
                               "stages": {"F": {"tune": "forward", "groups": ("a",)}}})  # fmt: skip


# From a point to settings, and to the preset.


def base_of(arm: str) -> TrainRun:
    return TrainRun(EXPERIMENT.name, "tiny", arm, {}, 0, *EXPERIMENT.settings("tiny", arm))


def settings_at(arm: str, point: Point, search: Search = EXPERIMENT.search("tiny")):  # noqa: B008
    given = layer(point, search, base_of(arm))
    return EXPERIMENT.settings("tiny", arm, given)[0]


def plan_of(settings, key):
    return next(plan for plan in resolve(settings) if plan.key == key)


def test_a_point_changes_what_it_names_and_nothing_else():
    point = Point(2).times("lr", "mlp", 2.0).times("weight_decay", "mlp", 0.5)
    before, after = settings_at("ADAM", Point()), settings_at("ADAM", point)
    assert after.optimizer.lr == pytest.approx(2 * before.optimizer.lr)
    for old, new in zip(resolve(before), resolve(after), strict=True):
        factor = 2.0 if old.address.name.startswith("mlp.") else 1.0
        assert new.lr == pytest.approx(2 * factor * old.lr)
        assert new.weight_decay == pytest.approx(old.weight_decay / factor)
        assert new.forward == old.forward
    assert point.times("lr", "mlp", 0.5).times("weight_decay", "mlp", 2.0) == Point(2)


def test_a_forward_factor_is_where_multipliers_start():
    point = Point().times("forward", "mlp", 2.0).times("forward", "projector", 4.0)
    plain = settings_at("ADAM", point)
    assert plan_of(plain, "mlp.up@0").forward == 2.0
    learned = settings_at("ADAM_LRM", point)
    up = plan_of(learned, "mlp.up@0")
    row, column = up.multipliers
    assert (up.forward, row.init, column.init) == (1.0, 2.0, 1.0)
    assert row.lr == 2 * column.lr, "a step is the same share"
    # The projector has no multipliers of its own.
    assert plan_of(learned, "projector").forward == 4.0
    (scalar,) = plan_of(settings_at("ADAM_SCALAR", point), "mlp.up@0").multipliers
    assert scalar.init == 2.0


def test_what_decay_takes_off_a_start_may_be_the_same_share():
    """Else a start at 2 decays twice as fast as one at 1, relative to itself."""
    point = Point().times("forward", "mlp", 2.0).times("lr", "multipliers", 0.5)
    scaled = EXPERIMENT.search("tiny").model_copy(update={"scaled_decay": True})
    for search, share in ((EXPERIMENT.search("tiny"), 2.0), (scaled, 1.0)):
        learned = settings_at("ADAM_LRM", point, search)
        row, column = plan_of(learned, "mlp.up@0").multipliers
        assert row.lr * row.weight_decay == pytest.approx(share * column.lr * column.weight_decay)
        assert row.weight_decay > 0
    bare = base_of("ADAM_LRM")
    none = bare.settings.multipliers.model_copy(update={"weight_decay": 0.0})
    bare = dataclasses.replace(
        bare, settings=bare.settings.model_copy(update={"multipliers": none})
    )
    assert "weight_decay" not in str(layer(Point().times("forward", "mlp", 2.0), scaled, bare))


def test_multipliers_have_a_group_of_their_own_or_share_one():
    search = EXPERIMENT.search("tiny")
    shared = {"vectors": (*search.groups["vectors"], "multipliers")}
    together = search.model_copy(update={"groups": {**search.groups, **shared}})
    apart = Point().times("lr", "vectors", 3.0).times("lr", "multipliers", 2.0)
    for point, rules_of, factor in (
        (apart, search, 3.0),
        (Point().times("lr", "vectors", 2.0), together, 2.0),
    ):
        settings = settings_at("ADAM_LRM", point.times("forward", "mlp", 0.5), rules_of)
        row, column = plan_of(settings, "mlp.up@0").multipliers
        assert column.lr == 2 * settings_at("ADAM_LRM", Point()).multipliers.lr
        assert row.lr == 0.5 * column.lr
        assert plan_of(settings, "norm.final").lr == factor * plan_of(settings, "mlp.up@0").lr


def test_a_group_of_tensors_with_and_without_multipliers_is_refused():
    search = Search.model_validate({"groups": {"all": ("*",)}, "stages": {"N": {}}})
    with pytest.raises(UserError, match="make two groups of them"):
        layer(Point().times("forward", "all", 2.0), search, base_of("ADAM_LRM"))


@pytest.mark.parametrize("arm", ["ADAM", "MUON_LRM", "ADAM_SCALAR"])
def test_a_preset_is_the_point(arm, tmp_path, monkeypatch):
    """An arm that uses the preset has the settings of the trial."""
    search = EXPERIMENT.search("tiny")
    point = Point(-3).times("lr", "vectors", 2.0).times("forward", "mlp", 0.5)
    point = point.times("lr", "multipliers", 0.25)
    point = point.times("weight_decay", "attention", 1 / 1024)
    records = [{"outcome": "finished", "flops": 1e9, "tokens": 10}]
    stages = search.stages | {"LRWD": search.stages["LRWD"].model_copy(update={"length": 0.75})}
    decision = Decision("FULL", point, ("a note",))
    found = layer(point, search, base_of(arm))
    text = presets.text(
        f"{arm}_FULL", "make tune SCALE=tiny", decision, found, search, stages, records
    )
    assert text.startswith(f"# {arm}_FULL, found by `make tune SCALE=tiny`.")
    assert "lr of vectors ×2" in text
    assert "Seeds 0, 1 with 0.5 times the scale's steps (LRWD 0.75) and 2, 3 in full." in text
    for source in PRESETS.rglob("*.yaml"):
        copy = tmp_path / source.relative_to(PRESETS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    file = tmp_path / "tuned" / "tiny" / f"{arm}_FULL.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    monkeypatch.setattr(yaml, "PRESETS", tmp_path)
    config = tmp_path / "experiments" / "one" / "config.yaml"
    config.parent.mkdir(parents=True)
    place = {"ADAM": "", "MUON_LRM": "placement/all, ", "ADAM_SCALAR": "placement/scalar, "}[arm]
    optimizer = "muon" if arm.startswith("MUON") else "adamw"
    config.write_text(
        "title: one\nuse: [scale/$scale, light_decay/$scale]\n"
        f"arms: {{{arm}_FULL: {{use: [optimizer/{optimizer}, {place}tuned/$scale/$arm]}}}}\n"
    )
    (run,) = load(config).runs("tiny", [0])
    assert run.settings == settings_at(arm, point)


def test_trials_of_another_name_are_taken_over(tmp_path):
    """What computes the same is in the log once more, under the own name, and does not run."""
    log, stages = TrialLog(tmp_path / "log.jsonl"), EXPERIMENT.search("smoke").stages

    def begun(arm):
        base = TrainRun(EXPERIMENT.name, "smoke", arm, {}, 0, *EXPERIMENT.settings("smoke", arm),
                        corpus="any")  # fmt: skip
        tuning = ArmTuning(EXPERIMENT, base, stages, log)
        return tuning, tuning.advance(tmp_path)

    first, jobs = begun("ADAM_LRM")
    assert first.shares is None and len(jobs) > 1
    for n, (run, _) in enumerate(jobs):
        log.add({"id": run.id, "arm": run.arm, "stage": "NONE", "point": {}, "seed": run.seed,
                 "steps": 6, "outcome": "finished", "loss": 3.0 + n, "early_loss": 4.0,
                 "tokens": 100, "flops": 2.0, "seconds": 0.1})  # fmt: skip
    other, asked = begun("ADAM_LRM_APART")
    assert other.shares == "ADAM_LRM"
    assert [record["loss"] for record in other.records] == [3.0 + n for n in range(len(jobs))]
    assert asked and not {run.computation for run, _ in asked} & {r.computation for r, _ in jobs}
    assert Tuning([first, other], tmp_path).following(jobs[0][0])


def test_a_trial_is_logged_though_an_earlier_one_of_its_batch_has_not_ended(tmp_path, monkeypatch):
    log, stages = TrialLog(tmp_path / "log.jsonl"), EXPERIMENT.search("smoke").stages
    base = TrainRun(EXPERIMENT.name, "smoke", "ADAM", {}, 0, *EXPERIMENT.settings("smoke", "ADAM"),
                    corpus="any")  # fmt: skip
    tuning = ArmTuning(EXPERIMENT, base, stages, log)
    jobs = tuning.advance(tmp_path)
    ended = {path for _, path in jobs[1:]}
    monkeypatch.setattr("lrm.sweep.tuning.driver.has_ended", ended.__contains__)
    told = {"outcome": "finished", "loss": 3.0, "early_loss": 4.0, "tokens": 100, "flops": 2.0,
            "seconds": 0.1}  # fmt: skip
    monkeypatch.setattr("lrm.sweep.tuning.driver.outcome", lambda *_: told)
    assert tuning.advance(tmp_path) == []
    assert set(log.records) == {run.id for run, _ in jobs[1:]}


def test_no_base_lr_is_stopped_while_it_is_settled():
    """A lower one trails early: a limit would say that it is worse."""
    watched = []

    class Watching(ArmSearch):
        def _settled(self, *arguments, **options):
            watched.append(self.incumbent)
            return super()._settled(*arguments, **options)

    def loss(trial):
        return abs(trial.point.lr) - 0.1 * len(trial.point.factors) + noise(trial, 1e-4)

    search = rules(short_lr=True)
    arm = Watching(search, search.stages_of("ADAM"), "ADAM")
    asking = arm.run()
    asked = next(asking)
    with pytest.raises(StopIteration):
        while True:
            asked = asking.send({trial: loss(trial) for trial in asked})
    assert dict(arm.decisions[1].point.factors) and len(watched) > 4
    assert watched == [None] * len(watched)


def test_a_rehearsal_has_a_gain_in_every_group_that_it_tries():
    tried = rules(only_changes={"MUON*": {"LR": {"mlp": (0.5,)}, "FULL": {}}})
    stages = tried.stages_of("MUON")
    none, all_gain = (tuning_command._rehearsed(tried, "MUON", stages, gain)
                      for gain in (False, True))  # fmt: skip
    assert len(all_gain) > len(none)


@pytest.mark.parametrize("wrong, said", [
    ({"seeds": (0, 0)}, "seeds: a seed is there twice"),
    ({"confirm_seeds": (2, 100)}, "seed 100 is one of those that judge"),
])  # fmt: skip
def test_seeds_of_a_search_explore(wrong, said):
    with pytest.raises(ValueError, match=said):
        rules(**wrong)


def test_trials_of_an_arm_that_is_not_there():
    said = {**EXPERIMENT.header.search, "trials_of": {"ADAM_LRM_APRAT": "ADAM_LRM"}}
    header = EXPERIMENT.header.model_copy(update={"search": said})
    with pytest.raises(UserError, match="trials_of: no arm 'ADAM_LRM_APRAT'; there are ADAM"):
        tuning_command._arms(dataclasses.replace(EXPERIMENT, header=header), "smoke", [])


# Trials.


@pytest.fixture
def trial(tmp_path):
    """A function that carries out a trial and returns what the log keeps of it."""
    results = tmp_path / "results"
    corpus = trial_corpus(results)

    def make(override=(), **options):
        settings = EXPERIMENT.settings("smoke", "ADAM", None, override)
        run = TrialRun(EXPERIMENT.name, "smoke", "ADAM", {}, 0, *settings,
                       corpus=corpus, **options)  # fmt: skip
        path = run.path(results)
        run.execute(path, results / "data")
        assert trials.has_ended(path)
        return run, trials.outcome(run, path)

    return make


def trial_corpus(results):
    from lrm import data

    settings, *_ = EXPERIMENT.settings("smoke", "ADAM")
    return data.prepare(settings.data, settings.model.vocab_size, results / "data").hash


def test_a_trial_is_stopped_at_a_third(trial):
    long = ("train.steps=150", "execution.compile=never")
    run, whole = trial(long)
    assert whole["outcome"] == "finished" and whole["loss"] < whole["early_loss"]
    same, again = trial(long, limit=whole["early_loss"] + 1.0)
    assert same.id == run.id and again == whole, "a limit is no part of what is computed"
    other, stopped = trial((*long, "optimizer.eps=1.0e-9"), limit=whole["early_loss"] - 0.5)
    assert other.id != run.id
    assert stopped["outcome"] == "stopped" and stopped["loss"] is None
    assert 1 / 3 < stopped["tokens"] / whole["tokens"] < 0.6


def test_a_trial_that_was_resumed_is_stopped_by_all_of_its_window(trial, tmp_path):
    """Half of the window lies before the resumption; what counts is the mean over all of it."""
    run, whole = trial(("train.steps=150", "execution.compile=never"))
    assert run.window == (25, 50)
    execution = run.execution.model_copy(update={"checkpoint_every": 38})
    run = dataclasses.replace(run, execution=execution)

    def interrupted(step, loss):
        if step > 38:
            raise KeyboardInterrupt

    for more, outcome in ((1e-4, "finished"), (-1e-4, "stopped")):
        path = tmp_path / outcome
        job = dataclasses.replace(run, limit=whole["early_loss"] + more)
        with pytest.raises(KeyboardInterrupt):
            job.execute(path, tmp_path / "results" / "data", interrupted)
        assert not trials.has_ended(path)
        job.execute(path, tmp_path / "results" / "data")
        assert trials.outcome(job, path)["outcome"] == outcome


def test_a_trial_that_diverges_ends_in_good_order(trial):
    _, found = trial(("optimizer.lr=1.0e+8", "train.clip_norm=0"))
    assert found["outcome"] == "diverged" and found["loss"] is None


def test_a_damaged_log_names_its_line(tmp_path):
    path = tmp_path / "log.jsonl"
    record = dict.fromkeys(trials._FIELDS, 1)
    log = TrialLog(path)
    log.add({**record, "id": "a"})
    log.add({**record, "id": "b"})
    with path.open("a") as file:
        file.write('{"id": "c", "ar')  # cut short
    assert list(TrialLog(path).records) == ["a", "b"]
    TrialLog(path).add({**record, "id": "d"})
    assert list(TrialLog(path).records) == ["a", "b", "d"]
    path.write_text(path.read_text().replace('"id": "b"', '"name": "b"'))
    with pytest.raises(UserError, match="line 2 is no record"):
        TrialLog(path)


# The command.


def command(folder, *options, python=None, only="ADAM", program=PROGRAM):
    return [python or warm.python, str(program), "--scale", "smoke", "--results", str(folder),
            "--presets", str(folder / "presets"), "--only", only, "--workers", "2",
            *options]  # fmt: skip


def test_what_ended_a_search_is_told_though_publishing_fails(tmp_path, monkeypatch, capsys):
    """The reason first, with the exit code that it has; the other line is not lost."""

    def refuse(*_):
        raise UserError("nothing was published")

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning_command, "_publish", refuse)
    monkeypatch.setattr(tuning_command, "with_corpora", lambda bases, *_, **__: bases)
    monkeypatch.setattr(tuning_command, "verify_corpora", lambda *_: None)
    monkeypatch.setattr(tuning_command.Tuning, "first", lambda self: [])
    for sweep, told in ((stop, KeyboardInterrupt), (lambda *_: None, UserError)):
        monkeypatch.setattr(tuning_command, "sweep", sweep)
        options = argparse.Namespace(
            scale="smoke", results=tmp_path, only=["ADAM"], dry_run=False, workers=1, publish=True,
            presets=tmp_path / "presets", from_published=False, until=None,
        )  # fmt: skip
        with pytest.raises(told):
            tuning_command._main(EXPERIMENT, options)
        assert ("nothing was published" in capsys.readouterr().err) == (sweep is stop)
    # Presets of the tree are not those of results that lie elsewhere.
    options.presets = PRESETS / "tuned"
    with pytest.raises(UserError, match="--publish would replace presets of the search in"):
        tuning_command._main(EXPERIMENT, options)


@pytest.mark.parametrize(
    ("name", "arm"),
    [
        ("steepest_search", "STEEPEST_SEEN"),
        ("tuning_search", "MUON_LRM"),
    ],
)
def test_searches_of_other_arms_end_and_publish(tmp_path, name, arm):
    program = PROGRAM.parents[1] / name / "run.py"
    tune = command(tmp_path, "--publish", only=arm, program=program)
    done = subprocess.run(tune, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tiers = load(program.with_name("config.yaml")).search("smoke").stages
    published = {path.stem for path in (tmp_path / "presets" / "smoke").iterdir()}
    assert published == {f"{arm}_{tier}" for tier in tiers}


def test_a_search_refuses_an_lr_that_its_short_runs_would_change(tmp_path):
    path = tmp_path / "some_search" / "config.yaml"
    path.parent.mkdir()
    carried = "use: [scale/$scale]\noptimizer: {lr_tuned_at: 5, lr_power: 0.5}\n"
    search = "arms: {A: {}}\nsearch: {groups: {}, stages: {N: {}}}\n"
    path.write_text(f"title: a test\n{carried}{search}")
    with pytest.raises(UserError, match="A: a search finds the LR of each length; leave out opt"):
        tuning_command._base(load(path), "smoke", "A")


def test_a_search_killed_and_resumed(tmp_path):
    log = tmp_path / "tuning" / "smoke" / "tuning_search.jsonl"
    process = subprocess.Popen(command(tmp_path, python=sys.executable), cwd=ROOT,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    while not log.exists() or len(log.read_text().splitlines()) < 4:
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = log.read_text().splitlines()

    done = subprocess.run(command(tmp_path, "--publish"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = log.read_text().splitlines()
    assert lines[: len(before)] == before
    ids = [json.loads(line)["id"] for line in lines]
    assert len(set(ids)) == len(ids)
    published = tmp_path / "presets" / "smoke"
    tiers = list(EXPERIMENT.search("smoke").stages)
    assert {path.stem for path in published.iterdir()} == {f"ADAM_{tier}" for tier in tiers}
    assert (tmp_path / "reference" / "smoke" / log.name).read_bytes() == log.read_bytes()
    texts = {path.name: path.read_text() for path in published.iterdir()}

    # All that is known makes the same decisions again, and runs nothing.
    again = subprocess.run(command(tmp_path, "--publish"), capture_output=True, text=True)
    assert again.returncode == 0 and log.read_text().splitlines() == lines
    assert {path.name: path.read_text() for path in published.iterdir()} == texts

    # Another machine, where the half of it was published: it goes on from there.
    elsewhere = tmp_path / "elsewhere"
    reference = elsewhere / "reference" / "smoke"
    reference.mkdir(parents=True)
    half = "".join(line + "\n" for line in lines[: len(lines) // 2]).encode()
    write_listed(reference, {log.name: half})
    (elsewhere / "data").symlink_to(tmp_path / "data")
    options = ("--from-published", "--publish")
    first = subprocess.run(
        command(elsewhere, *options, "--until", "NONE"), capture_output=True, text=True
    )
    assert first.returncode == 0, first.stderr
    assert [path.name for path in (elsewhere / "presets" / "smoke").iterdir()] == ["ADAM_NONE.yaml"]
    rest = subprocess.run(command(elsewhere, *options), capture_output=True, text=True)
    assert rest.returncode == 0, rest.stderr
    own = (elsewhere / "tuning" / "smoke" / log.name).read_text().splitlines()
    own_ids = [json.loads(line)["id"] for line in own]
    assert sorted(own_ids) == sorted(ids), "its own log is the whole search"
    assert (reference / log.name).read_bytes().startswith(half)
    # One that was begun by an earlier version, and has the new trials alone.
    (elsewhere / "tuning" / "smoke" / log.name).write_text("".join(lines[-1:]) + "\n")
    log_there = TrialLog(elsewhere / "tuning" / "smoke" / log.name, reference / log.name)
    log_there.complete()
    whole = TrialLog(elsewhere / "tuning" / "smoke" / log.name)
    assert whole.records.keys() == log_there.records.keys() == set(ids)
    found = {path.name: path.read_text() for path in (elsewhere / "presets" / "smoke").iterdir()}
    assert found.keys() == texts.keys()

    # A part of a search does not replace trials that it lacks.
    record = {key: value for key, value in json.loads(lines[0]).items() if key != "digest"}
    other = json.dumps(sealed(record | {"id": "another"})) + "\n"
    write_listed(reference, {log.name: half + other.encode()})
    lost = subprocess.run(command(elsewhere, "--publish"), capture_output=True, text=True)
    assert lost.returncode == 2 and "add --from-published to go on from it" in lost.stderr
    assert (reference / log.name).read_bytes() == half + other.encode()

    # Trials of which none is asked for, because the text is another: not silently begun anew.
    strange = tmp_path / "strange"
    (strange / "reference" / "smoke").mkdir(parents=True)
    write_listed(strange / "reference" / "smoke", {log.name: other.encode()})
    (strange / "data").symlink_to(tmp_path / "data")
    refused = subprocess.run(command(strange, "--from-published"), capture_output=True, text=True)
    assert refused.returncode == 2 and "of the trials of ADAM in" in refused.stderr
    assert "none is one that this search asks for" in refused.stderr


def test_bad_input(tmp_path):
    def line(*options, only="ADAM"):
        command_line = command(tmp_path, *options, only=only)
        found = subprocess.run(command_line, capture_output=True, text=True)
        assert found.returncode == 2 and found.stderr.count("\n") == 1, found.stderr
        return found.stderr

    assert "selects no arm; there are ADAM" in line(only="SGD")
    assert "--only 'SGD*' selects no arm; there are ADAM" in line("--only", "SGD*")
    assert "unknown scale 'huge'" in line("--scale", "huge")
    assert "--until 'ALL' is no tier; there are NONE, LR, LRWD, FULL" in line("--until", "ALL")
    assert "'0' is not a number from 1" in subprocess.run(
        command(tmp_path, "--workers", "0"), capture_output=True, text=True).stderr  # fmt: skip
    sweep = [warm.python, "-m", "lrm.sweep", str(PROGRAM.parent)]
    found = subprocess.run(sweep, capture_output=True, text=True)
    assert found.returncode == 2 and "is a search; run python experiments/" in found.stderr


def test_the_plan_says_what_it_may_cost(tmp_path):
    found = subprocess.run(command(tmp_path, "--dry-run"), capture_output=True, text=True)
    assert found.returncode == 0 and not (tmp_path / "tuning").exists()
    assert "ADAM: NONE, LR, LRWD, FULL;" in found.stdout and "if no change gains" in found.stdout


def test_trials_that_do_not_finish_are_no_gain():
    """Also where the point that they are compared with did not finish with another seed."""

    def loss(trial):
        if (trial.point.factors, trial.seed, trial.full) == ((), 1, False):
            return math.inf
        if trial.point.factors and trial.seed == 0:
            return -1.0
        return math.inf if trial.point.factors else abs(trial.point.lr) * 1.0

    arm = searched(rules(), loss)
    assert all(not decision.point.factors for decision in arm.decisions)


def test_a_model_that_always_diverges_ends_the_sweep():
    arm = searched(rules(), lambda trial: math.inf)
    assert len(arm.decisions) == 3 and len(arm.losses) < 200
