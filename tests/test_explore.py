"""Choices, courses and distributions of logged norms, on tables small enough to work out."""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from analysis import explore
from analysis.drawing.page import caption
from analysis.drawing.style import STYLE_FILE
from analysis.explore.menus import Menus
from analysis.quantities.norms import noise_spread
from analysis.tables.asked import load_asked
from analysis.tables.find import NothingFound
from analysis.tables.results import Tables
from lrm.errors import UserError

STEPS = [0, 10, 20, 30, 40]
SHAPE = (40, 10)


def description(kind, arm, s, seed):
    """As in ``run.json``, what is read of it here."""
    return {
        "kind": kind,
        "arm": arm,
        "grid": {"S": s},
        "seed": seed,
        "id": f"{kind}{arm}{s}{seed}",
        "corpus": {"hash": "1", "name": "words"} if kind == "train" else None,
        "rules": [
            {"tensor": "mlp.up@0", "multiplier": "row", "shape": [40]},
            {"tensor": "mlp.up@0", "multiplier": None, "shape": list(SHAPE)},
            {"tensor": "projector", "multiplier": None, "shape": [30, 20]},
        ],
    }


@pytest.fixture
def runs():
    """Two arms, two points, two seeds and a Brownian motion, in no order."""
    found = [
        description("train", arm, s, seed)
        for seed in (101, 100)
        for s in (16.0, 0.5)
        for arm in ("VPN", "FPN")
    ]
    found.insert(3, description("brownian", "VPN", 0.5, 0))
    frame = pd.DataFrame(found).rename(columns={"id": "run"}).drop(columns=["grid", "corpus"])
    return frame.drop(columns="rules").assign(
        S=[d["grid"]["S"] for d in found], scale="tiny", description=found
    )


@pytest.fixture
def scalars(runs):
    """‖W‖ of two layers, in seed 101 at the ends only; of the projector and a signed number."""
    found = []
    for run in runs.to_dict("records"):
        own = {name: run[name] for name in ("run", "kind", "arm", "seed", "S")}
        for step in STEPS:
            values = {("projector", None, "weight_norm"): run["S"] * (1 + step)}
            if run["kind"] == "train":
                if run["seed"] == 100 or step in (0, 40):
                    values["mlp.up", 0, "weight_norm"] = 1.0 + step
                    values["mlp.up", 1, "weight_norm"] = 4.0 * (1.0 + step)
                values["mlp.up", 0, "signal"], values["mlp.up", 1, "signal"] = -1.0, 3.0
            for (tensor, layer, stat), value in values.items():
                found.append(
                    own | {"step": step, "tensor": tensor, "layer": layer, "stat": stat}
                    | {"value": value}
                )  # fmt: skip
    return pd.DataFrame(found).astype({"layer": "Int64"})


@pytest.fixture
def vectors(runs):
    """Norms of pure noise, its singular values, and a multiplier, at steps 20 and 40."""
    generator = np.random.default_rng(0)
    found = []
    for run in runs[runs["kind"] == "train"].to_dict("records"):
        own = {name: run[name] for name in ("run", "kind", "arm", "seed", "S")}
        for step in (20, 40):
            weight = generator.standard_normal(SHAPE)
            rows = {
                ("mlp.up", 0, "row_norms"): 5 * np.sqrt((weight**2).mean(1)),
                ("mlp.up", 0, "column_norms"): np.sqrt((weight**2).mean(0)),
                ("mlp.up", 0, "row_multiplier"): np.full(SHAPE[0], float(step)),
                ("mlp.up", 1, "row_norms"): np.array([*np.linspace(1, 2, 39), 0.0]),
                ("projector", None, "singular_values"): 3 * explore.noise_spectrum(30, 20),
            }
            for (tensor, layer, stat), value in rows.items():
                found.append(
                    own | {"step": step, "tensor": tensor, "layer": layer, "stat": stat}
                    | {"value": list(value)}
                )  # fmt: skip
    return pd.DataFrame(found).astype({"layer": "Int64"})


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_runs_are_named_and_in_order(runs):
    found = explore.named(runs)
    assert list(found["label"][:3]) == ["FPN S=0.5", "FPN S=0.5", "FPN S=16"]
    assert list(found["seed"][:2]) == [100, 101]
    assert found["kind"].iloc[-1] == "brownian"
    assert explore.named(found) is found
    twice = pd.concat([runs, runs.head(1).assign(run="0123456789")])
    labels = explore.named(twice)["label"]
    assert "VPN S=16 012345" in set(labels) and labels.str.endswith("S=16 trainV").any()


