"""Planted worlds of the long run: L1 to L6."""

import functools

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judging import BELOW, HOLDS, OPEN, PARTLY, REFUTED
from analysis.figures import fig11, table2
from analysis.quantities import long_run
from analysis.quantities.long_run import ARMS, OPTIMIZERS
from analysis.tables.criteria import criteria_of
from analysis.tables.results import Tables
from lrm.errors import UserError
from tests.worlds.planted import check_breaks, judged, noise, part, verdicts

SEEDS = range(110, 116)
SCALE = "paper"  # at mini the criteria name the tasks
# The constant stage ends at 160, the decay at 200.
SETTINGS = {
    "train": {"steps": 240},
    "schedule": {"decay_steps": 80, "minimum_steps": 40},
    "optimizer": {"lr": 0.004},
}
STEPS = range(110, 241, 10)
# Two tasks of each half count; one is at chance and one near 100, where multipliers seem to gain.
TASKS = {
    name: {"half": half, "chance": 0.25, "metric": "acc"}
    for half, names in {
        "knowledge": ("imports", "arguments", "docstrings"),
        "reasoning": ("brackets", "assignments", "lookups"),
    }.items()
    for name in names
}
CHANCE, CEILING = "imports", "brackets"
LEVELS = {CHANCE: 27.0, CEILING: 97.0, "arguments": 40.0, "docstrings": 50.0, "assignments": 45.0,
          "lookups": 60.0}  # fmt: skip
# At mini the criteria name this task too.
NAMED = {"assignments": "strings"}
# Gains at the minimum LR on knowledge and on reasoning, in points, and in the loss, in nats.
GAIN, LOSS = (1.2, 3.0), 0.03
MEAN = sum(GAIN) / 2
EARLY = 0.6
LIMITS = {"clear": 5.0}


@functools.cache
def world(
    adam=GAIN,
    muon=GAIN,
    switch=MEAN,
    adam_loss=LOSS,
    muon_loss=LOSS,
    loss_switch=LOSS,
    adam_early=EARLY,
    muon_early=EARLY,
    adam_loss_early=EARLY,
    muon_loss_early=EARLY,
    level=0.0,
    size=0.02,
    seeds=6,
    swapped=False,
    unstable=None,
    missing=None,
    scale=SCALE,
):
    """Scores and losses of checkpoints.

    ``early``: the gap in the constant stage over that at the minimum LR. In the decay multipliers
    lose, and no claim reads it. ``switch``: what Muon gains over Adam. ``level`` is added to the
    scores of tasks that count. ``swapped``: arms without and with multipliers have each other's
    names. ``unstable``: a seed that loses with multipliers. ``missing``: an arm without runs.
    ``scale``: at mini there are the tasks that the criteria name.
    """
    said = {
        "Adam": (adam, 0.0, adam_loss, 0.0, adam_early, adam_loss_early),
        "Muon": (muon, switch, muon_loss, loss_switch, muon_early, muon_loss_early),
    }
    rows, runs = [], []
    every = {
        NAMED.get(name, name) if scale == "mini" else name: task for name, task in TASKS.items()
    }
    for arm, (optimizer, kind) in ARMS.items():
        gain, lead, loss, loss_lead, early, loss_early = said[optimizer]
        has = (kind == "vector") != swapped
        for seed in SEEDS[:seeds]:
            if arm == missing:
                continue
            for run, more in (("train", {}), ("evaluation", {"tasks": every})):
                described = {"settings": SETTINGS, **more}
                runs.append({"kind": run, "arm": arm, "seed": seed, "scale": scale,
                             "description": described})  # fmt: skip
            for step in STEPS:
                in_decay = 160 < step <= 200
                share, loss_share = (
                    (-3.0, -3.0) if in_decay else (early, loss_early) if step <= 160 else (1.0, 1.0)
                )
                for name, task in every.items():
                    if name in (CHANCE, CEILING):
                        own = {CHANCE: 9.0, CEILING: -9.0}[name] * (kind == "vector")
                    else:
                        own = has * gain[task["half"] == "reasoning"] * share + lead + level
                    own -= 20.0 if has and seed == unstable else 0.0
                    score = LEVELS.get(name, 45.0) + own
                    score += noise(seed, size=0.5) + noise(arm, seed, step, name, size=size)
                    rows.append(["evaluation", arm, seed, step, f"task.{name}", "score",
                                 score / 100])  # fmt: skip
                better = loss_lead + (loss * loss_share if has else 0.0)
                value = (
                    3.0 - better + noise(seed, size=0.02) + noise(arm, seed, step, size=size / 50)
                )
                value += 0.5 if has and seed == unstable else 0.0
                rows.append(["train", arm, seed, step, "model", "validation_loss", value])
            # Losses are also known where no checkpoint is.
            rows.append(["train", arm, seed, 235, "model", "validation_loss", 99.0])
    names = ["kind", "arm", "seed", "step", "tensor", "stat", "value"]
    frame = pd.DataFrame(rows, columns=names).assign(layer=np.nan)
    return Tables(pd.DataFrame(runs), frame)


