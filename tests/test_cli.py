"""The suite as its user calls it: whole commands, their files, exit codes and last lines."""

import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import warm
from PIL import Image

from lrm.errors import UserError
from lrm.store.files import make_folder

ROOT = Path(__file__).parents[1]
FIGURES = sorted(path.stem for path in ROOT.glob("analysis/figures/[a-z]*.py"))


def call(*arguments, code=0, fresh=False, **options):
    """Run a command of the suite; its output, standard error last. ``fresh``: nothing is loaded."""
    command = [sys.executable if fresh else warm.python, *map(str, arguments)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)
    assert found.returncode == code, found.stdout + found.stderr
    if code == 2:
        assert "Traceback" not in found.stderr
        assert len([line for line in found.stderr.splitlines() if "error:" in line]) == 1
    return found.stdout + found.stderr


def run(name, *arguments, **options):
    return call(f"experiments/{name}/run.py", "--scale", "smoke", *arguments, **options)


@pytest.fixture(scope="session")
def trained(tmp_path_factory, smoke_results):
    """``smoke_results`` to write into."""
    return shutil.copytree(smoke_results, tmp_path_factory.mktemp("cli") / "results")


def test_claims_of_what_is_published_are_those_of_the_runs(trained, tmp_path):
    """Also of the seeds of which not everything is published."""
    from analysis.claims.ledger import judge_all
    from analysis.publish import kept
    from analysis.tables import compact

    shutil.copytree(trained / "runs", tmp_path / "runs")
    for folder in (tmp_path / "runs").glob("*/*"):
        description = json.loads((folder / "run.json").read_text())
        if description["kind"] == "train":
            frame = pd.read_parquet(folder / "scalars.parquet")
            frame = compact.scalars(frame, description, kept(folder.parent.name), whole=False)
            frame.to_parquet(folder / "scalars.parquet")
            # As of a version without digests, since the table is another one now.
            done = json.loads((folder / "done.json").read_text())
            bare = {key: value for key, value in done.items() if key not in ("files", "digest")}
            (folder / "done.json").write_text(json.dumps(bare))
    before, after = (judge_all("smoke", "runs", folder) for folder in (trained, tmp_path))
    judged = {record["id"] for record in before if record["parts"]}
    assert {"C1", "N1", "D1", "W1"} <= judged  # at smoke few S are
    # Scales of Q and K differ by a thousandth at smoke, of which the rounding of norms is a tenth.
    # At tiny they differ by a tenth.
    coarse = {"S2.3": 0.1}
    for one, other in zip(before, after, strict=True):
        values = [
            [math.nan if part["value"] is None else part["value"] for part in record["parts"]]
            for record in (one, other)
        ]
        size = coarse.get(one["id"], 1e-3)
        assert values[0] == pytest.approx(values[1], rel=5e-3, abs=size, nan_ok=True), one["id"]


def test_figure_1_end_to_end(trained):
    draw = ("-m", "analysis.figures", "fig1", "--scale", "smoke", "--results", trained)
    assert "drew" in call(*draw)
    folder = trained / "figures" / "smoke"
    with Image.open(folder / "fig1.png") as image:
        assert image.size[0] > 1200
        assert image.convert("L").getextrema() == (0, 255)
    assert (folder / "fig1.pdf").read_bytes().startswith(b"%PDF")
    numbers = pd.read_csv(folder / "fig1.csv")
    assert set(numbers["panel"]) == set("abcdef")
    loss = numbers[numbers["panel"] == "a"]
    assert len(loss) == 3 * 3 * 2 and set(loss["arm"]) == {"FPN", "SPN", "VPN"}
    done = [json.loads(p.read_text()) for p in trained.glob("runs/projector/*/done.json")]
    losses = [d["validation_loss"] for d in done if d["validation_loss"]]
    assert sorted(loss["value"]) == pytest.approx(sorted(losses))
    assert set(numbers.loc[numbers["kind"] == "brownian", "panel"]) == set("cde")
    before = (folder / "fig1.png").stat().st_mtime_ns
    assert "up to date" in call(*draw)
    assert (folder / "fig1.png").stat().st_mtime_ns == before


