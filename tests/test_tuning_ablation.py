"""The tuning ablation's quantities by hand, the search's log, and what publishing keeps."""

import functools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from analysis import publish
from analysis.claims.judges import judge_of
from analysis.drawing import tiers
from analysis.drawing.style import STYLE_FILE
from analysis.figures import fig7, tuning_mechanism
from analysis.quantities import tuning_ablation as tuning
from analysis.tables import compact, trials
from analysis.tables.context import Context
from analysis.tables.criteria import criteria_of
from analysis.tables.find import NothingFound
from analysis.tables.trials import TunedTables
from lrm.errors import UserError

LINE = (
    '{"id": "a", "arm": "ADAM", "stage": "NONE", "point": {"lr": 0, "factors": {}}, "seed": 0, '
    '"steps": 12, "outcome": "finished", "loss": 3.5, "early_loss": 4.0, "tokens": 100, '
    '"flops": 2.0, "seconds": 0.1}'
)


BETAS = {"beta1": 0.9, "beta2": 0.95}


def small(losses=(), stage_end=60, trials=None, **descriptions):
    """Two arms of Adam, one seed, probes every 5 steps; rows of (arm, step, stat, value)."""
    settings = {
        "train": {"steps": 70},
        "schedule": {"decay_steps": 70 - stage_end},
        "probes": {"every": 5},
    }
    arms = {"ADAM_NONE": {}, "ADAM_LRM_NONE": {}, **descriptions}
    runs = [
        {"kind": "train", "arm": arm, "seed": 0, "description": {"settings": settings, **more}}
        for arm, more in arms.items()
    ]
    frame = pd.DataFrame(losses, columns=["arm", "step", "tensor", "layer", "stat", "value"])
    frame = frame.assign(kind="train", seed=0, run=frame["arm"])
    return TunedTables(pd.DataFrame(runs), frame, trials=trials)


def course(difference):
    """Training losses of 70 steps, with multipliers lower by ``difference(step)``."""
    for step in range(1, 71):
        noise = 0.1 * (step % 7)
        for arm, gap in (("ADAM_NONE", 0.0), ("ADAM_LRM_NONE", difference(step))):
            yield arm, step, "model", np.nan, "train_loss", 3.0 + noise - gap


MATRICES = ("attention.q", "attention.k", "attention.v", "attention.out", "ssm.z", "ssm.x",
            "ssm.B", "ssm.C", "ssm.dt", "ssm.out", "mlp.up", "mlp.gate", "mlp.down")  # fmt: skip
# What the search keeps, by the beginning of the tensor's name.
FORWARD = {"attention": 2.0, "ssm": 1.0, "mlp": 0.5, "embedding": 4.0}