def alike(measure, first, second, groups, breaks):
    """By part of L3 or L6 what breaks it.

    ``breaks`` are a small first, a small second, a first that is no gain and a second that is none.
    ``groups`` are those of the gains, and of the comparisons, each of which needs both gains.
    """
    one, two, *compared = (f"{measure}, {group}" for group in groups)
    halves = (f"{measure}: {first} − half", f"{measure}: {second} − half")
    found = {
        f"{halves[0]} of the {second}": breaks[0],
        f"{halves[1]} of the {first}": breaks[1],
    }
    for group, name, none in ((one, first, breaks[2]), (two, second, breaks[3])):
        needs = tuple(f"{each}: {name}" for each in compared)
        found[f"{group}: {name}"] = none | {"also": (*halves, *needs)}
        found |= {need: none | {"also": (*halves, f"{group}: {name}", *needs)} for need in needs}
    return found


def stages(measure, name, key, small):
    """By part of L5 what breaks it, for one optimizer and measure."""
    called, early = f"{measure}, {name}", f"{key}_early"
    grows, grows_before = f"{called}: gap at the end − that before", f"{called}, grows: gap before"
    return {
        f"{called}: gap at the end − half": {early: 3.0, "also": (grows,)},
        grows: {early: 1.0},
        f"{called}, half of it is kept: gap before": {early: 0.05, "also": (grows_before,)},
        grows_before: {early: 0.05, "also": (f"{called}, half of it is kept: gap before",)},
        f"{called}, grows: gap at the end": {key: small, early: 1.6, "also": (grows,)},
    }


NOTHING, LITTLE = (0.2, 0.2), (0.8, 0.8)
COMPARED = ("multipliers gain", "Muon gains", "at least half of Muon's",
            "Muon's at least half of it")  # fmt: skip