def test_every_figure_is_drawn(trained):
    call("-m", "analysis.figures", *FIGURES, "--scale", "smoke", "--results", trained)
    folder = trained / "figures" / "smoke"
    for figure in FIGURES:
        with Image.open(folder / f"{figure}.png") as image:
            assert image.size[0] > 1200 and image.convert("L").getextrema() == (0, 255), figure
        assert (folder / f"{figure}.pdf").read_bytes().startswith(b"%PDF")
        assert len(pd.read_csv(folder / f"{figure}.csv")), figure


def test_figures_without_runs_do_not_stop_the_others(trained, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "grad_clipping").symlink_to(trained / "runs" / "grad_clipping")
    draw = ("-m", "analysis.figures", "fig10", "fig6", "--scale", "smoke", "--results", tmp_path)
    assert "no finished runs of width_scaling" in call(*draw, code=2)
    assert [path.name for path in tmp_path.glob("figures/smoke/*.png")] == ["fig6.png"]


def test_the_controls_in_numbers(trained):
    call("-m", "analysis.figures", "projector_controls", "--scale", "smoke", "--results", trained)
    numbers = pd.read_csv(trained / "figures" / "smoke" / "projector_controls.csv")
    assert len(numbers) == 35 and numbers["loss"].notna().all()
    assert numbers["over_noise"].isna().sum() == 1  # FPN at S = 1 has no Brownian twin


def test_a_second_call_does_nothing(trained):
    began = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()}
    output = run("projector", "--results", trained, "--seeds", 2)
    assert "0 to train, 24 finished" in output
    assert began == {path: path.stat().st_mtime_ns for path in began}


def test_several_experiments_in_one_sweep(trained, tmp_path):
    """With the runs that each has by itself."""
    names = ("grad_clipping", "gradient_noise")
    for name in names:
        shutil.copytree(trained / "runs" / name, tmp_path / "runs" / name)
        shutil.rmtree(next((tmp_path / "runs" / name).glob("*")))
    shutil.copytree(trained / "data", tmp_path / "data")
    folders = [f"experiments/{name}" for name in names]
    said = call("-m", "lrm.sweep", *folders, "--scale", "smoke", "--results", tmp_path)
    assert all(f"{name} at smoke: 1 to train" in said for name in names)
    for name in names:
        assert run(name, "--results", tmp_path).startswith(f"{name} at smoke: 0 to train")


def test_patterns_for_one_of_several_experiments(tmp_path):
    """As ``make`` asks for what figures need; what has no pattern is planned whole."""
    asked = call("-m", "analysis.needs", "--sweep", "sv_fig2", "sv_fig4").strip()
    assert asked == (
        "experiments/sv_heterogeneity experiments/sv_decay '--only=sv_decay/MUON_NONE *'"
    )
    options = ("--scale", "smoke", "--results", tmp_path, "--dry-run")
    said = call("-m", "lrm.sweep", *shlex.split(asked), *options)
    decayed, whole = ("MUON_NONE seed=0", "MUON_ALL seed=0"), ("STANDARD seed=0", "HG seed=0")
    assert [label in said for label in (*decayed, *whole)] == [True, False, True, True]
    line = call("-m", "lrm.sweep", "experiments/sv_decay", *options, "--only", "x/A*", code=2)
    assert "--only 'x/A*': before the slash stands the name of one of the experiments" in line


def test_planning_does_not_load_torch(trained):
    code = (
        "import sys; sys.argv = ['run.py', '--scale', 'smoke', '--seeds', '2', '--results', "
        f"{str(trained)!r}]; import runpy; runpy.run_path('experiments/projector/run.py', "
        "run_name='__main__'); import analysis.figures.__main__ as m; "
        f"results = __import__('pathlib').Path({str(trained)!r}); "
        "m.render('fig1', 'smoke', 'runs', results, results / 'figures' / 'smoke'); "
        "assert 'torch' not in sys.modules"
    )
    call("-c", code, fresh=True)