def test_runs_are_selected(runs):
    found = explore.select(runs, arms=["VPN"], points=["S=0.5"], seeds=[100])
    assert list(found["kind"]) == ["train", "brownian"]
    assert len(explore.select(runs)) == len(runs)
    assert set(explore.select(runs, brownian=False)["kind"]) == {"train"}
    assert explore.select(runs, "VPN", "S=0.5", 100).equals(found)
    there = "there are arms: FPN, VPN; points: S=0.5, S=16; seeds: 100, 101"
    for unknown in ({"arms": ["VPN", "SPN"]}, {"points": "S=1"}, {"seeds": 7}):
        with pytest.raises(UserError, match=there):
            explore.select(runs, **unknown)
    with pytest.raises(UserError, match="nothing to draw"):
        explore.draw_course([], explore.about(runs, "tiny", "reference"))


def test_default_runs_are_few_and_of_one_seed(runs):
    found = explore.default_runs(runs)
    trained = found[found["kind"] == "train"]
    assert list(trained["label"]) == ["FPN S=0.5", "FPN S=16", "VPN S=0.5", "VPN S=16"]
    assert set(trained["seed"]) == {100} and len(found) == 5
    assert len(explore.default_runs(runs[runs["kind"] == "train"], points=1)) == 2
    assert len(explore.default_runs(runs[runs["kind"] == "brownian"])) == 1
    # Of more points the outermost, at which nothing may be judged, are left out.
    one = runs[runs["kind"] == "train"].head(1)
    sweep = pd.concat(
        one.assign(run=f"sweep{s}", description=[one["description"].iloc[0] | {"grid": {"S": s}}])
        for s in (0.03, 0.12, 0.5, 2.0, 8.0, 32.0)
    )
    assert list(explore.default_runs(sweep, points=3)["point"]) == ["S=0.12", "S=0.5", "S=8"]


def test_choices_and_what_is_kept(runs, scalars, vectors):
    found = explore.choices(scalars).set_index(["tensor", "stat"])
    assert found.loc[("mlp.up", "weight_norm"), "layers"] == [0, 1]
    assert found.loc[("projector", "weight_norm"), "layers"] == []
    assert found.loc[("projector", "weight_norm"), "runs"] == 9
    assert found.loc[("mlp.up", "weight_norm"), "steps"] == 5

    thinned = scalars[scalars["stat"] != "signal"]
    early = vectors[vectors["seed"] == 100]
    table = explore.kept(thinned, early, runs)
    assert list(table["tensors over training"]) == [2, 1]
    assert list(table["those steps"]) == ["", "0, 40"]
    assert list(table["tensors with vectors"]) == [2, 0]
    assert list(table["steps of vectors"]) == ["20, 40", ""]


def test_a_course_is_averaged_over_layers(runs, scalars):
    chosen = explore.select(runs, arms=["VPN"], points=["S=0.5"])
    found = explore.course(scalars, chosen, "mlp.up", "weight_norm")
    one = found[found["seed"] == 100]
    assert list(one["step"]) == STEPS
    np.testing.assert_allclose(one["value"], 2.0 * (1 + np.array(STEPS)))
    assert list(found.loc[found["seed"] == 101, "step"]) == [0, 40]
    assert set(found["over"]) == {"geometric mean of 2 layers"}
    of_layer = explore.course(scalars, chosen, "mlp.up", "weight_norm", 1)
    assert of_layer["value"].iloc[0] == 4.0 and set(of_layer["over"]) == {""}
    signed = explore.course(scalars, chosen, "mlp.up", "signal")
    assert set(signed["value"]) == {1.0} and set(signed["over"]) == {"mean of 2 layers"}
    whole = explore.course(scalars, chosen, "projector", "weight_norm")
    assert set(whole["kind"]) == {"train", "brownian"} and whole["layer"].isna().all()