@functools.cache
def realistic(seeds=6, forward=True, log=True):
    """Runs like those at tiny: losses that differ by hundredths, six seeds, 44 probes."""
    steps, every, end = 2200, 50, 1840
    settings = {"train": {"steps": steps}, "schedule": {"decay_steps": steps - end},
                "multipliers": {"lr": 0.01, "weight_decay": 0.03},
                "probes": {"every": every}}  # fmt: skip
    below = {"none": (0.0, 0.025, 0.027, 0.035), "vector": (0.022, 0.055, 0.054, 0.058),
             "scalar": (0.015,)}  # fmt: skip
    tensors = ["embedding", *(f"{name}@{layer}" for name in MATRICES for layer in (0, 1))]
    runs, rows, norms = [], [], []
    at = np.arange(1, steps + 1)
    share = np.where(at <= end, np.minimum(1.2, 0.3 + at / end), 1.0)
    for arm, (optimizer, kind, tier) in tuning.ARMS.items():
        gain = below[kind][tuning.TIERS.index(tier)] * (0.6 if optimizer == "Muon" else 1.0)
        level = 3.31 - 0.09 * (optimizer == "Muon") - gain
        factors = {
            tensor: FORWARD[tensor.partition(".")[0]] if tier == "FULL" and forward else 1.0
            for tensor in tensors
        }
        described = [
            {"tensor": tensor, "multiplier": None, "forward": factor if kind == "none" else 1.0}
            for tensor, factor in factors.items()
        ]
        for seed in range(100, 100 + seeds):
            run = f"{arm} {seed}"
            runs.append({"kind": "train", "arm": arm, "seed": seed, "run": run, "description": {
                "settings": {**settings, "optimizer": {"lr": arm, **BETAS}}, "rules": described,
                "corpus": {"hash": "h", "name": "stdlib 3.11.7, BPE 1024"}}})  # fmt: skip
            own = np.random.default_rng(list(run.encode()))
            shared = np.random.default_rng(seed)
            common = 0.012 * shared.standard_normal()
            losses = 3.45 + 3.0 * np.exp(-at / 90) - gain * share + shared.normal(0, 0.15, steps)
            losses += own.normal(0, 0.03, steps)
            final = level + common + 0.003 * own.standard_normal()
            rows.append((run, arm, seed, at, "train_loss", losses))
            before = final + (0.11 if kind == "none" else 0.105) + 0.001 * own.standard_normal()
            rows.append((run, arm, seed, [end, steps], "validation_loss", [before, final]))
            for tensor in tensors if kind == "vector" else ():
                name, _, layer = tensor.partition("@")
                found = FORWARD[name.partition(".")[0]] ** 0.6 * np.exp(own.normal(0, 0.3))
                for axis in ("row", "column"):
                    norms.append((run, arm, seed, end, f"{axis}_multiplier_norm", found**0.5, name,
                                  float(layer or "nan")))  # fmt: skip
    columns = ["run", "arm", "seed", "step", "stat", "value"]
    frame = pd.DataFrame(rows, columns=columns).explode(["step", "value"])
    frame = frame.assign(tensor="model", layer=np.nan)
    frame = pd.concat([frame, pd.DataFrame(norms, columns=[*columns, "tensor", "layer"])])
    frame = frame.astype({"step": int, "value": float}).assign(kind="train")
    return TunedTables(
        pd.DataFrame(runs), frame.reset_index(drop=True), trials=spent() if log else _no
    )