def test_claims_of_smoke_runs(trained):
    claims = ("-m", "analysis.claims", "--scale", "smoke", "--source", "runs", "--results", trained)
    output = call(*claims)
    ledger = json.loads((trained / "figures" / "smoke" / "claims.json").read_text())
    records = ledger["claims"]
    # There are enough draws of noise at smoke too.
    held = {r["id"] for r in records for part in r["parts"] if part["verdict"] == "holds"}
    assert held <= {"WS5", "WS5.2"}
    assert [r["id"] for r in records][:2] == ["P0", "P1"] and "P1" in output
    for record in records:
        assert {"id", "statement", "scale", "line", "n", "planned", "criterion", "parts",
                "verdict"} <= set(record)  # fmt: skip
    judged = {r["id"]: r for r in records}
    # Two seeds are too few for any verdict, and they explore.
    assert judged["P1"]["n"] in (0, 2) and judged["P1"]["stage"] == "exploration"
    verdicts = {r["verdict"] for r in records if r["id"] not in ("WS5", "WS5.2")}
    assert verdicts <= {"open", "not judged", "decided by tests"}


def test_results_as_a_tidy_frame(trained):
    from analysis.tables.results import load, load_runs, load_vectors

    frame = load("projector", "smoke", "runs", trained)
    assert {"experiment", "run", "kind", "arm", "seed", "scale", "corpus", "S", "step", "layer",
            "tensor", "stat", "value"} == set(frame.columns)  # fmt: skip
    trained_runs = frame[frame["kind"] == "train"]
    assert trained_runs.groupby(["arm", "S", "seed"]).ngroups == 18
    q = frame[(frame["tensor"] == "attention.q") & (frame["stat"] == "weight_norm")]
    assert set(q["layer"]) == {0, 1}
    vectors = load_vectors("projector", "smoke", "runs", trained)
    rows = vectors[(vectors["tensor"] == "projector") & (vectors["stat"] == "row_norms")]
    assert {len(value) for value in rows["value"]} == {384}
    assert len(load_runs("projector", "smoke", "runs", trained)) == 24
    placement = load("projector_placement", "smoke", "runs", trained)
    assert placement["run"].nunique() == 9


def test_runs_of_another_configuration_are_left_out(trained, tmp_path):
    from analysis.tables.results import load

    override = ("--set", "train.steps=20", "--set", "schedule.decay_steps=5")
    run("projector", "--results", tmp_path, "--only", "FPN*", *override)
    with pytest.raises(UserError, match="3 incomplete or of another configuration"):
        load("projector", "smoke", "runs", tmp_path)
    assert load("projector", "smoke", "runs", tmp_path, "all")["run"].nunique() == 3


def test_published_figures_are_drawn_anew(tmp_path):
    published = ROOT / "results" / "reference" / "tiny"
    folder = tmp_path / "reference" / "tiny"
    shutil.copytree(published / "steepest_optimizers", folder / "steepest_optimizers")
    for name in ("steepest_search.jsonl", "B2SUMS"):
        shutil.copy(published / name, folder)
    (folder / "figures").mkdir()
    shutil.copy(published / "figures" / "bm_fig3.csv", folder / "figures")
    redraw = ("-m", "analysis.publish", "--redraw", "--results", tmp_path)
    assert "drew" in call(*redraw) and (folder / "figures" / "bm_fig3.png").is_file()
    assert call(*redraw).count("is up to date") == 1
    assert "no figure is published at mini" in call(*redraw, "--scale", "mini", code=2)