def test_what_was_not_logged_is_said(runs, scalars, vectors):
    with pytest.raises(UserError, match="nothing is logged of 'mlp'; there are .*projector"):
        explore.course(scalars, runs, "mlp", "weight_norm")
    with pytest.raises(UserError, match="projector has no 'signal'; it has weight_norm"):
        explore.course(scalars, runs, "projector", "signal")
    with pytest.raises(UserError, match="mlp.up has no layer 7; it has 0, 1"):
        explore.course(scalars, runs, "mlp.up", "signal", 7)
    with pytest.raises(UserError, match="it lies in none"):
        explore.course(scalars, runs, "projector", "weight_norm", 0)
    noise = explore.select(runs, points=["S=0.5"], seeds=[])
    assert explore.course(scalars, noise, "mlp.up", "signal").empty
    found = explore.distribution(vectors, noise, "mlp.up", "row_norms")
    assert found.empty
    context = explore.about(noise, "tiny", "runs")
    figure = explore.draw_distribution(found, context)
    assert "not kept of these runs" in [text.get_text() for text in figure.axes[0].texts]
    assert "Brownian motion alone" in figure.texts[-1].get_text()


def test_distributions_stand_beside_noise(runs, vectors):
    chosen = explore.select(runs, arms=["FPN"], points=["S=16"], seeds=[100])
    (row,) = explore.distribution(vectors, chosen, "mlp.up", "row_norms", 0).to_dict("records")
    assert row["step"] == 40 and row["values"].mean() == pytest.approx(1.0)
    assert row["noise"] == noise_spread(10)
    assert row["spread"] == pytest.approx(row["noise"], rel=0.4)
    (row,) = explore.distribution(vectors, chosen, "mlp.up", "column_norms").to_dict("records")
    assert row["noise"] == noise_spread(40) and len(row["values"]) == 10
    (row,) = explore.distribution(vectors, chosen, "mlp.up", "row_norms").to_dict("records")
    assert len(row["values"]) == 79 and row["dead"] == 1 and row["over"] == "2 layers"
    early = explore.distribution(vectors, chosen, "mlp.up", "row_multiplier", step=30)
    assert early["step"].item() == 20 and set(early["values"].item()) == {20.0}
    assert early["noise"].isna().all()
    with pytest.raises(UserError, match=r"no row_multiplier of mlp.up .* step 0; .* 20, 40"):
        explore.distribution(vectors, chosen, "mlp.up", "row_multiplier", step=0)
    (row,) = explore.distribution(vectors, chosen, "projector", "singular_values").to_dict(
        "records"
    )
    np.testing.assert_allclose(row["values"], explore.noise_spectrum(30, 20))
    assert row["spread"] == pytest.approx(row["noise"])


@pytest.mark.parametrize("shape", [(600, 150), (150, 600), (200, 200)])
def test_the_noise_spectrum_is_that_of_noise(shape):
    weight = np.random.default_rng(1).standard_normal(shape)
    values = np.linalg.svd(weight, compute_uv=False) / np.sqrt(weight.size)
    found = explore.noise_spectrum(*shape)
    assert np.square(found).sum() == pytest.approx(1.0)
    np.testing.assert_allclose(found, values / np.linalg.norm(values), atol=0.003)