BREAKS = {
    "L1": {
        "score: gain with Adam": {"adam": NOTHING, "also": ("knowledge", "reasoning")},
        "knowledge: gain with Adam": {"adam": (0.2, 3.0)},
        "reasoning: gain with Adam": {"adam": (3.0, 0.2)},
        "loss: gain with Adam": {"adam_loss": 0.001},
    },
    "L2": {
        "score: gain with Muon": {"muon": NOTHING, "also": ("knowledge", "reasoning")},
        "knowledge: gain with Muon": {"muon": (0.2, 3.0)},
        "reasoning: gain with Muon": {"muon": (3.0, 0.2)},
        "loss: gain with Muon": {"muon_loss": 0.001},
    },
    "L3": alike(
        "score", "gain with Adam", "gain with Muon", ("Adam", "Muon", "similar"),
        ({"adam": LITTLE}, {"muon": LITTLE}, {"adam": (0.3, 0.3)}, {"muon": (0.3, 0.3)}),
    )
    | alike(
        "loss", "gain with Adam", "gain with Muon", ("Adam", "Muon", "similar"),
        ({"adam_loss": 0.013}, {"muon_loss": 0.013}, {"adam_loss": 0.003}, {"muon_loss": 0.003}),
    ),
    "L4": {
        "Adam: gain on reasoning − on knowledge": {"adam": (2.0, 2.0)},
        "Muon: gain on reasoning − on knowledge": {"muon": (2.0, 2.0)},
        "Adam: gain on reasoning by itself": {"adam": (-3.0, -1.0)},
        "Muon: gain on reasoning by itself": {"muon": (-3.0, -1.0)},
    },
    "L5": stages("score", "Adam", "adam", (0.4, 0.4))
    | stages("score", "Muon", "muon", (0.4, 0.4))
    | stages("loss", "Adam", "adam_loss", 0.008)
    | stages("loss", "Muon", "muon_loss", 0.008),
    "L6": alike(
        "score", "gain of multipliers", "gain of Muon over Adam", COMPARED,
        ({"switch": 6.0}, {"switch": 0.8}, {"adam": (0.3, 0.3), "muon": (0.3, 0.3)},
         {"switch": 0.3}),
    )
    | alike(
        "loss", "gain of multipliers", "gain of Muon over Adam", COMPARED,
        ({"loss_switch": 0.09}, {"loss_switch": 0.013}, {"adam_loss": 0.003, "muon_loss": 0.003},
         {"loss_switch": 0.003}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", BREAKS)
def test_each_part_decides(claim):
    check_breaks(claim, world, BREAKS[claim])


@pytest.mark.parametrize(
    ("claim", "name", "value"),
    [
        ("L1", "score: gain with Adam", MEAN),
        ("L1", "loss: gain with Adam", LOSS),
        ("L2", "score: gain with Muon", 1.0),
        ("L2", "loss: gain with Muon", 0.02),
        ("L3", "score: gain with Adam − half of the gain with Muon", MEAN - 0.5),
        ("L3", "loss: gain with Muon − half of the gain with Adam", 0.005),
        ("L4", "Adam: gain on reasoning − on knowledge", GAIN[1] - GAIN[0]),
        ("L4", "Muon: gain on reasoning − on knowledge", 1.0),
        ("L4", "Muon: gain on reasoning by itself", 1.5),
        ("L5", "score, Adam: gap at the end − half of that before the decay", 0.7 * MEAN),
        ("L5", "score, Adam: gap at the end − that before the decay", 0.4 * MEAN),
        ("L5", "score, Muon, half of it is kept: gap before the decay", 0.6),
        ("L1", "knowledge: gain with Adam", GAIN[0]),
        ("L2", "reasoning: gain with Muon", 1.5),
        ("L5", "loss, Muon, grows: gap at the end", 0.02),
        ("L6", "score: gain of multipliers − half of the gain of Muon over Adam",
         (MEAN + 1.0) / 2 - MEAN / 2),
        ("L6", "loss: gain of Muon over Adam − half of the gain of multipliers", 0.03 - 0.0125),
    ],
)  # fmt: skip
def test_parts_estimate_what_was_planted(claim, name, value):
    tables = world(muon=(0.5, 1.5), muon_loss=0.02)
    assert part(claim, tables, name).interval.mean == pytest.approx(
        value, abs=0.001 if name.startswith("loss") else 0.05
    )


def test_groups():
    """The loss is ours everywhere, and leaves the paper's verdict alone."""
    assert list(judged("L1", world()).groups) == ["score", "loss", "knowledge", "reasoning"]
    assert judged("L1", world(adam_loss=-0.03)).verdict == HOLDS
    assert judged("L1", world(adam_loss=-0.03)).line.endswith("loss: no.")
    assert "Beyond the paper: " in judged("L1", world(adam_loss=-0.03)).line
    assert judged("L3", world(adam_loss=-0.03)).verdict == HOLDS
    assert judged("L6", world(loss_switch=-0.03)).verdict == HOLDS
    assert judged("L4", world()).groups == {"Adam": HOLDS, "Muon": HOLDS}
    five = judged("L5", world(adam_loss_early=3.0, muon_early=1.5))
    names = [f"{m}, {name}, {what}" for m in ("score", "loss") for name in OPTIMIZERS.values()
             for what in ("half of it is kept", "grows")]  # fmt: skip
    assert list(five.groups) == names
    kept = {name: word for name, word in five.groups.items() if name.endswith("kept")}
    assert list(kept.values()) == [HOLDS, HOLDS, REFUTED, HOLDS]
    grows = {name: word for name, word in five.groups.items() if name.endswith("grows")}
    assert list(grows.values()) == [HOLDS, REFUTED, REFUTED, HOLDS]
    assert "base LR of MUON_LRM_FULL: 0.004" in five.note
    # Muon was tuned less, so that what it lacks is no verdict.
    six = judged("L6", world(switch=0.8))
    assert six.verdict == HOLDS and six.groups["score, Muon's at least half of it"] == REFUTED
    assert judged("L6", world(switch=6.0)).verdict == PARTLY


@pytest.mark.parametrize(
    ("claim", "name", "changes", "word"),
    [
        ("L1", "score: gain", {"adam": NOTHING}, BELOW),
        ("L1", "score: gain", {"adam": (-2.0, -2.0)}, REFUTED),
        ("L1", "loss: gain", {"adam_loss": 0.002}, BELOW),
        ("L2", "score: gain", {"muon": (-2.0, -2.0)}, REFUTED),
        ("L3", "score, Adam: gain with Adam", {"adam": (0.3, 0.3)}, BELOW),
        ("L3", "loss, Muon: gain with Muon", {"muon_loss": 0.003}, BELOW),
        ("L4", "Adam: gain on reasoning −", {"adam": (2.0, 2.0)}, BELOW),
        ("L4", "Muon: gain on reasoning −", {"muon": (3.0, 1.0)}, REFUTED),
        ("L4", "Adam: gain on reasoning by", {"adam": (-1.0, 0.2)}, BELOW),
        ("L4", "Muon: gain on reasoning by", {"muon": (-3.0, -1.0)}, REFUTED),
        ("L5", "score, Adam: gap at the end − that", {"adam_early": 0.95}, BELOW),
        ("L5", "score, Adam: gap at the end − that", {"adam_early": 2.0}, REFUTED),
        ("L5", "loss, Muon: gap at the end − that", {"muon_loss_early": 0.95}, BELOW),
        ("L5", "score, Adam, half of it is kept: gap before", {"adam_early": 0.1}, BELOW),
        ("L5", "loss, Adam, half of it is kept: gap before", {"adam_loss_early": 0.1}, BELOW),
        ("L5", "score, Muon, grows: gap at the end", {"muon": (0.3, 0.3)}, BELOW),
        ("L5", "loss, Muon, grows: gap at the end", {"muon_loss": 0.003}, BELOW),
        ("L6", "score, Muon gains: gain of Muon over Adam", {"switch": 0.3}, BELOW),
        ("L6", "score, Muon gains: gain of Muon over Adam", {"switch": -2.0}, REFUTED),
    ],
)
def test_what_decides_a_part(claim, name, changes, word):
    found = verdicts(claim, world(**changes))
    names = [one for one in found if one == name] or [one for one in found if name in one]
    assert [found[one] for one in names] == [word]


def test_tasks_near_chance_or_100_do_not_count():
    """Whatever multipliers do to them."""
    tables = world()
    counts = long_run.counted(tables, LIMITS)
    assert counts == ("arguments", "docstrings", "assignments", "lookups")
    assert judged("L1", tables).note == f"tasks that count: {', '.join(counts)}"
    # Nearer to chance than five points, and farther.
    assert "arguments" not in long_run.counted(world(level=-11.5), LIMITS)
    assert "arguments" in long_run.counted(world(level=-10.5), LIMITS)
    assert "lookups" not in long_run.counted(world(level=35.0), LIMITS)


def test_tasks_named_beforehand_count_at_their_scale():
    """Whatever their scores; elsewhere the rule chooses."""
    tables = world()
    named = LIMITS | {"tasks": {SCALE: ["lookups", CHANCE]}}
    assert long_run.counted(tables, named) == (CHANCE, "lookups")
    elsewhere = LIMITS | {"tasks": {"mini": ["lookups"]}}
    assert long_run.counted(tables, elsewhere) == long_run.counted(tables, LIMITS)
    # One that never ran without multipliers with Muon: names stand before, and so Adam is judged.
    assert long_run.counted(world(missing="MUON_FULL"), named) == (CHANCE, "lookups")
    with pytest.raises(UserError, match="tasks: sums: no task of these runs; one of imports, arg"):
        long_run.counted(tables, LIMITS | {"tasks": {SCALE: ["sums"]}})


def test_at_mini_the_named_tasks_are_judged():
    """One at chance and one near 100 among them, with the gains that they seem to have."""
    tables = world(scale="mini")
    assert judged("L1", tables).note == (
        "tasks that count: imports, arguments, docstrings, brackets, strings"
    )
    seen = part("L1", tables, "score: gain with Adam").interval.mean
    assert seen == pytest.approx((9 - 9 + 2 * GAIN[0] + GAIN[1]) / 5, abs=0.05)
    assert judged("L4", tables).groups == {"Adam": REFUTED, "Muon": REFUTED}
    for claim in BREAKS:
        assert judged(claim, tables).note.startswith("tasks that count: imports, arg"), claim
    # Their names stand before Muon runs.
    assert judged("L1", world(scale="mini", missing="MUON_FULL")).verdict == HOLDS


def test_all_claims_count_the_same_tasks():
    """Figure 11 and table 2 read them from L1."""
    limits = [one["thresholds"] for one in criteria_of("long_run").values()]
    assert len({(one["clear"], str(one.get("tasks"))) for one in limits}) == 1


@pytest.mark.parametrize("claim", BREAKS)
def test_without_a_task_that_counts_scores_are_open(claim):
    """The loss is judged all the same."""
    tables = world(level=-40.0)
    assert judged(claim, tables).verdict == OPEN
    assert judged(claim, tables).note.startswith("no task counts")
    found = verdicts(claim, tables)
    assert {found[name] for name in found if name.startswith("score")} <= {OPEN}
    assert {found[name] for name in found if name.startswith("loss")} <= {HOLDS}


def test_one_half_with_a_single_task_opens_their_comparison_alone():
    low = world(level=-15.0)  # of knowledge docstrings remain
    assert long_run.counted(low, LIMITS) == ("docstrings", "assignments", "lookups")
    assert judged("L4", low).verdict == OPEN and judged("L1", low).verdict == HOLDS
    lower = world(level=-23.0)  # lookups alone
    assert long_run.counted(lower, LIMITS) == ("lookups",)
    assert judged("L4", lower).verdict == OPEN and judged("L1", lower).verdict == HOLDS


def test_a_missing_score_is_no_average():
    """Neither where it is judged nor in the figures; other seeds and checkpoints stay."""
    whole = world()
    frame = whole.scalars
    gone = (frame["arm"] == "ADAM_FULL") & (frame["seed"] == 110) & (frame["step"] == 230)
    holed = Tables(whole.runs, frame[~(gone & (frame["tensor"] == "task.lookups"))])
    averages = long_run.average(holed, LIMITS).isna()
    assert averages["Adam", "none"].loc[110, 230] and averages.to_numpy().sum() == 1
    drawn = fig11.numbers({"long_run": holed})
    assert drawn["value"].isna().sum() == 1
    assert (drawn["tasks"] == 4).all()
    assert (drawn.query("panel == 'gap' and step > minimum")["value"] < 0).all()
    rows = table2.numbers({"long_run": holed}).query("panel == 'here' and task == 'average'")
    missing = rows[rows["value"].isna()]
    assert missing[["optimizer", "multipliers", "seed"]].values.tolist() == [["Adam", "none", 110]]
    pd.testing.assert_frame_equal(
        fig11.numbers({"long_run": whole}).query("seed != 110"), drawn.query("seed != 110")
    )


def test_no_effect_and_the_reverse():
    none = {"adam": (0.0, 0.0), "muon": (0.0, 0.0), "adam_loss": 0.0, "muon_loss": 0.0}
    for claim in ("L1", "L2", "L4"):
        assert judged(claim, world(**none)).verdict == BELOW, claim
    # What is no gain is compared with nothing.
    groups = judged("L3", world(**none)).groups
    assert groups["score, Adam"] == groups["loss, Muon"] == BELOW
    assert groups["score, similar"] == groups["loss, similar"] == OPEN
    assert judged("L5", world(**none)).verdict == OPEN
    groups = judged("L6", world(**none)).groups
    assert groups["score, multipliers gain"] == BELOW and groups["score, Muon gains"] == HOLDS
    assert groups["score, at least half of Muon's"] == OPEN
    swapped = world(swapped=True)
    for claim in ("L1", "L2", "L4"):
        assert judged(claim, swapped).verdict == REFUTED, claim
    assert judged("L3", swapped).groups["score, Adam"] == REFUTED
    assert judged("L6", swapped).groups["score, multipliers gain"] == REFUTED
    assert judged("L5", swapped).verdict == OPEN


def test_counter_evidence_refutes():
    """Harm with one optimizer, a gap that closes, harm that is smaller in one half."""
    harmed = judged("L3", world(muon=(-2.0, -2.0))).groups
    assert harmed["score, Muon"] == REFUTED and harmed["score, similar"] == OPEN
    assert judged("L6", world(switch=-2.0)).groups["score, Muon gains"] == REFUTED
    apart = judged("L3", world(muon=LITTLE))
    assert apart.groups["score, similar"] == REFUTED and apart.verdict == PARTLY
    closes = {"adam": (0.01, 0.01), "muon": (0.01, 0.01), "adam_early": 200.0, "muon_early": 200.0}
    assert judged("L5", world(**closes)).verdict == REFUTED
    assert judged("L4", world(adam=(-3.0, -1.0), muon=(-3.0, -1.0))).verdict == REFUTED


@pytest.mark.parametrize("claim", BREAKS)
def test_too_few_seeds(claim):
    assert set(verdicts(claim, world(seeds=5)).values()) == {OPEN}


def test_one_unstable_seed_leaves_a_mean_open():
    for claim in ("L1", "L2"):
        assert set(judged(claim, world(unstable=113)).groups.values()) == {OPEN}, claim


def test_what_a_missing_arm_lacks_is_open():
    lacking = world(missing="MUON_LRM_FULL")
    assert (
        judged("L1", lacking).verdict == HOLDS and OPEN not in judged("L1", lacking).groups.values()
    )
    assert judged("L2", lacking).verdict == OPEN
    assert judged("L3", lacking).groups["score, similar"] == OPEN
    assert judged("L6", lacking).groups["score, multipliers gain"] == OPEN
    assert judged("L4", lacking).groups == {"Adam": HOLDS, "Muon": OPEN}


def test_no_task_counts_before_both_optimizers_have_run():
    """Else which tasks count, and L1, would change when the second comes."""
    lacking = world(missing="MUON_FULL")
    assert long_run.counted(lacking, LIMITS) == ()
    assert judged("L1", lacking).groups == {
        "score": OPEN,
        "loss": HOLDS,
        "knowledge": OPEN,
        "reasoning": OPEN,
    }


def test_the_spread_that_would_explain_a_difference():
    """Two runs differ by less than 1.96 times √2 of their spread in 95% of cases."""
    draws = np.random.default_rng(0).normal(0, 0.44, (200_000, 2))
    assert long_run.needed_spread(1.21) == pytest.approx(0.4365, abs=1e-3)
    assert (abs(draws[:, 0] - draws[:, 1]) > 1.21).mean() == pytest.approx(0.05, abs=0.005)
    table = pd.DataFrame({"a": [1.0, 3.0], "b": [2.0, 2.0]})
    assert long_run.seed_spread(table) == pytest.approx(1.0)
    # The draw of a seed's questions moves its arms alike, and a better arm is better for all.
    moved = table.add([0.0, 10.0], axis=0) + [0.0, 5.0]
    assert long_run.seed_spread(moved) == pytest.approx(1.0)
    assert (table["a"] - table["b"]).std() == pytest.approx(2**0.5)
    assert np.isnan(long_run.seed_spread(table[:1]))


def test_arms_of_a_seed_answer_the_same_questions():
    """Else their difference holds the questions."""
    plain = world()
    runs = plain.runs.copy()
    for number, one in enumerate(runs["description"]):
        suite = {"execution": {"suite": "b" if number == len(runs) - 1 else "a"}}
        runs.at[runs.index[number], "description"] = one | suite
    with pytest.raises(UserError, match="seed 115: its arms were asked different questions"):
        long_run.scores(Tables(runs, plain.scalars))