def test_reference_round_trip(trained, tmp_path, monkeypatch):
    from analysis import publish as publishing
    from analysis.explore import compare
    from analysis.tables.results import load, load_runs, load_vectors

    results = tmp_path / "results"
    shutil.copytree(trained / "runs" / "projector", results / "runs" / "projector")
    publish = ("-m", "analysis.publish", "projector", "--scale", "smoke", "--results", results)
    assert "seeds [2] are not finished" in call(*publish, "--seeds", 3, code=2)
    output = call(*publish, "--seeds", 2)
    assert "published projector" in output
    assert "fig1 is not drawn yet: there is no reference of mlp_scale" in output
    folder = results / "reference" / "smoke"
    assert (folder / "claims.json").exists()
    folder /= "projector"
    assert sum(f.stat().st_size for f in folder.iterdir()) < 2_000_000
    keys = ["run", "step", "tensor", "layer", "stat"]
    mine = load("projector", "smoke", "runs", results)
    theirs = load("projector", "smoke", source="reference", results=results)
    dense = ["train_loss", "global_gradient_norm"]  # averaged between probes
    for stat in dense:
        whole, thin = (f[(f["stat"] == stat) & (f["step"] <= 60)] for f in (mine, theirs))
        assert set(thin["step"]) == set(range(10, 61, 10))
        assert thin["value"].mean() == pytest.approx(whole["value"].mean(), rel=1e-3)
    mine, theirs = (
        f[~f["stat"].isin(dense)].sort_values(keys, ignore_index=True) for f in (mine, theirs)
    )
    # Of the second seed only the courses of the model and of what has a Brownian twin.
    course = mine["tensor"].isin(["model", "projector", "norm.final"])
    kept = course | mine["step"].isin([0, 30, 50, 60])
    kept &= ~mine["stat"].str.endswith("gradient_norm")
    mine = mine[(mine["seed"] == 0) | kept].reset_index(drop=True)
    pd.testing.assert_frame_equal(mine, theirs[mine.columns], check_dtype=False, rtol=2e-4)
    last = load_vectors("projector", "smoke", source="reference", results=results)
    assert set(last["step"]) == {50, 60} and set(last["seed"]) == {0}
    assert len(load_runs("projector", "smoke", "reference", results)) == 24
    # Own runs beside them, one of which was changed.
    run("projector", "--results", results, "--only", "FPN S=1 *", "--set", "train.steps=30")
    beside = compare("projector", scale="smoke", results=results)
    assert beside.groupby("source")["run"].nunique().to_dict() == {"reference": 24, "runs": 25}
    assert (beside.loc[beside["source"] == "reference", "changes"] == "").all()
    shorter = compare("projector", "train.steps=30", "smoke", results).query("source == 'runs'")
    assert shorter["run"].nunique() == 1 and shorter["step"].max() == 30
    assert "train.steps=30" in shorter["changes"].iloc[0]
    with pytest.raises(UserError, match=r"the change 'train.steps=31'; there are .*steps=30"):
        compare("projector", "train.steps=31", "smoke", results)
    # Seeds that are published later stand beside those that are there.
    whole = load("projector", "smoke", source="reference", results=results)
    shutil.rmtree(folder)
    for seed in (0, 1):
        publishing.publish("projector", "smoke", [seed], results)
    pieces = load("projector", "smoke", source="reference", results=results)
    pd.testing.assert_frame_equal(
        *(f[[*keys, "seed", "value"]].sort_values(keys, ignore_index=True) for f in (whole, pieces))
    )
    # Vectors of more seeds where a claim reads them.
    monkeypatch.setattr("analysis.claims.projector.p1.vectors", ("projector",), raising=False)
    publishing.publish("projector", "smoke", [0, 1], results)
    last = load_vectors("projector", "smoke", source="reference", results=results)
    assert set(last["seed"]) == {0, 1}
    assert set(last.loc[last["seed"] == 1, "tensor"]) == {"projector"}
    assert set(last.loc[last["seed"] == 1, "step"]) == {0, 50, 60}
    # At the steps that the experiment names.
    asked = replace(publishing.kept("projector"), vectors_at=("constant",))
    monkeypatch.setattr(publishing, "kept", lambda name: asked)
    publishing.publish("projector", "smoke", [0, 1], results)
    last = load_vectors("projector", "smoke", source="reference", results=results)
    assert set(last.loc[last["seed"] == 0, "step"]) == {0, 50, 60}
    assert set(last.loc[last["seed"] == 1, "step"]) == {50}
    monkeypatch.undo()
    shutil.rmtree(results / "runs")
    output = call("-m", "analysis.claims", "--judge", "--scale", "smoke", "--results", results)
    assert "judged from the published runs" in output
    stored = call("-m", "analysis.claims", "--scale", "smoke", "--results", results)
    assert output.startswith(stored.rstrip())