def test_a_course_of_few_steps_has_no_line(runs, scalars):
    chosen = explore.select(runs, arms=["VPN"], points=["S=0.5"])
    courses = [
        explore.course(scalars, chosen, tensor, "weight_norm") for tensor in ("mlp.up", "projector")
    ]
    figure = explore.draw_course(courses, explore.about(chosen, "tiny", "runs"))
    left, right = figure.axes
    assert sorted(line.get_linestyle() for line in left.lines) == ["-", "None"]
    assert sorted(line.get_linestyle() for line in right.lines) == ["-", "-", "--"]
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["VPN S=0.5", "Brownian motion", "at these steps only"]
    assert "n = 2 seeds" in figure.texts[-1].get_text()


def test_a_caption_keeps_clear_of_the_labels(runs):
    """Of an axis that nobody has laid out, as in the guide's example."""
    with plt.style.context(STYLE_FILE):
        figure, axis = plt.subplots()
        axis.set_xlabel("factor")
        caption(figure, explore.about(runs, "tiny", "runs"))
        figure.draw_without_rendering()
    label, said = (text.get_window_extent() for text in (axis.xaxis.label, figure.texts[-1]))
    assert said.y1 <= label.y0


def test_a_drawing_at_smoke_says_that_it_is_no_result(runs, scalars):
    table = explore.course(scalars, runs, "projector", "weight_norm")
    for scale, said in (("smoke", True), ("tiny", False)):
        figure = explore.draw_course(table, explore.about(runs, scale, "runs"))
        assert ("no result" in figure.texts[-1].get_text()) == said


def test_distributions_are_drawn(runs, vectors):
    stats = ["row_norms", "column_norms", "row_multiplier"]
    found = [explore.distribution(vectors, runs, "mlp.up", stat) for stat in stats]
    found.append(explore.distribution(vectors, runs, "projector", "singular_values"))
    figure = explore.draw_distribution(found, explore.about(runs, "tiny", "runs"))
    rows, columns, multipliers, spectrum = figure.axes
    dotted = [sum(line.get_linestyle() == ":" for line in axis.lines) for axis in figure.axes]
    assert dotted == [1, 1, 0, 1]
    assert len(multipliers.collections) == 8 and not multipliers.lines  # all alike: ticks
    assert spectrum.get_yscale() == "log" and rows.get_ylabel() == "density"
    colours = {line.get_color() for line in rows.lines if line.get_linestyle() != ":"}
    assert len(colours) == 4  # seeds of an arm at a point share one


def test_nothing_there(tmp_path):
    with pytest.raises(UserError, match="no finished runs at smoke .* experiments/projector"):
        explore.experiments("smoke", "runs", tmp_path)
    (tmp_path / "runs" / "gone" / "1").mkdir(parents=True)
    (tmp_path / "runs" / "gone" / "1" / "run.json").write_text("{}")
    with pytest.raises(UserError, match="no finished runs"):
        explore.experiments("smoke", "runs", tmp_path)


@pytest.fixture(scope="module")
def there():
    return explore.experiments("tiny", "reference")


def test_experiments_without_runs_are_listed_with_the_reason(there):
    assert explore.default_experiment(there) == "projector"
    assert there.loc["projector", "runs"] > 0 and there.loc["projector", "note"] == ""
    assert explore.default_experiment(there.drop(index="projector")) in there.index


def test_the_list_of_experiments_is_short(there):
    row = there.loc["projector", ["arms", "grid", "seeds"]]
    assert list(row) == ["FPN, SPN, VPN", "S 0.03125 to 32 (6)", "100 to 107, 200 to 211"]
    assert there.loc["tuning_apart", "arms"].endswith("and 22 more")
    assert there.loc["gdn_transfer_sgd", "grid"].startswith("width 32, 256; lr 0.025 to 0.8 (")
    assert there.loc["sv_necessity", "grid"] == ""


