"""``make watch``: run directories read while they are being written."""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lrm.errors import UserError
from lrm.store import rundir
from lrm.sweep import runs, watch
from lrm.sweep.watch import Watched, look, text

RUN = {"id": "a", "kind": "train", "scale": "tiny", "arm": "A", "grid": {}, "seed": 0}
RULES = [{"tensor": "mlp.up", "shape": [8, 4]}, {"tensor": "norm.final", "shape": [4]}]


def made(folder, name: str, step: int | None, changed: float = 1060.0, **files):
    """A run that began at 1000, of 100 steps, whose log ends at ``step``."""
    path = folder / "runs" / "sweep" / name
    path.mkdir(parents=True)
    run = RUN | {"experiment": "sweep", "label": f"A {name}", "rules": RULES}
    (path / "run.json").write_text(json.dumps(run | {"settings": {"train": {"steps": 100}}}))
    os.utime(path / "run.json", (1000, 1000))
    if step is not None:
        line = json.dumps({"step": step, "train_loss": 2.5})
        # The last line is being written.
        (path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n{{"step": {step + 1}, "tr')
        norms = {"mlp.up@0": 0.1, "mlp.up@1": 0.4, "norm.final": 9.0}
        probe = {"step": step, "values": {"weight_norm": norms}}
        (path / "probes.jsonl").write_text(json.dumps(probe) + "\n")
        os.utime(path / "metrics.jsonl", (changed, changed))
    for file, content in files.items():
        (path / f"{file}.json").write_text(content)
    return path


def test_progress_loss_norm_and_time_left(tmp_path):
    made(tmp_path, "stopped", 20, changed=1020.0)
    made(tmp_path, "running", 60)
    made(tmp_path, "begun", None)
    made(tmp_path, "over", 100, done='{"validation_loss": 2}')
    (tmp_path / "runs" / "sweep" / "empty").mkdir()
    runs, finished, unread = look(tmp_path, now=1150.0)
    assert finished == Counter(sweep=1) and unread == []
    # Those that move come first. A directory without a run.json has not begun.
    # One that was just begun may be compiled, or take its first slow steps.
    assert [run.label for run in runs] == ["A begun", "A running", "A stopped"]
    later, *_ = look(tmp_path, now=2000.0)
    assert [run.label for run in later if run.is_stopped and run.step == 0] == ["A begun"]
    runs, *_ = look(tmp_path, now=1061.0)
    running = next(run for run in runs if run.label == "A running")
    assert (running.step, running.steps, running.loss) == (60, 100, 2.5)
    assert abs(running.norm - 0.2) < 1e-12  # geometric, of the matrices alone
    assert abs(running.left - 40.0) < 1e-9  # 60 steps in 60 seconds
    shown = "\n".join(text(runs, finished))
    assert "60%" in shown and "2.500" in shown and "00:40" in shown
    assert "1 run has ended: 1 of sweep" in shown


def test_slow_steps_are_no_stop():
    """Losses come in lots: of steps of half a minute a new line takes ten."""
    run = Watched("e", "A", 100, 1000, 3.0, None, quiet=900.0, rate=1 / 24)
    assert not run.is_stopped and dataclasses.replace(run, quiet=2500.0).is_stopped
    assert dataclasses.replace(run, rate=10.0).is_stopped


def test_an_evaluation_has_probes_alone(tmp_path):
    path = made(tmp_path, "scored", 50)
    (path / "metrics.jsonl").unlink()
    os.utime(path / "probes.jsonl", (1050, 1050))
    [scored], *_ = look(tmp_path, now=1060.0)
    assert (scored.step, scored.loss, scored.quiet) == (50, None, 10.0)
    assert abs(scored.left - 50.0) < 1e-9


def test_a_run_that_failed_says_why_until_it_is_begun_again(tmp_path):
    path = made(tmp_path, "failed", 60)
    made(tmp_path, "quiet", 20, changed=1020.0)
    rundir.note_failure(path, "the loss is not finite at step 60")
    seen = look(tmp_path, now=1500.0)
    assert [run.label for run in seen.unfinished] == ["A quiet", "A failed"]
    assert "failed: the loss is not finite at step 60" in "\n".join(text(*seen))
    rundir.forget_failure(path)
    assert "failed" not in "\n".join(text(*look(tmp_path))).replace("A failed", "")


def test_runs_that_cannot_be_read_are_counted(tmp_path):
    made(tmp_path, "running", 60)
    for name, content in (("a", "{"), ("b", json.dumps(RUN | {"label": "A", "rules": 3}))):
        (made(tmp_path, name, 20) / "run.json").write_text(content)
    made(tmp_path, "c", 20, failed='{"error": 3, "log": null}')
    made(tmp_path, "d", 20, stopped='{"outcome": 3, "reason": "x", "step": 1}')
    seen = look(tmp_path)
    assert [run.label for run in seen.unfinished] == ["A running"] and len(seen.unread) == 4
    assert "4 runs cannot be read: " in text(*seen)[-1] and "is damaged" in text(*seen)[-1]


def listed(results, capsys, scale=None, experiment=None):
    runs._main(
        argparse.Namespace(results=results, action="list", experiment=experiment, scale=scale)
    )
    return capsys.readouterr().out


def test_one_bad_run_does_not_take_the_list_down(tmp_path, capsys):
    """It is listed with its error, and the others as ever."""
    made(tmp_path, "good", 60)
    made(tmp_path, "one", 20, failed='{"error": 3, "log": 5}')
    made(tmp_path, "two", 20, stopped="{")
    made(tmp_path, "three", 100, done="{")
    (made(tmp_path, "four", 20) / "run.json").write_text("[]")
    out = listed(tmp_path, capsys)
    assert "5 runs in" in out and "unfinished  sweep tiny  A good" in out
    for name, file in (("one", "failed"), ("two", "stopped"), ("three", "done"), ("four", "run")):
        label = "(cannot be read)" if name == "four" else f"A {name}"
        assert f"  {label}  {name}\n" in out
        assert f"{tmp_path / 'runs' / 'sweep' / name / file}.json is damaged; remove " in out


def test_a_run_that_can_go_on_is_not_to_be_removed(tmp_path, capsys):
    """From its checkpoint it writes a damaged run.json anew; without one nothing is lost."""
    path = made(tmp_path, "begun", 20)
    (path / "run.json").write_text("{")
    removed = f"{path / 'run.json'} is damaged; remove {path} and run again"
    assert removed in listed(tmp_path, capsys) and look(tmp_path).unread == [removed]
    (path / "checkpoint.pt").touch()
    told = f"{path / 'run.json'} is damaged; call the same run.py again, which goes on from the "
    out, [line] = listed(tmp_path, capsys), look(tmp_path).unread
    assert told in out and "remove" not in out and line.startswith(told) and "remove" not in line


def test_a_run_whose_files_nobody_may_see_is_listed(tmp_path, capsys, monkeypatch):
    made(tmp_path, "hidden", 60)
    made(tmp_path, "seen", 60)
    exists = Path.exists

    def refuse(path):
        if path.parent.name == "hidden":
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", refuse)
    out = listed(tmp_path, capsys)
    assert "damaged     sweep -  (cannot be read)  hidden\n" in out
    assert "hidden/run.json: Permission denied; get access to it" in out and "A seen" in out
    assert len(look(tmp_path).unread) == 1
    # It may have finished: nobody is to train over it, and its reader is told.
    assert rundir.is_complete(tmp_path / "runs" / "sweep" / "hidden")


def test_an_experiment_whose_folder_nobody_may_list(tmp_path, capsys, monkeypatch):
    made(tmp_path, "hidden", 60)
    lists = Path.iterdir

    def refuse(path):
        if path.name == "sweep":
            raise PermissionError(13, "Permission denied", str(path))
        return lists(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    line = f"{tmp_path / 'runs' / 'sweep'} cannot be read (Permission denied); make it readable"
    assert look(tmp_path).unread == [f"{line} and run again"]
    runs._main(argparse.Namespace(results=tmp_path, action="list", experiment=None, scale=None))
    assert line in capsys.readouterr().err


def test_scales_and_folders_that_there_are_not(tmp_path, capsys):
    made(tmp_path, "running", 60)
    for given, message in (
        ({"results": tmp_path, "scale": "smok"}, "unknown scale 'smok'; choose one of smoke, "),
        ({"results": tmp_path / "absent"}, "there is no folder .*absent; --results names the one"),
    ):
        with pytest.raises(UserError, match=message):
            listed(capsys=capsys, **given)
    assert f"no runs at mini in {tmp_path}/runs; there are tiny\n" == listed(
        tmp_path, capsys, "mini"
    )
    assert "no runs of other in" in listed(tmp_path, capsys, experiment="other")
    # Also without --results.
    command = [sys.executable, "-m", "lrm.sweep.runs", "list"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("error: there is no folder results; ")
    (tmp_path / "empty").mkdir()
    assert listed(tmp_path / "empty", capsys) == f"no runs in {tmp_path}/empty/runs\n"


def test_a_trial_that_was_given_up_has_ended(tmp_path, capsys):
    path = made(tmp_path, "worse", 20)
    rundir.give_up(path, "stopped", "4.2 above 4.1", 20)
    assert look(tmp_path) == ([], Counter(sweep=1), [])
    runs._main(argparse.Namespace(results=tmp_path, action="list", experiment=None, scale=None))
    first, told, _ = capsys.readouterr().out.splitlines()
    assert first.endswith("stopped     sweep tiny  A worse  worse") and told.endswith("above 4.1")


def test_a_line_that_is_longer_than_what_is_read_first(tmp_path, monkeypatch):
    made(tmp_path, "running", 60)
    monkeypatch.setattr(watch, "_TAIL", 8)
    [found], *_ = look(tmp_path, now=1061.0)
    assert found.step == 60 and abs(found.norm - 0.2) < 1e-12


def test_a_run_that_stands_still_says_so(tmp_path):
    made(tmp_path, "stopped", 20, changed=1020.0)
    assert "nothing new for 05:00" in "\n".join(text(*look(tmp_path, now=1320.0)))


def test_the_command_shows_once_and_names_a_folder_without_runs(tmp_path):
    command = [sys.executable, "-m", "lrm.sweep.watch", "--results"]
    made(tmp_path, "running", 60)
    done = subprocess.run([*command, tmp_path], capture_output=True, text=True, check=True)
    assert "sweep A running" in done.stdout
    (tmp_path / "other").mkdir()
    done = subprocess.run([*command, tmp_path / "other"], capture_output=True, text=True)
    assert done.returncode == 2 and "--results names their folder" in done.stderr


def test_the_time_left_of_a_resumed_run_counts_what_it_has_done_since(tmp_path):
    made(tmp_path, "running", 60)
    path = tmp_path / "runs" / "sweep" / "running" / "run.json"
    run = json.loads(path.read_text()) | {"resumed": [{"step": 10}, {"step": 30}]}
    path.write_text(json.dumps(run))
    os.utime(path, (1000, 1000))
    [running], *_ = look(tmp_path, now=1061.0)
    assert abs(running.left - 80.0) < 1e-9  # 30 steps in 60 seconds, 40 to go