def test_dry_run_shows_everything_and_trains_nothing(tmp_path):
    output = run("projector", "--dry-run", "--results", tmp_path, "--only", "VPN S=4 *")
    for word in ("VPN S=4 seed=0", "parameters", "tokens", "FLOPs", "Σηλ", "travel", "lr·wd",
                 "norm.final", " of one CPU core (by estimate); "):  # fmt: skip
        assert word in output
    assert not list(tmp_path.iterdir())
    paper = call("experiments/projector/run.py", "--scale", "paper", "--dry-run", "--only",
                 "FPN S=2 *")  # fmt: skip
    assert "521,411,104 parameters" in paper and "days" in paper
    assert " of one H100-class GPU (by estimate), about $" in paper
    parts = run("projector", "--dry-run", "--results", tmp_path, "--only", "VPN S=4 *", "--set",
                "execution.parallel={replicate: 2, shard: 4}")  # fmt: skip
    assert "memory of each of 2 × 4 processes: about " in parts and "; the first needs " in parts


def test_list_and_clean(trained, tmp_path):
    results = tmp_path / "results"
    shutil.copytree(trained / "runs", results / "runs")
    output = call("-m", "lrm.sweep.runs", "list", "--results", results)
    assert "FPN S=1 seed=0" in output and re.search(r"\d+ runs in", output)
    clean = ("-m", "lrm.sweep.runs", "clean", "--results", results)
    assert "nothing removed" in call(*clean, code=2, stdin=subprocess.DEVNULL)
    assert "no runs" in call(*clean, "--scale", "tiny", "--yes")
    assert "removed" in call(*clean, "--experiment", "projector", "--yes")
    assert not list((results / "runs" / "projector").iterdir())
    assert list((results / "runs" / "equilibrium").iterdir())


def test_what_judges_a_claim_can_be_asked_for_by_its_name(tmp_path):
    """The seeds of its entry, and of the runs those alone that it reads."""
    plan = ("--scale", "tiny", "--dry-run", "--results", tmp_path, "--claim")
    of_one = call("experiments/steepest_width/run.py", *plan, "BM1")
    assert "\n64 runs, " in of_one and "seed=207" in of_one and "u=2" not in of_one
    whole = call("experiments/multiplier_lr/run.py", *plan, "MLR")
    assert re.search(r"^\d+ runs, ", whole, re.MULTILINE)
    for arguments, message in (
        (("BM0",), "steepest_width has no claim 'BM0'; it has BM1, BM4, BM7, BM8"),
        (("BM1", "--only", "*"), "--claim says which seeds and runs; leave out --seeds and"),
        (("BM1", "--seeds", "3"), "leave out --seeds and --only"),
        (("BM1", "--seeds", "1"), "leave out --seeds and --only"),  # also what none given means
    ):
        assert message in call("experiments/steepest_width/run.py", *plan, *arguments, code=2)
    publish = ("-m", "analysis.publish", "steepest_width", "--claim", "BM1", "--seeds", "1")
    assert "--claim says which seeds and runs" in call(*publish, "--results", tmp_path, code=2)


def test_every_pattern_selects_something(tmp_path):
    """Or is named; a figure may ask for what another scale has, which is told."""
    options = ("--dry-run", "--results", tmp_path, "--only")
    line = run("projector", *options, "FPN S=1 *", "--only", "SPM S=1 *", code=2)
    assert "--only 'SPM S=1 *' selects no run; labels look like 'FPN " in line
    said = run("projector", *options, "FPN S=1 *", "--only", "FPN S=2 *")
    assert "there are no runs 'FPN S=2 *' at smoke" in said and "\n1 run, " in said
    assert "--only 'FPN S=2 *' selects no run" in run("projector", *options, "FPN S=2 *", code=2)