def spent():
    """A log as that of a search at tiny, trial by trial."""
    counts = {"": (15, 33, 18, 22), "_LRM": (16, 41, 13, 20), "_SCALAR": (15,)}
    rows = [
        {"id": f"{optimizer}{infix} {tier} {n}", "arm": f"{optimizer}{infix}", "stage": tier,
         "tokens": 5.6e5 * (1 + n % 2), "flops": 6.1e11 * (1 + n % 2)}
        for optimizer in tuning.OPTIMIZERS
        for infix, stages in counts.items()
        for tier, count in zip(tuning.TIERS, stages, strict=False)
        for n in range(count)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def _no():
    raise NothingFound("there is no log")


def test_arms_are_those_of_the_experiment(smoke_runs):
    for name, arms in (("tuning_ablation", tuning.ARMS), ("tuning_apart", tuning.APART)):
        others = {run.arm for run in smoke_runs(name)} - set(arms)
        assert set(arms) <= {run.arm for run in smoke_runs(name)}
        # Controls, which no claim and no figure reads.
        assert all(arm.endswith(("_APART_NO_HEAD", "_APART_HEAD")) for arm in others)
    assert tuning.ARMS["MUON_LRM_LRWD"] == ("Muon", "vector", "LRWD")
    assert tuning.APART["MUON_SCALAR_APART_FULL"] == ("Muon", "scalar", "FULL")
    assert tuning.arms_of(small()) is tuning.ARMS


def test_gaps_are_paired_by_batch_and_averaged_in_windows():
    table = tuning.gaps(small(course(lambda step: step / 100)), probes=2)["Adam", "NONE"]
    assert table.index.get_level_values("step").tolist() == [10, 20, 30, 40, 50, 60, 70]
    assert table.loc[0, 10] == pytest.approx(0.055) and table.loc[0, 60] == pytest.approx(0.555)


def test_parts_of_the_constant_stage_by_hand():
    """A part is (0, 10], …, (50, 60]; what the decay does is in none."""
    tables = small(course(lambda step: step // 11 if step <= 60 else -9))
    whole = tuning.gaps(tables).reindex(columns=[("Adam", "NONE")])
    tables.kept[(tuning.gaps.__wrapped__, (), ())] = whole
    found = [tuning.gap_in(tables, "Adam", part).loc[0] for part in range(1, 7)]
    expected = [np.mean([step // 11 for step in range(10 * n + 1, 10 * n + 11)]) for n in range(6)]
    assert found == pytest.approx(expected)


def test_a_part_without_a_whole_interval_is_missing():
    tables = small(course(lambda step: 1.0), stage_end=24)
    assert np.isnan(tuning.gap_in(tables, "Adam", 2).loc[0])


def test_costs_add_up_over_tiers():
    rows = [("ADAM", "NONE", 1.0), ("ADAM", "NONE", 2.0), ("ADAM", "LR", 4.0),
            ("ADAM", "FULL", 8.0), ("ADAM_SCALAR", "NONE", 16.0)]  # fmt: skip
    log = pd.DataFrame(rows, columns=["arm", "stage", "flops"]).assign(tokens=10)
    plain = {f"ADAM_{tier}": {} for tier in tuning.TIERS}
    spent = tuning.costs(small(trials=log, ADAM_SCALAR_NONE={}, **plain))
    assert spent.loc["Adam", "none"]["flops"].tolist() == [3.0, 7.0, 7.0, 15.0]
    assert spent.loc["Adam", "none"]["trials"].tolist() == [2, 3, 3, 4]
    assert spent.loc[("Adam", "scalar", "NONE"), "tokens"] == 10
    assert spent.loc["Adam", "vector"].isna().all(axis=None)
    assert len(spent) == len(tuning.ARMS)
    # Where the search set the LR apart, its trials are those of arms that say so.
    more = log.assign(arm=log["arm"].replace("ADAM_SCALAR", "ADAM_SCALAR_APART"))
    scalars = {f"ADAM_SCALAR_APART_{tier}": {} for tier in tuning.TIERS}
    spent = tuning.costs(small(trials=more, **plain, **scalars))
    assert spent.loc["Adam", "none"]["flops"].tolist() == [3.0, 7.0, 7.0, 15.0]
    assert spent.loc["Adam", "scalar"]["flops"].tolist() == [16.0] * 4
    assert len(spent) == len(tuning.APART)
    # A tier without runs is not decided: it may come at a cost that is not in the log yet.
    spent = tuning.costs(small(trials=log))
    assert spent.loc["Adam", "none"]["trials"].fillna(-1).tolist() == [2, -1, -1, -1]


def rules(**forward):
    return {"rules": [
        {"tensor": tensor.replace("_", "."), "multiplier": axis, "forward": factor}
        for tensor, factor in {"embedding": 1.0, "mlp_up@0": 1.0, **forward}.items()
        for axis in (None, "row")
    ]}  # fmt: skip


def test_learned_scales_by_hand():
    def norm(step, tensor, layer, axis, value):
        return "ADAM_LRM_LRWD", step, tensor, layer, f"{axis}_multiplier_norm", value

    measured = [
        norm(0, "mlp.up", 0, "row", 1.0), norm(0, "mlp.up", 0, "column", 1.0),
        norm(60, "mlp.up", 0, "row", 2.0), norm(60, "mlp.up", 0, "column", 0.75),
        norm(60, "embedding", np.nan, "row", 3.0), norm(60, "embedding", np.nan, "column", 1.0),
        norm(70, "mlp.up", 0, "row", 9.0),
    ]  # fmt: skip
    plain = rules(embedding=0.5)
    tuned = rules(embedding=1.0, **{"mlp_up@0": 4.0})
    arms = {"ADAM_NONE": plain, "ADAM_FULL": tuned, "MUON_NONE": plain, "MUON_FULL": plain}
    found = tuning.scales(small(measured, **arms))
    assert found["optimizer"].unique().tolist() == ["Adam"]
    table = found.set_index("tensor")[["tuned", "learned"]]
    assert table.loc["mlp.up"].tolist() == [4.0, 1.5]
    assert table.loc["embedding"].tolist() == [2.0, 3.0]


def test_agreement_is_a_correlation_of_logarithms():
    tuned = np.array([0.5, 1.0, 2.0, 4.0])
    parts = [
        pd.DataFrame({"optimizer": name, "seed": seed, "tuned": factors, "learned": learned})
        for seed in (0, 1)
        for name, factors, learned in (
            ("Adam", tuned, 3 * tuned ** (0.5 - seed)), ("Muon", np.ones(4), tuned)
        )
    ]  # fmt: skip
    found = tuning.agreement(pd.concat(parts))
    assert found["Adam"].tolist() == pytest.approx([1.0, -1.0])
    assert found["Muon"].isna().all()


def test_a_search_that_kept_nothing():
    one, other = ({"settings": {"optimizer": {"lr": lr}}} for lr in (1.0, 2.0))
    arms = {"ADAM_NONE": one, "ADAM_LR": other, "ADAM_LRWD": other}
    assert tuning.kept_nothing(small(**arms), "Adam", "none", "LRWD")
    assert not tuning.kept_nothing(small(**arms), "Adam", "none", "LR")


def test_the_log_of_a_search(tmp_path, monkeypatch):
    """Own runs have the own search's log, or the published one; published runs only the latter."""
    monkeypatch.setattr(trials, "RESULTS", tmp_path / "suite")
    monkeypatch.setattr(trials, "PRESETS", tmp_path / "presets")  # none: any search found them
    asked = ("tuning_ablation", "smoke")
    own, others = tmp_path / "own", tmp_path / "suite"
    for source in ("runs", "reference"):
        with pytest.raises(NothingFound, match="no log of tuning_search at smoke, .*make tune"):
            trials.read_trials(*asked, source, own)
    with pytest.raises(NothingFound, match="no search has tuned the arms of projector"):
        trials.log_of("projector", "smoke", "runs", own)
    published = others / "reference" / "smoke" / "tuning_search.jsonl"
    published.parent.mkdir(parents=True)
    published.write_text(f"{LINE}\n")
    assert trials.log_of(*asked, "runs", own) == published
    assert trials.log_of(*asked, "reference", others) == published
    mine = own / "tuning" / "smoke" / "tuning_search.jsonl"
    mine.parent.mkdir(parents=True)
    # A trial may be repeated; half a line is what a search is just writing.
    mine.write_text(f"{LINE}\n{LINE.replace('2.0', '3.0')}\n{LINE[:40]}")
    assert trials.read_trials(*asked, "runs", own)["flops"].tolist() == [3.0]
    for text in ("[]\n", "3\n", '{"id": "a"}\n', "{\n"):
        mine.write_text(text)
        with pytest.raises(UserError, match="line 1 is no record of a trial"):
            trials.read_trials(*asked, "runs", own)
    mine.write_text("")
    with pytest.raises(NothingFound, match="holds no trial yet"):
        trials.read_trials(*asked, "runs", own)


def test_a_selection_of_seeds_keeps_the_log():
    log = pd.DataFrame({"arm": ["ADAM"]})
    chosen = realistic().of_seeds([100, 103])
    assert chosen.seeds == [100, 103] and set(chosen.scalars["seed"]) == {100, 103}
    assert len(chosen.trials) == len(spent())
    assert small(course(lambda step: 1.0), trials=log).trials is log


def rows_of(tables, arm, seed, description):
    """What a run stores, at its full precision."""
    frame = tables.scalars[(tables.scalars["arm"] == arm) & (tables.scalars["seed"] == seed)]
    layers = frame["layer"].map(lambda layer: "" if pd.isna(layer) else f"@{int(layer)}")
    return frame.assign(tensor=frame["tensor"] + layers)[["step", "tensor", "stat", "value"]]


def published(tables, kept):
    """The tables as ``compact`` would publish them and ``results`` would read them."""
    parts = []
    for row in tables.runs.itertuples():
        frame = rows_of(tables, row.arm, row.seed, row.description)
        first = row.seed == min(tables.seeds)
        frame = compact.scalars(frame, row.description, kept, whole=first)
        name, _, layer = zip(*frame["tensor"].str.partition("@").to_numpy(), strict=True)
        frame = frame.assign(tensor=name, layer=[float(each or "nan") for each in layer])
        parts.append(frame.assign(run=row.run, arm=row.arm, seed=row.seed, kind="train"))
    return TunedTables(tables.runs, pd.concat(parts, ignore_index=True), trials=tables.trials)


@functools.cache
def both():
    """Tables of runs, and of what is published of them."""
    return realistic(), published(realistic(), publish.kept("tuning_ablation"))


def test_published_runs_are_judged_as_the_runs_are():
    """Means between probes and rounding change no verdict, and estimates by less than 1e-6."""
    own, theirs = both()
    assert len(theirs.scalars) < len(own.scalars) / 20
    seen = set()
    for claim, criterion in criteria_of("tuning_ablation").items():
        one, other = (judge_of("tuning_ablation", claim)(each, criterion) for each in (own, theirs))
        pairs = zip([*one.parts, *one.contrast], [*other.parts, *other.contrast], strict=True)
        for mine, published_part in pairs:
            assert mine.name == published_part.name
            ends = [(p.interval.mean, p.interval.low, p.interval.high)
                    for p in (mine, published_part)]  # fmt: skip
            assert ends[0] == pytest.approx(ends[1], abs=1e-6), mine.name
            assert mine.verdict(6) == published_part.verdict(6), mine.name
        assert (one.line, one.verdict) == (other.line, other.verdict)
        seen |= set(one.groups.values())
    assert {"holds", "refuted"} <= seen


@pytest.mark.parametrize("figure", [fig7, tuning_mechanism], ids=lambda module: module.__name__)
def test_published_runs_give_the_same_figure(figure):
    own, theirs = (figure.numbers({"tuning_ablation": each}) for each in both())
    pd.testing.assert_frame_equal(own, theirs, rtol=3e-4, atol=1e-6, check_dtype=False)


def drawn(figure, tables):
    """A figure's numbers, its renderer and the texts in its panels, laid out as it is saved."""
    numbers = figure.numbers({"tuning_ablation": tables})
    context = Context("tiny", tables.seeds, "a corpus", "reference")
    with plt.style.context(STYLE_FILE):
        page = figure.draw(numbers, context)
        canvas = FigureCanvasAgg(page)
        canvas.draw()
    texts = [text for axis in page.axes for text in axis.findobj(Text) if text.get_text()]
    plt.close(page)
    return numbers, canvas.get_renderer(), texts


def test_figure_7_shows_every_seed_and_what_tuning_costs():
    numbers, _, texts = drawn(fig7, realistic())
    loss = numbers[numbers["panel"] == "loss"]
    assert len(loss) == 18 * 6 and loss.groupby(["optimizer", "tier"]).size().max() == 18
    cost = numbers[(numbers["panel"] == "cost") & (numbers["multipliers"] == "none")]
    trials = cost[cost["optimizer"] == "Adam"].groupby("tier", sort=False)["trials"].first()
    assert trials[list(tuning.TIERS)].tolist() == [15, 48, 66, 88]
    gap = numbers[(numbers["panel"] == "gap") & (numbers["step"] == 1800)]
    assert gap.groupby("optimizer")["value"].mean()["Adam"] == pytest.approx(0.03, abs=0.005)
    assert set(numbers["window"]) == {100} and set(numbers["decay"]) == {1840}
    said = {text.get_text() for text in texts}
    assert said >= {"NONE", "FULL"}  # a tier is named at its line


def test_gains_of_scalars_are_written_at_the_tiers_that_they_have():
    """As where a search tunes them in full; else at the one tier that they have."""

    def written(texts):
        return sum(text.get_text().startswith("scalars ") for text in texts)

    numbers, _, texts = drawn(fig7, realistic())
    assert written(texts) == 2  # AdamW and Muon
    own = numbers[numbers["multipliers"] == "scalar"]
    others = [own.assign(tier=tier, value=own["value"] - 0.01) for tier in tuning.TUNED]
    context = Context("tiny", sorted(own["seed"].unique()), "a corpus", "reference")
    with plt.style.context(STYLE_FILE):
        page = fig7.draw(pd.concat([numbers, *others]), context)
    assert written(text for axis in page.axes for text in axis.findobj(Text)) == 4
    plt.close(page)


def test_a_gain_has_a_digit_more_where_three_would_hide_its_sign():
    assert tiers._said(pd.Series([0.01, 0.02])) == "0.015 ± 0.064"
    assert tiers._said(pd.Series([0.010, 0.0110, 0.0212])) == "0.014 ± 0.015"
    around = pd.Series([-1.0, 0.0, 1.0]) * 1e-3  # half an interval is 2.484e-3
    assert tiers._said(around + 2.6e-3) == "0.003 ± 0.002"
    barely = 1.05 * around + 2.72e-3
    assert tiers._said(barely) == "0.0027 ± 0.0026" and tiers._said(-barely) == "−0.0027 ± 0.0026"
    assert tiers._said(1.1 * around + 2.72e-3) == "0.003 ± 0.003"  # 0 lies in it
    assert tiers._said(pd.Series([-0.0123])) == "−0.012"


def test_figure_7_without_a_log_says_so():
    numbers, _, texts = drawn(fig7, realistic(log=False))
    assert set(numbers["panel"]) == {"loss", "gap"} and numbers["flops"].isna().all()
    assert [text.get_text() for text in texts].count(tiers.NO_LOG) == 2


def test_the_mechanism_has_r_or_says_that_there_is_nothing_to_compare():
    numbers, _, texts = drawn(tuning_mechanism, realistic())
    assert len(numbers) == 2 * 6 * 27 and numbers["r"].mean() == pytest.approx(0.75, abs=0.05)
    assert not any(text.get_text().endswith(tuning_mechanism.NOTHING) for text in texts)
    numbers, _, texts = drawn(tuning_mechanism, realistic(forward=False))
    assert numbers["r"].isna().all()
    assert sum(text.get_text().endswith(tuning_mechanism.NOTHING) for text in texts) == 2


def test_a_search_that_has_only_begun():
    """Of one optimizer and its first tier: what is there is judged and drawn, and no more."""
    whole = realistic()
    begun = [arm.startswith("ADAM") and arm.endswith("_NONE") for arm in whole.runs["arm"]]
    runs = whole.runs[begun]
    scalars = whole.scalars[whole.scalars["run"].isin(runs["run"])]
    tables = TunedTables(runs, scalars, trials=spent().query("stage == 'NONE'"))
    for claim, criterion in criteria_of("tuning_ablation").items():
        found = judge_of("tuning_ablation", claim)(tables, criterion)
        parts = [part for part in found.parts if np.isfinite(part.interval.mean)]
        assert all(part.name.startswith("Adam") for part in parts)
        assert len(parts) == {"T1": 2, "T2": 1}.get(claim, 0), claim
        assert claim == "T1" or set(found.groups.values()) == {"open"}
    numbers, _, texts = drawn(fig7, tables)
    assert set(numbers["tier"]) == {"NONE"} and set(numbers["optimizer"]) == {"Adam"}
    assert not {"LR", "FULL", "b   Muon"} & {text.get_text() for text in texts}
    with pytest.raises(NothingFound, match="no runs of ADAM_FULL, ADAM_LRM_LRWD, MUON_N"):
        tuning_mechanism.numbers({"tuning_ablation": tables})


def test_a_search_that_is_further_with_one_optimizer(monkeypatch):
    """What is there is judged; words stand above the tiers that they were written of alone."""
    whole = realistic()
    there = whole.runs["arm"].str.endswith("_NONE") | whole.runs["arm"].isin(
        ["ADAM_LR", "ADAM_LRM_LR"]
    )
    scalars = whole.scalars[whole.scalars["run"].isin(whole.runs["run"][there])]
    trials = spent()[spent()["stage"].isin(["NONE", "LR"])]
    tables = TunedTables(whole.runs[there], scalars, trials=trials)
    numbers = fig7.numbers({"tuning_ablation": tables})
    assert set(numbers.query("optimizer == 'Adam'")["tier"]) == {"NONE", "LR"}
    assert set(numbers.query("optimizer == 'Muon'")["tier"]) == {"NONE"}
    judged = {("T1", "Adam NONE"), ("T1", "Adam LR"), ("T1", "Muon NONE"), ("T6", "Adam")}
    for claim, criterion in criteria_of("tuning_ablation").items():
        found = judge_of("tuning_ablation", claim)(tables, criterion)
        for group, verdict in found.groups.items():
            if "scalar" not in group:
                assert (verdict != "open") == ((claim, group) in judged), (claim, group)
    context = Context("mini", tables.seeds, "a corpus", "reference")
    for own, shown in (({"Adam": 2, "Muon": 1}, True), ({"Adam": 2, "Muon": 2}, False)):
        messages = tiers.Messages(own, ("first", "second", "third"))
        monkeypatch.setitem(fig7.MESSAGES, "mini", messages)
        with plt.style.context(STYLE_FILE):
            page = fig7.draw(numbers, context)
            FigureCanvasAgg(page).draw()
        titles = [part.get_suptitle() for part in page.subfigs]
        assert len(titles) == 3 and all(titles) == any(titles) == shown
        said = " ".join(text.get_text() for text in page.findobj(Text))
        assert "LR also LRs of groups" in said and "\nLR: AdamW alone" in said
        assert "e, from left: NONE, LR" in said
        assert "hollow" not in said
        plt.close(page)


@pytest.mark.parametrize("missing", ["ADAM_LRM_LRWD", "ADAM_LRWD"])
def test_a_tier_that_one_arm_alone_has(missing):
    """Neither is it told to be the tier before, nor does it hide that tier's gain."""
    whole = realistic()
    there = whole.runs["arm"].str.endswith("_NONE") | whole.runs["arm"].isin(
        {"ADAM_LR", "ADAM_LRM_LR", "ADAM_LRWD", "ADAM_LRM_LRWD"} - {missing}
    )
    scalars = whole.scalars[whole.scalars["run"].isin(whole.runs["run"][there])]
    # The one that is there kept nothing.
    other = ({"ADAM_LRM_LRWD", "ADAM_LRWD"} - {missing}).pop()
    of_before = scalars[scalars["arm"] == other.replace("LRWD", "LR")]
    runs = of_before["run"].str.replace("LR ", "LRWD ")
    of_before = of_before.assign(arm=other, run=runs)
    scalars = pd.concat([scalars[scalars["arm"] != other], of_before], ignore_index=True)
    tables = TunedTables(whole.runs[there], scalars, trials=spent())
    _, _, texts = drawn(fig7, tables)
    said = {text.get_text() for text in texts}
    assert "gain at LR" in said and not {"gain at LRWD", "LR = LRWD"} & said


@pytest.mark.parametrize("alone", ["MUON_NONE", "MUON_LRM_NONE"])
def test_an_optimizer_with_one_arm_is_drawn(alone):
    whole = realistic()
    there = whole.runs["arm"].str.fullmatch(f"ADAM(_LRM)?_(NONE|LR)|{alone}")
    scalars = whole.scalars[whole.scalars["run"].isin(whole.runs["run"][there])]
    numbers, _, texts = drawn(fig7, TunedTables(whole.runs[there], scalars, trials=spent()))
    assert set(numbers.query("optimizer == 'Muon'")["panel"]) <= {"loss", "cost"}
    assert "No tier has runs" in " ".join(text.get_text() for text in texts)


def test_one_seed_is_drawn():
    for figure in (fig7, tuning_mechanism):
        drawn(figure, realistic(seeds=1))


def test_a_log_that_has_not_found_the_presets_is_not_what_they_cost(tmp_path, monkeypatch):
    """As of a search that was stopped, while runs use the published presets."""
    monkeypatch.setattr(trials, "RESULTS", tmp_path / "suite")
    monkeypatch.setattr(trials, "PRESETS", tmp_path / "presets")
    used = tmp_path / "presets" / "tuned" / "tiny"
    own = tmp_path / "mine" / "tuning" / "tiny"
    published = tmp_path / "suite" / "reference" / "tiny" / "tuning_search.jsonl"
    for folder in (used, own, published.parent):
        folder.mkdir(parents=True)
    said = "# A, found by `make tune SEARCH=tuning_search SCALE=tiny`.\n"
    (used / "A_NONE.yaml").write_text(said)
    (used / "B_NONE.yaml").write_text("# B, found by `make tune SEARCH=another SCALE=tiny`.\n")
    log = own / "tuning_search.jsonl"
    log.touch()

    def found():
        return trials.log_of("tuning_ablation", "tiny", "runs", tmp_path / "mine")

    assert found() == log  # better than none
    published.touch()
    assert found() == published
    (own / "A_NONE.yaml").write_text(said)
    assert found() == log