def test_what_notebooks_show_alike(capsys, tmp_path):
    explore.list_seeds(["projector", "nothing"], "tiny", "reference")
    printed = capsys.readouterr().out
    assert "projector: n = 20, seeds 100, 101" in printed
    assert "nothing: nothing to show, it has no finished runs here" in printed
    explore.show_figure("fig6", "smoke", "runs", tmp_path)
    assert "no fig6 to show: no finished runs" in capsys.readouterr().out
    values = {"arm": ["VPN"] * 3, "S": [0.5, 0.5, 2.0], "value": [1.0, 2.0, 3.0]}
    shown = explore.by_arm(pd.DataFrame(values))
    assert list(shown.loc["VPN"]) == ["1.500 ± 0.707", "3.000"]


def test_runs_that_a_part_of_the_claims_reads_are_listed_too(there):
    """Seeds of gdn_draws have the draws that their claim reads, and no other."""
    with pytest.raises(NothingFound, match="incomplete"):
        Tables.load("gdn_draws", "tiny", "reference")
    tables = load_asked("gdn_draws", "tiny", "reference")
    runs = tables.runs[tables.runs["seed"] < 208]
    assert len(runs) == 64 and set(tables.scalars["run"]) == set(tables.runs["run"])
    assert there.loc["gdn_draws", "runs"] == len(tables.runs)
    whole = Tables.load("projector", "tiny", "reference").runs
    assert sorted(load_asked("projector", "tiny", "reference").runs["run"]) == sorted(whole["run"])


def test_menus_draw_what_is_chosen(monkeypatch, runs, scalars, vectors):
    there = pd.DataFrame({"runs": [8], "Brownian": [1]}, index=["projector"])
    drawn = []
    monkeypatch.setattr("analysis.explore.menus._show", drawn.append)
    tables = type("Tables", (), {"runs": runs, "scalars": scalars, "vectors": vectors})()
    menus = Menus(ipywidgets, "tiny", "runs", None, {"projector": tables}, there)
    assert menus.tensor.value == "projector" and len(drawn) == 2
    assert menus.seeds.value == (100,)
    menus.tensor.value = "mlp.up"
    assert len(drawn) == 4  # once, though other menus followed
    assert menus.stat.value == "weight_norm" and menus.vector.value == "row_norms"
    assert menus.layer.options == ("all", 0, 1)
    assert (menus.layer.value, menus.step.value) == ("all", "last")  # and not blank
    menus.step.value = 20
    assert "step 20" in drawn[-1].axes[0].get_title()
    menus.arms.value = ()
    assert len(drawn) == 6  # nothing is chosen, nothing drawn


def test_without_ipywidgets_a_line_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert explore.widgets("tiny", "runs") is None
    assert "pip install ipywidgets" in capsys.readouterr().out


def test_the_example_of_the_page(capsys):
    page = (Path(__file__).parents[1] / "analysis" / "README.md").read_text()
    [example] = re.findall(r"<!-- example.*?```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert "0 dead rows" in capsys.readouterr().out


def test_the_page_names_statistics_that_are_there():
    page = (Path(__file__).parents[1] / "analysis" / "README.md").read_text()
    named = set(re.findall(r"`([a-z_]+)`", page.split("## Statistics")[1].split("##")[0]))
    there: set[str] = {"stat", "vectors", "residual"}
    for experiment in ("scale_diversity", "mlp_scale", "projector", "grad_clipping"):
        tables = Tables.load(experiment, source="reference")
        there |= set(tables.scalars["stat"]) | set(tables.vectors["stat"])
    there |= set(Tables.load("long_run", "mini", source="reference").scalars["stat"])  # recall
    assert named <= there, named - there


def test_an_experiment_without_vectors_has_none():
    """Theory logs scalars alone: an empty table, and one line where a tensor of it is asked for."""
    tables = load_asked("gdn_theory", "tiny", "reference")
    assert len(tables.scalars) and tables.vectors.empty
    assert list(tables.vectors.columns) == list(tables.scalars.columns)
    assert explore.choices(tables.vectors).empty
    with pytest.raises(UserError, match="there are no vectors of anything"):
        explore.distribution(tables.vectors, tables.runs, "projector", "row_norms")
