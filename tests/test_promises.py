"""Promises of the command line and of what it stores, each of which was once broken."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import publish
from analysis.tables import checked
from analysis.tables.find import find
from lrm.cli import parse_seeds
from lrm.data import check
from lrm.data.files import named_files
from lrm.errors import UserError
from lrm.plan.config import DataConfig
from lrm.plan.experiment import load
from lrm.plan.search import Search
from lrm.store import files
from lrm.store.digests import MANIFEST, read_listed, sealed
from lrm.store.files import write_listed
from lrm.sweep import dry_run, speed
from lrm.sweep.scheduler import Sweep
from lrm.sweep.tuning import command as tuning
from lrm.sweep.tuning.trials import TrialLog

ROOT = Path(__file__).parents[1]
PROJECTOR = ROOT / "experiments" / "projector"


def copied(smoke_results, tmp_path, *names):
    """Results of some experiments, to be changed."""
    for name in names:
        shutil.copytree(smoke_results / "runs" / name, tmp_path / "runs" / name)
    return tmp_path


def test_a_copied_run_is_not_counted_twice(smoke_results, tmp_path):
    results = copied(smoke_results, tmp_path, "projector")
    assert (runs := find("projector", "smoke", "runs", results))
    path = runs[0][1]
    shutil.copytree(path, path.with_name("copy"))
    with pytest.raises(UserError, match=f"copy is a copy of run {path.name}; move it out of"):
        find("projector", "smoke", "runs", results)


def test_runs_without_vectors_are_published(smoke_results, tmp_path):
    results = copied(smoke_results, tmp_path, "gdn_transfer")
    only = ["SP width=32 lr=0.008 *"]
    folder = publish.publish("gdn_transfer", "smoke", [0], results, only)
    found = find("gdn_transfer", "smoke", "reference", results, only=only)
    assert len(found) == 1 and (folder / "vectors.parquet").is_file()


def test_a_folder_that_is_published_is_old_or_new(tmp_path, monkeypatch):
    """Nothing takes its place before all is on disk."""
    write_listed(tmp_path, {"a": b"1", "b": b"1"})
    wrote = []

    def full(path, data):
        wrote.append(path.name)
        if len(wrote) == 3:
            raise UserError("no room")
        return before(path, data)

    before = files._write_beside
    monkeypatch.setattr(files, "_write_beside", full)
    with pytest.raises(UserError, match="no room"):
        write_listed(tmp_path, {"a": b"2", "b": b"2"})
    assert wrote[-1] == MANIFEST
    assert read_listed(tmp_path / "a") == read_listed(tmp_path / "b") == b"1"
    assert sorted(os.listdir(tmp_path)) == [MANIFEST, "a", "b"]


def test_a_stray_record_of_a_run_does_not_hide_the_digests(tmp_path):
    write_listed(tmp_path, {"table": b"1"})
    (tmp_path / "done.json").write_text(json.dumps({"validation_loss": 0}))
    read = checked.checked(Path.read_bytes)
    assert read(tmp_path / "table") == b"1"
    (tmp_path / "table").write_bytes(b"2")
    with pytest.raises(UserError, match="table is damaged"):
        read(tmp_path / "table")


def test_published_trials_of_other_arms_are_not_dropped(tmp_path):
    record = {
        "stage": "NONE", "point": {}, "seed": 0, "steps": 6, "outcome": "finished", "loss": 3.0,
        "early_loss": 4.0, "tokens": 100, "flops": 2.0, "seconds": 0.1,
    }  # fmt: skip
    lines = [json.dumps(sealed({**record, "id": arm, "arm": arm})) for arm in "AB"]
    write_listed(tmp_path, {"log.jsonl": ("\n".join(lines) + "\n").encode()})
    log = TrialLog(tmp_path / "own.jsonl")
    assert log.lacks(tmp_path / "log.jsonl") == 2
    assert log.lacks(tmp_path / "log.jsonl", {"A"}) == 1


def test_arms_of_a_search_that_compute_the_same_each_get_their_trials(smoke_runs, tmp_path):
    run = dataclasses.replace(smoke_runs("projector")[0], corpus="any")
    twin = dataclasses.replace(run, arm="TWIN")
    jobs = [(each, tmp_path / each.arm) for each in (run, twin)]
    assert Sweep(jobs, tmp_path, 1).count == 1
    assert Sweep(jobs, tmp_path, 1, following=lambda run: []).count == 2


def test_a_search_names_what_there_is(tmp_path):
    experiment = load(ROOT / "experiments" / "tuning_search" / "config.yaml")

    def with_search(**said):
        search = {**experiment.header.search, **said}
        header = experiment.header.model_copy(update={"search": search})
        changed = dataclasses.replace(experiment, header=header)
        tuning._check_names(changed, changed.search("smoke"), "smoke")

    with_search()
    groups = experiment.header.search["groups"]
    with pytest.raises(UserError, match="search.groups.extra: no tensor of any arm is 'projectr'"):
        with_search(groups={**groups, "extra": ["projectr"]})
    with pytest.raises(UserError, match="first_stage_only names '.*SCALR', which is no arm"):
        with_search(first_stage_only=["*SCALR"])
    with pytest.raises(UserError, match="only_changes names 'MUN.*', which is no arm"):
        with_search(only_changes={"MUN*": {}})
    with pytest.raises(UserError, match="short_spread names 'MUN.*', which is no arm with a stage"):
        with_search(short_spread={"MUN*": 0.01})
    with pytest.raises(ValueError, match="trials: 2 are fewer than the 5 base LRs"):
        Search.model_validate({"groups": {}, "stages": {"NONE": {}}, "trials": 2})


@pytest.mark.parametrize("text", ["1,5-3", "100-107,207-200"])
def test_a_range_that_ends_before_it_begins(text):
    with pytest.raises(UserError, match="ends before it begins"):
        parse_seeds(text)


def test_a_path_that_no_source_reads(tmp_path):
    with pytest.raises(ValueError, match="source = stdlib reads no data.path"):
        DataConfig(source="stdlib", path="/nope")
    remote = DataConfig(source="huggingface", path="some/set", pattern="*.parquet")
    with pytest.raises(UserError, match="huggingface reads no data.pattern; drop it"):
        check(remote, 300)
    with pytest.raises(UserError, match="stdlib reads no data.packages, packages does; drop it"):
        check(DataConfig(packages=("numpy",)), 300)
    with pytest.raises(UserError, match="stdlib reads no data.synthetic_seed, synthetic does"):
        check(DataConfig(synthetic_seed=3), 300)
    alone = tmp_path / "alone.jsonl"
    alone.write_text('{"text": "one"}\n')
    with pytest.raises(UserError, match="data.pattern chooses among the files of a folder"):
        check(DataConfig(source="jsonl", path=str(alone), pattern="*.jsonl"), 300)
    with pytest.raises(UserError, match=r"data.pattern = '\.' cannot be used"):
        named_files(DataConfig(source="folder", path=str(tmp_path), pattern="."))


def test_estimates_know_the_size_of_the_model(smoke_results):
    experiment = load(PROJECTOR / "config.yaml")
    runs = experiment.runs("smoke", [0])
    ratio = speed.measured(smoke_results, runs)
    assert ratio is not None
    longer = experiment.runs("smoke", [7], ["train.steps=240"])
    assert speed.measured(smoke_results, longer) == pytest.approx(ratio)
    share = longer[0].estimate().seconds / runs[0].estimate().seconds
    own = [speed.seconds(run, ratio) for run in (longer[0], runs[0])]
    assert share > 2 and own[0] / own[1] == pytest.approx(share)
    # Noise is walked at the point of a trained run, and is no measure of it.
    assert {run.kind for run in runs} > {"train"}
    trained = [run for run in runs if run.trains]
    assert speed.measured(smoke_results, trained) == pytest.approx(ratio)
    deep = experiment.runs("smoke", [0], ["model.num_hidden_layers=40"])
    assert speed.measured(smoke_results, deep) is None
    # A run by one process is an eighth as fast as eight devices are planned to be.
    eight = experiment.runs("smoke", [0], ["cost.devices=8"])
    assert speed.measured(smoke_results, eight) == pytest.approx(ratio)


def test_estimates_know_the_batches_that_are_read_for_gradients():
    experiment = load(ROOT / "experiments" / "gradient_noise" / "config.yaml")
    with_them, without = (
        experiment.runs("tiny", [0], [f"probes.gradient_batches={number}"])[0] for number in (64, 0)
    )
    # 2200 steps, vectors every 500 of them, after 0 and as the constant stage and the run end.
    taken = len({0, 500, 1000, 1500, 1840, 2000, 2200})
    steps = with_them.settings.train.steps
    ratio = with_them.estimate().flops / without.estimate().flops
    assert ratio == pytest.approx(1 + taken * 64 / steps)
    assert with_them.estimate().tokens == without.estimate().tokens


def test_a_dry_run_says_how_often_text_is_read(tmp_path):
    experiment = load(ROOT / "experiments" / "sv_unified" / "config.yaml")
    runs = experiment.runs("paper", [0])
    assert "reads its text" not in dry_run.text(experiment, runs, tmp_path)
    [run] = experiment.runs("paper", [0], ["data.tokens=50000000000"], ["STANDARD_1B *"])
    assert "; reads its text 2.1 times" in dry_run.text(experiment, [run], tmp_path)


def test_a_dry_run_counts_runs_that_compute_the_same_once(smoke_runs, tmp_path, monkeypatch):
    experiment = load(ROOT / "experiments" / "projector" / "config.yaml")
    run = dataclasses.replace(smoke_runs("projector")[0], corpus="any")
    twin = dataclasses.replace(run, arm="TWIN")
    alone, both = (dry_run.text(experiment, runs, tmp_path).splitlines()
                   for runs in ([run], [run, twin]))  # fmt: skip
    assert f"TWIN S={run.grid['S']} seed=0  [{twin.id} missing, a copy of another]" in both
    time = alone[-1].split(", ")[1].partition(" of ")[0]
    assert both[-1].split(", ")[1].partition(" of ")[0] == time
    # Whichever of them has finished stands for the other, and is not counted twice.
    for done in ({"TWIN"}, {run.arm, "TWIN"}):
        monkeypatch.setattr(type(run), "is_finished", lambda own, _, done=done: own.arm in done)
        told = dry_run.text(experiment, [run, twin], tmp_path).splitlines()[-1]
        assert told.split(", ")[1].partition(" of ")[0] == time


def test_a_dry_run_says_what_is_left(smoke_results):
    experiment = load(PROJECTOR / "config.yaml")
    runs = experiment.runs("smoke", [0, 9])
    last = dry_run.text(experiment, runs, smoke_results).splitlines()[-1]
    assert "measured on finished runs" in last  # without a corpus no run is known to be finished
    assert " of one CPU core (" in last and "$" not in last  # which costs nothing
    # The price is that of the time that is told.
    runs = experiment.runs("smoke", [0, 9], ["cost.price_per_hour=3.6e+6"])
    [price] = re.findall(r"about \$([\d,]+)", dry_run.text(experiment, runs, smoke_results))
    ratio = speed.measured(smoke_results, runs)
    seconds = sum(speed.seconds(run, ratio) for run in runs)
    assert float(price.replace(",", "")) == pytest.approx(1e3 * seconds, abs=1)


def test_experiments_without_a_label_are_passed_over(tmp_path):
    folders = ["experiments/projector", "experiments/equilibrium"]
    command = [sys.executable, "-m", "lrm.sweep", *folders, "--scale", "smoke", "--dry-run",
               "--results", str(tmp_path)]  # fmt: skip

    def called(pattern):
        return subprocess.run([*command, "--only", pattern], cwd=ROOT, capture_output=True,
                              text=True)  # fmt: skip

    assert called("FPN*").returncode == 0
    found = called("NOTHING*")
    assert found.returncode == 2 and "selects no run" in found.stderr


def test_digests_of_nothing(tmp_path):
    command = [sys.executable, "-m", "analysis.publish", "--digests", "--results", str(tmp_path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 2 and "nothing is published in" in found.stderr


@pytest.mark.parametrize("given", [
    ["--digests", "--redraw"], ["--digests", "projector"], ["--redraw", "projector"],
    ["--redraw", "--seeds", "1"], ["--digests", "--only", "FPN*"], ["--redraw", "--claim", "P1"],
])  # fmt: skip
def test_digests_and_redraw_are_calls_of_their_own(monkeypatch, tmp_path, capsys, given):
    """Beside them nothing would be published, without a word."""
    monkeypatch.setattr(sys, "argv", ["publish", *given, "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        publish.main()
    assert stopped.value.code == 2 and not list(tmp_path.iterdir())
    assert "error: --digests and --redraw are calls of their own" in capsys.readouterr().err


def test_what_is_published_before_an_error_is_judged_and_drawn(monkeypatch, tmp_path):
    """One figure that cannot be drawn keeps no other from it."""
    done = []

    def publish_one(experiment, *_):
        if experiment == "b":
            raise UserError("b has no runs")
        done.append(experiment)
        return tmp_path

    def render(figure, *_):
        if figure == "wrong":
            raise UserError("two corpora")
        done.append(figure)

    monkeypatch.setattr(publish, "publish", publish_one)
    monkeypatch.setattr(publish, "judge_and_write", lambda *_: done.append("judged"))
    monkeypatch.setattr(publish, "figures", lambda: ["wrong", "right", "of another"])
    monkeypatch.setattr(publish, "read_by", lambda figure: ["c" if "of" in figure else "a"])
    monkeypatch.setattr(publish, "render", render)
    monkeypatch.setattr(sys, "argv", ["publish", "a", "b", "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        publish.main()
    assert stopped.value.code == 2 and done == ["a", "judged", "right"]