def test_every_pattern_of_several_experiments_selects_something(tmp_path):
    several = ("-m", "lrm.sweep", "experiments/projector", "experiments/equilibrium", "--scale",
               "smoke", "--dry-run", "--results", tmp_path, "--only")  # fmt: skip
    said = call(*several, "projector/FPNN*", code=2)
    assert "error: projector: --only 'FPNN*' selects no run" in said and "equilibrium:" not in said
    assert "--only 'FPNN*' selects no run of equilibrium, projector" in call(
        *several, "FPN*", "--only", "FPNN*", code=2)  # fmt: skip
    # For whichever of them has such runs.
    said = call(*several, "FPN S=1 *", "--only", "LR factor=2 *")
    assert "FPN S=1 seed=0" in said and "LR factor=2 seed=0" in said.partition("equilibrium: ")[2]
    assert "equilibrium: none of its runs is asked for" in call(*several, "FPN S=1 *")


def test_a_search_among_several_is_told_before_any_plan(tmp_path):
    said = call("-m", "lrm.sweep", "experiments/projector", "experiments/tuning_search",
                "--dry-run", "--results", tmp_path, code=2)  # fmt: skip
    assert said.startswith("error: tuning_search is a search; run python experiments/")


def test_what_reads_a_run_is_not_begun_before_that_run(tmp_path):
    """An evaluation of what has not been trained is refused, and leaves no folder."""
    options = ("--results", tmp_path, "--seeds", "7-7", "--only", "evaluation *ADAM_LRM*")
    line = run("long_run", *options, code=2)
    assert "error: evaluation ADAM_LRM_FULL seed=7 reads what ADAM_LRM_FULL seed=7 has" in line
    assert "add --only 'ADAM_LRM_FULL *', or leave out --only 'evaluation *ADAM_LRM*'" in line
    assert not list(tmp_path.iterdir())
    run("long_run", *options, "--only", "ADAM_LRM_FULL *", "--dry-run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "train.step=3"], "unknown key train.step; did you mean steps?"),
        (["--set", "train.steps=few"], "train.steps"),
        (["--set", "optimizer.lr=1e-4"], "'1e-4' is text, not a number; write 1.0e-4"),
        (["--set", "model.mamba_n_heads=5"], "mamba_n_heads = 5 must divide mamba_d_ssm = 64"),
        (["--only", "nothing"], "selects no run"),
        (["--seeds", "x"], "write a number"),
        (["--set", "data.source=folder"], "needs data.path"),
        (["--set", "data.source=folder", "--set", "data.path=/nowhere"], "/nowhere"),
        (["--set", "data.source=packages", "--set", "data.packages=[numpy, absent]", "--dry-run"],
         "there is no package 'absent'; install it, or leave it out of data.packages"),
        (["--yes", "--set", "train.sequence_length=100000"], "sequence_length"),
        (["--set", "execution.device=quantum"], "execution.device"),
        (["--set", "optimizer.lr=1.0e+30", "--set", "train.clip_norm=0.0", "--only", "VPN S=1 *"],
         "not finite at step"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, tmp_path):
    assert message in run("projector", "--results", tmp_path, *arguments, code=2)


def test_a_results_folder_that_cannot_be_written(tmp_path):
    """Also for root, for whom permissions do not exist: a file stands where the folder should."""
    (tmp_path / "results").write_text("")
    assert "cannot create" in run("projector", "--results", tmp_path / "results", code=2)


def test_a_read_only_results_folder(tmp_path, monkeypatch):
    """Permissions do not stop root, so that the system's answer is played."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="is read-only; choose a writable folder with --results"):
        make_folder(tmp_path)


def test_an_empty_and_a_truncated_corpus(tmp_path):
    (tmp_path / "texts").mkdir()
    source = ("--set", "data.source=folder", "--set", f"data.path={tmp_path / 'texts'}")
    output = run("projector", "--results", tmp_path, *source, code=2)
    assert "texts" in output
    run("projector", "--results", tmp_path, "--only", "FPN S=1 *")
    [shard] = tmp_path.glob("data/*/train-00000.bin")
    shard.write_bytes(shard.read_bytes()[:-7])
    output = run("projector", "--results", tmp_path, "--only", "FPN S=4 *", code=2)
    assert "train-00000.bin" in output
    assert len(list(tmp_path.glob("runs/projector/*/done.json"))) == 1


def test_damaged_tokens_are_told(tmp_path):
    """Also where the file has the right size: its digest is checked before training."""
    run("projector", "--results", tmp_path, "--only", "FPN S=1 *")
    [shard] = tmp_path.glob("data/*/train-00000.bin")
    content = bytearray(shard.read_bytes())
    content[5000:5100] = b"\xff" * 100
    shard.write_bytes(content)
    output = run("projector", "--results", tmp_path, "--only", "FPN S=4 *", code=2)
    assert "train-00000.bin" in output


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_damaged_run_records(trained, tmp_path, content):
    """Told by what needs them, removable by clean-runs."""
    results = tmp_path / "results"
    shutil.copytree(trained, results)
    victim = sorted(results.glob("runs/projector/*/run.json"))[0]
    victim.write_text(content)
    output = run("projector", "--results", results, "--seeds", 2, code=2)
    assert f"{victim} is damaged" in output and f"remove {victim.parent} and run again" in output
    figure = ("-m", "analysis.figures", "fig1", "--scale", "smoke", "--results", results)
    assert "is damaged" in call(*figure, code=2)
    run("projector", "--results", results, "--dry-run", "--only", "FPN S=1 *")
    assert "damaged" in call("-m", "lrm.sweep.runs", "list", "--results", results)
    call("-m", "lrm.sweep.runs", "clean", "--results", results, "--yes")
    assert not list(results.glob("runs/*/*"))


def test_workers_that_cannot_start_are_told(tmp_path):
    """A torch that does not import must not look like success."""
    (tmp_path / "torch.py").write_text("raise ImportError('broken on purpose')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    output = run("projector", "--results", tmp_path / "results", "--only", "FPN*", code=1,
                 env={**os.environ, "PYTHONPATH": path}, fresh=True)  # fmt: skip
    assert "3 runs were not begun" in output


def test_output_into_head(tmp_path):
    command = (f"{sys.executable} experiments/projector/run.py --dry-run --scale paper "
               f"--results {tmp_path} | head -1")  # fmt: skip
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("projector:") and "Traceback" not in done.stderr


def test_one_bad_run_does_not_lose_the_others(tmp_path):
    """A damaged checkpoint is told at the end; the other runs are trained."""
    only = ("--results", tmp_path, "--only", "FPN*")
    run("projector", *only)
    [victim, *_] = sorted(tmp_path.glob("runs/projector/*/done.json"))
    victim.unlink()
    (victim.parent / "checkpoint.pt").write_bytes(b"torn")
    another = sorted(tmp_path.glob("runs/projector/*/done.json"))[0]
    another.unlink()
    output = run("projector", *only, code=2)
    assert f"{victim.parent / 'checkpoint.pt'} is damaged; remove it" in output
    assert another.exists()
    # So that make all knows that the rest is trained.
    call("-m", "lrm.sweep", "experiments/projector", "--scale", "smoke", *only, code=3)
    (victim.parent / "checkpoint.pt").unlink()
    assert "1 to train, 2 finished" in run("projector", *only)


def test_damaged_finished_runs_do_not_stop_the_others(tmp_path):
    """They are told by a dry run and at the end, all of them, and nothing touches them."""
    only = ("--results", tmp_path, "--only", "FPN S=1 *", "--only", "FPN S=4 *")
    run("projector", *only)
    victims = sorted(tmp_path.glob("runs/projector/*/done.json"))
    for victim in victims:
        victim.write_text("{")
    said = run("projector", *only, "--dry-run")
    assert said.count(" damaged]") == 2 and "2 finished runs damaged: a sweep tells" in said
    several = ("-m", "lrm.sweep", "experiments/projector", "--scale", "smoke")
    said = call(*several, *only, "--only", "FPN S=0.25 *", code=3)
    assert "projector at smoke: 1 to train, 0 finished, 2 damaged" in said
    assert "trained 1 run; it lies in" in said
    line = said.partition("error: ")[2]
    assert all(str(victim.parent) in line for victim in victims)
    assert f"{victims[0]} is damaged; remove {victims[0].parent} and run again" in said
    assert [victim.read_text() for victim in victims] == ["{", "{"]
    assert "0 to train, 1 finished, 2 damaged" in run(
        "projector", *only, "--only", "FPN S=0.25 *", code=2)  # fmt: skip


def test_ctrl_c_then_the_same_command(tmp_path):
    """Interrupted from the terminal; what was done is kept, the rest goes on."""
    # So long that the last run is not over before the signal, on a busy machine either.
    options = ["--results", tmp_path, "--only", "FPN*", "--set", "train.steps=200"]
    command = [sys.executable, "experiments/projector/run.py", "--scale", "smoke", "--workers", "1"]
    command += map(str, options)
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True,
        # As a terminal starts it: a suite that runs in the background may have it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while not list(tmp_path.glob("runs/projector/*/done.json")):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert "goes on from here" in process.communicate()[1]
    assert process.returncode == 130
    first = list(tmp_path.glob("runs/projector/*/done.json"))
    kept = {path: path.stat().st_mtime_ns for path in first}
    assert f"{len(first)} finished" in run("projector", *options)
    assert kept == {path: path.stat().st_mtime_ns for path in first}
    assert len(list(tmp_path.glob("runs/projector/*/done.json"))) == 3


def test_the_corpus_alone(tmp_path):
    """It is built where no GPU waits, and nothing is trained."""
    for _ in range(2):
        output = run("projector", "--corpus", "--results", tmp_path)
        assert output.startswith(f"what the runs of projector read is in {tmp_path / 'data'}: ")
    assert list((tmp_path / "data").iterdir()) and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["train-00000.bin", "validation-00000.bin", "tokenizer.json"])
def test_the_corpus_alone_is_verified_where_it_is_built_already(tmp_path, name):
    """What is damaged is told before any training, with its remedy, which can be followed."""
    corpus = ("--corpus", "--results", tmp_path)
    run("projector", *corpus)
    [file] = tmp_path.glob(f"data/*/{name}")
    content = file.read_bytes()
    damages = [content[:-7], content[:-7] + b"\x00" * 7, None]
    for damage in damages:
        file.unlink() if damage is None else file.write_bytes(damage)
        said = run("projector", *corpus, code=2)
        assert f"error: {file}" in said and f"delete the folder {file.parent} and run again" in said
    shutil.rmtree(file.parent)
    run("projector", *corpus)
    assert file.read_bytes() == content


@pytest.mark.parametrize("option", [("--scale", "smoke"), ("--seeds", "2"), ("--claim", "P1")])
def test_an_option_that_counts_once_is_not_given_twice(tmp_path, option):
    """Of two values one would be dropped in silence; those that are repeatable stay so."""
    told = f"argument {option[0]}: is given twice; make a call for each value"
    first = () if option[0] == "--scale" else option  # which ``run`` gives already
    assert told in run("projector", *first, *option, "--dry-run", "--results", tmp_path, code=2)
    publish = ("-m", "analysis.publish", "projector", "--results", tmp_path)
    assert told in call(*publish, *option, *option, code=2)
    if option[0] != "--seeds":
        assert told in call("-m", "analysis.claims", *option, *option, code=2)
    clean = ("-m", "lrm.sweep.runs", "clean", "--results", tmp_path, "--yes", "--experiment")
    assert "argument --experiment: is given twice" in call(*clean, "a", *clean[-1:], "b", code=2)
    assert not list(tmp_path.iterdir())


def test_options_of_which_one_would_be_dropped(tmp_path):
    plan = ("--dry-run", "--results", tmp_path)
    said = run("projector", *plan, "--corpus", code=2)
    assert "error: --dry-run builds nothing; leave out --corpus, or --dry-run" in said
    said = run("projector", *plan, "--cluster", "local", "--workers", 3, code=2)
    assert "error: --workers is for this machine" in said
    parts = ("--set", "execution.parallel={replicate: 2, shard: 1}")
    said = run("projector", *plan, "--cluster", "local", *parts, code=2)
    assert "error: --cluster trains each run by one process" in said
    assert not list(tmp_path.iterdir())
