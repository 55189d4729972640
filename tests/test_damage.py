"""Bits flipped, files cut short and files removed, in every kind of file that is read again.

No damage changes a number silently. What is told names the file, and its remedy, followed to the
letter, brings everything back and removes nothing that is published.
"""

import builtins
import errno
import io
import json
import lzma
import os
import random
import re
import shutil
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from analysis.claims import bench
from analysis.claims.stored import claims_file, read_ledger
from analysis.explore import checkpoint_norms
from analysis.figures import __main__ as figures
from analysis.figures import multiplier_lr
from analysis.report import content
from analysis.tables import trials as logs
from analysis.tables.results import read_table
from analysis.tables.run_list import RUN_LIST, read_run_list
from lrm import data
from lrm.data import build
from lrm.data.build import prepare, verify
from lrm.errors import Busy, UserError
from lrm.plan.config import DataConfig
from lrm.store import rundir
from lrm.store.cache import checked
from lrm.store.digests import MANIFEST, check_file, running, sealed
from lrm.store.files import as_json, read_json, write_listed, write_sealed
from lrm.store.flock import take
from lrm.store.rundir import (
    is_complete,
    open_run,
    read_description,
    read_file,
    read_outcome,
)
from lrm.sweep import process, runs
from lrm.sweep.tuning.trials import TrialLog

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "results" / "reference"
REMEDY = re.compile(
    r"(?P<path>\S+?) is damaged; remove it and this run starts again"
    r"|remove (?P<folder>/\S+?),? and (?:run|this run|the trial)"
    r"|delete the folder (?P<corpus>/\S+) and run again"
    r"|restore (?P<published>/\S+) from the repository"
)


def damages(draw, content):
    """Contents with a bit flipped or cut short, and None for a file that is gone."""
    for _ in range(4):
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        yield bytes(flipped)
    yield content[: draw.randrange(len(content))]
    yield content[:-1]
    yield b""
    yield None


def follow(remedy, folder, pristine):
    """Do what a message says, to the letter."""
    found = REMEDY.search(remedy)
    assert found, remedy
    if found["published"]:
        path = Path(found["published"])
        shutil.rmtree(path)
        shutil.copytree(pristine / path.relative_to(folder), path)
        return
    path = Path(found["path"] or found["folder"] or found["corpus"])
    assert path.is_relative_to(folder) and "reference" not in path.parts
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def assert_guarded(folder, files, read, again, seed=0, repairs_itself=False):
    """Damage each of ``files`` in ``folder`` in turn; ``read`` gives what it says.

    ``again`` is the command that is to be run again. With ``repairs_itself`` it puts right what is
    damaged, and nothing needs to be told.
    """
    draw = random.Random(seed)
    pristine = folder.with_name(folder.name + " pristine")
    shutil.copytree(folder, pristine)
    good = read()
    told = 0
    for name in files:
        for number, damage in enumerate(damages(draw, (pristine / name).read_bytes())):
            what = (str(name), number)
            (folder / name).unlink()
            if damage is not None:
                (folder / name).write_bytes(damage)
            try:
                if repairs_itself:
                    again()
                assert read() == good, what
            except UserError as error:
                message = str(error)
                assert "\n" not in message and str(folder) in message, what
                follow(message, folder, pristine)
                again()
                assert read() == good, (what, message)
                told += 1
            shutil.rmtree(folder)
            shutil.copytree(pristine, folder)
    return told


# A run of three logs and some weights, whose numbers depend on nothing else.
DESCRIPTION = {
    "id": "0123456789abcdef", "kind": "train", "scale": "smoke", "arm": "A", "grid": {"S": 2.0},
    "seed": 0, "label": "A S=2 seed=0", "settings": {"train": {"steps": 8}},
    "execution": {"threads": 1}, "environment": {"commit": "abc"},
}  # fmt: skip
STEPS, CHECKPOINT = 8, 4


def train(path, stop=False):
    """Carry out that run; ``stop`` leaves it after its checkpoint."""
    torch = pytest.importorskip("torch")
    with open_run(path) as directory:
        if directory.complete:
            return
        state = directory.start(DESCRIPTION)
        value = torch.ones(3) if state is None else state["value"]
        for step in range(0 if state is None else state["step"], STEPS):
            value = value * 1.5
            norms = {"weight_norm": {"projector": value.norm().item()}}
            directory.append("metrics.jsonl", {"step": step, "train_loss": 1 / (step + 1)})
            directory.append("probes.jsonl", {"step": step, "values": norms})
            vector = {"row_norms": {"projector": value.tolist()}}
            directory.append("vectors.jsonl", {"step": step, "values": vector})
            if step + 1 == CHECKPOINT:
                directory.save_checkpoint({"step": step + 1, "value": value})
                if stop:
                    return
        directory.finish({"validation_loss": 1.25, "seconds": 1.0}, {"projector": value})


def finished(path):
    """All that is read of a finished run."""
    assert is_complete(path)
    tables = [read_table(path / f"{name}.parquet").to_json() for name in ("scalars", "vectors")]
    return read_description(path), read_outcome(path), tables, read_file(path, "weights.pt")


def test_a_finished_run(tmp_path):
    """A run without its done.json is not finished, and is trained again."""
    folder = tmp_path / "runs"
    train(folder / "a")
    names = [path.relative_to(folder) for path in sorted((folder / "a").glob("[a-z]*"))]
    assert [path.name for path in names] == [
        "done.json", "run.json", "scalars.parquet", "vectors.parquet", "weights.pt",
    ]  # fmt: skip

    def read():
        if not is_complete(folder / "a"):
            train(folder / "a")
        found = finished(folder / "a")
        found[0].pop("resumed", None)
        return found

    assert assert_guarded(folder, names, read, lambda: train(folder / "a")) >= 35


@pytest.fixture
def denied(monkeypatch):
    """A function after which a file of this name cannot be opened; permissions do not stop root."""

    def deny(name, number):
        for place, opens in ((Path, Path.open), (builtins, open)):

            def refuse(path, *given, opens=opens, **named):
                if Path(path).name == name:
                    raise OSError(number, os.strerror(number), str(path))
                return opens(path, *given, **named)

            monkeypatch.setattr(place, "open", refuse)

    yield deny
    monkeypatch.undo()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE])
def test_what_cannot_be_read_is_not_to_be_removed(tmp_path, denied, monkeypatch, number):
    """It may be whole: of a run, a checkpoint, a log, and each file of a corpus."""
    train(tmp_path / "a")
    train(tmp_path / "begun", stop=True)
    corpus = prepare(CONFIG, 300, tmp_path / "data")
    reads = {
        "done.json": lambda: read_outcome(tmp_path / "a"),
        "run.json": lambda: read_description(tmp_path / "a"),
        "weights.pt": lambda: read_file(tmp_path / "a", "weights.pt"),
        "checkpoint.pt": lambda: train(tmp_path / "begun"),
        "metrics.jsonl": lambda: train(tmp_path / "begun"),
        "meta.json": lambda: prepare(CONFIG, 300, tmp_path / "data"),
        "tokenizer.json": lambda: prepare(CONFIG, 300, tmp_path / "data"),
        corpus.meta["splits"]["train"]["shards"][0]: lambda: prepare(
            CONFIG, 300, tmp_path / "data"
        ),
        MANIFEST: lambda: check_file(tmp_path / MANIFEST, "", "remove it"),
    }
    for name, read in reads.items():
        denied(name, number)
        with pytest.raises(UserError) as told:
            read()
        monkeypatch.undo()
        line = str(told.value)
        assert line.endswith(f"{name} cannot be read ({os.strerror(number)}); make it readable and "
                             "run again"), line  # fmt: skip
    # What is gone can be made anew.
    (tmp_path / "a" / "done.json").unlink()
    with pytest.raises(UserError, match="cannot be read .*; remove .* and run again"):
        read_outcome(tmp_path / "a")


def test_what_the_system_refuses_ends_no_worker_in_a_traceback(tmp_path, monkeypatch):
    """Bad input of a run is a line; any other error of a library is a crash."""
    told = []
    errors = [
        *(PermissionError(errno.EACCES, "Permission denied", "a file"), Busy("later")),
        *(UserError("wrong"), OSError(errno.EIO, "Input/output error", "b"), OSError("odd")),
    ]

    def execute(number):
        raise errors[number]

    orders = [process.encode((number,)) for number in range(len(errors))]
    monkeypatch.setattr(process, "_guard", lambda parent: None)
    monkeypatch.setattr(process, "_connect", lambda: (orders, lambda **report: told.append(report)))
    monkeypatch.setattr(sys, "argv", ["process", "stand_in"])
    stand_in = types.SimpleNamespace(start=lambda tell: execute)
    monkeypatch.setitem(sys.modules, "stand_in", stand_in)
    process.main()
    assert told[:4] == [
        {"error": "a file: Permission denied; get access to it, or name another file or folder"},
        {"busy": "later"},
        {"error": "wrong"},
        {"error": "b: Input/output error; name another file or folder"},
    ]
    assert list(told[4]) == ["crash"]


@pytest.mark.parametrize("name", ["scalars.parquet", "vectors.parquet", "weights.pt"])
def test_a_finished_run_that_lacks_a_file_is_damaged(tmp_path, name):
    """Lists and plans tell it, though they read the records alone; of earlier versions nothing."""
    path = tmp_path / "runs" / "some" / "a"
    train(path)
    assert rundir.damage(path) is None and runs._read(path).state == "finished"
    (path / name).unlink()
    told = f"{path / name} cannot be read (No such file or directory); remove {path} and run again"
    assert str(rundir.damage(path)) == told
    assert runs._read(path).state == "damaged" and runs._read(path).told == (told,)
    (path / "done.json").write_bytes(as_json(read_outcome(path)))
    assert rundir.damage(path) is None


def test_a_run_of_an_earlier_version_is_read_as_it_lies(tmp_path):
    train(tmp_path)
    record = read_outcome(tmp_path)
    (tmp_path / "done.json").write_bytes(as_json(record))
    assert finished(tmp_path)[1] == record
    for without in ("files", "digest"):
        half = sealed({**record, "files": {}})
        half.pop(without)
        (tmp_path / "done.json").write_bytes(as_json(half))
        with pytest.raises(UserError, match="done.json is damaged"):
            read_outcome(tmp_path)


def test_an_unfinished_run(tmp_path):
    """It ends as if nothing had happened, or says what to remove; ``run.json`` is made anew."""
    folder = tmp_path / "runs"
    train(tmp_path / "whole")
    whole = finished(tmp_path / "whole")
    train(folder / "a", stop=True)
    names = [path.relative_to(folder) for path in sorted((folder / "a").glob("[a-z]*"))]
    assert {path.name for path in names} == {
        "checkpoint.pt", "run.json", "metrics.jsonl", "probes.jsonl", "vectors.jsonl",
    }  # fmt: skip

    def read():
        if not is_complete(folder / "a"):
            return whole[1:]
        found = finished(folder / "a")
        assert {**found[0], "resumed": None} == {**whole[0], "resumed": None}
        return found[1:]

    def again():
        train(folder / "a")

    assert assert_guarded(folder, names, read, again, repairs_itself=True) >= 20


def test_logs_of_an_unfinished_run_beyond_its_checkpoint(tmp_path):
    """What was written after the checkpoint is cut away, whatever it holds."""
    train(tmp_path / "whole")
    train(tmp_path / "a", stop=True)
    with (tmp_path / "a" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "train_loss": 77}\n{"ste\xff')
    train(tmp_path / "a")
    assert finished(tmp_path / "a")[1:] == finished(tmp_path / "whole")[1:]


def test_an_edited_grid_is_not_believed(tmp_path):
    """The plan says what a run is; the checkpoint how it was begun."""
    train(tmp_path, stop=True)
    edited = DESCRIPTION | {"grid": {"S": 8.0}, "execution": {"threads": 2}}
    (tmp_path / "run.json").write_bytes(as_json(edited))
    train(tmp_path)
    said = read_description(tmp_path)
    assert said["grid"] == {"S": 2.0} and said["execution"] == {"threads": 1}


def test_another_run_under_a_runs_name(tmp_path, monkeypatch):
    train(tmp_path / "a", stop=True)
    monkeypatch.setitem(DESCRIPTION, "id", "f" * 16)
    with pytest.raises(UserError, match="is that of another run, 0123456789abcdef; remove"):
        train(tmp_path / "a")


def test_each_environment_is_recorded_and_a_change_is_told(tmp_path):
    train(tmp_path, stop=True)
    told = []
    with open_run(tmp_path) as directory:
        other = DESCRIPTION | {"environment": {"commit": "xyz"}}
        state = directory.start(other, told.append)
        directory.save_checkpoint(state)
    assert told == [
        "A S=2 seed=0: goes on after step 4 with another commit (abc, now xyz); its bits may "
        "differ from those of an uninterrupted run, and run.json records both"
    ]
    with open_run(tmp_path) as directory:
        directory.start(other, told.append)
    assert len(told) == 1
    said = read_description(tmp_path)
    assert said["environment"] == {"commit": "abc"}
    assert said["resumed"] == [{"step": 4, "commit": "xyz"}] * 2


def test_a_checkpoint_of_an_earlier_version(tmp_path):
    """It knows the lengths of the logs alone, and leaves the rest to ``run.json``."""
    train(tmp_path / "whole")
    train(tmp_path / "a", stop=True)
    with open_run(tmp_path / "a") as directory:
        state = directory._read_checkpoint()
        lengths = {name: mark["length"] for name, mark in state.pop("logs").items()}
        state.pop("begun")
        real = directory.save_checkpoint
        directory._logs = {}
        real({**state, "log_lengths": lengths})
        state = directory._read_checkpoint()
        assert state.pop("logs") == {} and state.pop("begun")
        payload = io.BytesIO()
        torch = pytest.importorskip("torch")
        torch.save(state, payload)
        data = payload.getvalue()
        directory.checkpoint.write_bytes(b"LRMCKPT1" + running(data).digest() + data)
    train(tmp_path / "a")
    assert finished(tmp_path / "a")[1:] == finished(tmp_path / "whole")[1:]


def test_a_log_that_changes_while_a_run_trains(tmp_path):
    with open_run(tmp_path) as directory:
        directory.start(DESCRIPTION)
        directory.append("metrics.jsonl", {"step": 0, "train_loss": 1.0})
        directory.flush()
        log = tmp_path / "metrics.jsonl"
        log.write_bytes(log.read_bytes().replace(b"1.0", b"7.0"))
        with pytest.raises(UserError, match="metrics.jsonl has changed while it was written"):
            directory.finish({"validation_loss": 1.0}, None)
    assert not is_complete(tmp_path)


# The published records of `make bench`.
BENCHMARKS = ("cpu", "cpu-2", "delta", "overhead", "overhead-long", "overhead-parts",
              "recipes", "scale-vectors")  # fmt: skip


def test_what_is_published(tmp_path):
    """Tables, verdicts and the benchmark; also their manifests."""
    folder = tmp_path / "results"
    for name in ("tiny/linear_layer", "bench"):
        shutil.copytree(PUBLISHED / name, folder / "reference" / name)
    scale = folder / "reference" / "tiny"
    claims = {"claims.json": (PUBLISHED / "tiny" / "claims.json").read_bytes()}
    write_listed(scale, claims)

    def read():
        where = scale / "linear_layer"
        tables = [read_table(where / f"{name}.parquet") for name in ("scalars", "vectors")]
        sums = [len(frame.to_json()) if len(frame) < 10 else frame["run"].nunique()
                for frame in tables]  # fmt: skip
        values = [np.sum(np.concatenate(list(map(np.atleast_1d, frame["value"]))))
                  for frame in tables]  # fmt: skip
        ledger = read_ledger(claims_file("tiny", "reference", folder))
        measured = [bench.record("reference", folder, name) for name in BENCHMARKS]
        return sums, values, read_run_list(where / RUN_LIST), ledger, measured

    names = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [name for name in names if name.suffix not in (".md",)]
    assert {name.name for name in names} == {
        "scalars.parquet", "vectors.parquet", RUN_LIST, "claims.json", MANIFEST,
        *(f"{name}.json" for name in BENCHMARKS),
    }  # fmt: skip
    assert assert_guarded(folder, names, read, lambda: None) >= 8 * len(names) - 3
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert all(
        content == (PUBLISHED / path.relative_to(folder / "reference")).read_bytes()
        for path, content in before.items()
        if path.name != MANIFEST or path.parent != scale
    )


def test_published_folders_are_listed_as_they_lie():
    """Every file that is read again stands in the manifest of its folder, with its digest."""
    from analysis.publish import _is_read_again
    from lrm.store.digests import manifest_of

    folders = {path.parent for path in PUBLISHED.rglob("*") if _is_read_again(path)}
    assert len(folders) > 15
    for folder in folders:
        names = [path.name for path in folder.iterdir() if _is_read_again(path)]
        assert (folder / MANIFEST).read_bytes() == manifest_of(folder, names), folder


def test_a_published_run_list_that_is_gone_is_told(tmp_path):
    from analysis.tables.find import find

    folder = tmp_path / "reference" / "tiny" / "linear_layer"
    shutil.copytree(PUBLISHED / "tiny" / "linear_layer", folder)
    (folder / RUN_LIST).unlink()
    with pytest.raises(UserError, match="cannot be read .* restore .*linear_layer from the rep"):
        find("linear_layer", "tiny", "reference", tmp_path)


RECORD = {"id": "a", "arm": "A", "stage": "LR", "point": {}, "seed": 0, "steps": 9,
          "outcome": "finished", "loss": 5.25, "early_loss": 6.5, "tokens": 100, "flops": 1e9,
          "seconds": 1.0}  # fmt: skip


def test_the_log_of_a_search(tmp_path):
    """A damaged line is named by its number; without it the trial runs again."""
    path = tmp_path / "search.jsonl"
    log = TrialLog(path)
    for name in "abc":
        log.add({**RECORD, "id": name})
    content, good = path.read_bytes(), TrialLog(path).records
    assert [record["loss"] for record in good.values()] == [5.25] * 3
    draw, told = random.Random(0), 0
    for damage in [each for _ in range(8) for each in damages(draw, content)]:
        if damage is None:
            continue
        path.write_bytes(damage)
        try:
            kept = TrialLog(path).records
        except UserError as error:
            number = int(re.search(r"line (\d+)", str(error))[1])
            assert "remove that line, and the trial runs again" in str(error)
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(lines[: number - 1] + lines[number:]))
            kept = TrialLog(path).records
            told += 1
        assert all(good[name] == record for name, record in kept.items())
        whole = set(path.read_bytes().splitlines()) & set(content.splitlines())
        assert {name for name in good if any(f'"{name}"'.encode() in line for line in whole)} <= (
            kept.keys()
        )
    assert told >= 30
    # Those of earlier versions have no digest.
    path.write_text(json.dumps({**RECORD, "loss": 4.0}) + "\n")
    assert TrialLog(path).records["a"]["loss"] == 4.0


def test_a_log_that_another_search_writes_is_not_cut(tmp_path):
    """What has no end yet is waited for: else the trial would be lost, and the line after it."""
    path = tmp_path / "search.jsonl"
    TrialLog(path).add({**RECORD, "id": "a"})
    line = path.read_bytes().replace(b'"id": "a"', b'"id": "b"')
    line = line.replace(b'"digest": "', b'"old": "')
    with path.open("ab") as other, ThreadPoolExecutor(1) as threads:
        assert take(other)
        other.write(line[:40])
        other.flush()
        opened = threads.submit(TrialLog, path)
        with pytest.raises(TimeoutError):
            opened.result(timeout=0.3)
        other.write(line[40:])
        other.close()
        assert opened.result()
    assert list(TrialLog(path).records) == ["a", "b"]


def test_half_a_line_of_another_search_is_cut_before_the_next(tmp_path):
    path = tmp_path / "search.jsonl"
    log = TrialLog(path)
    log.add({**RECORD, "id": "a"})
    with path.open("ab") as other:
        other.write(path.read_bytes()[:40])  # its process has ended
    log.add({**RECORD, "id": "b"})
    assert list(TrialLog(path).records) == ["a", "b"]
    path.chmod(0o400)
    assert list(TrialLog(path).records) == ["a", "b"]


def test_the_published_log_of_a_search(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "RESULTS", tmp_path / "suite")
    folder = tmp_path / "reference" / "smoke"
    folder.mkdir(parents=True)
    lines = [json.dumps(sealed({**RECORD, "id": name})) for name in "ab"]
    write_listed(folder, {"tuning_search.jsonl": ("\n".join(lines) + "\n").encode()})

    def read():
        found = logs.read_trials("tuning_ablation", "smoke", "reference", tmp_path)
        return found.to_json()

    files = [Path("smoke/tuning_search.jsonl"), Path("smoke") / MANIFEST]
    assert assert_guarded(tmp_path / "reference", files, read, lambda: None) >= 15


def test_records_of_a_users_own(tmp_path):
    """A benchmark, and the end of a trial that was stopped."""
    record = {"rows": [{"ratios": [1.0, 1.5]}]}

    def write():
        (tmp_path / "own" / "bench").mkdir(parents=True, exist_ok=True)
        write_sealed(tmp_path / "own" / "bench" / "a.json", record)

    def read():
        found = bench.record("runs", tmp_path / "own", "a")
        if found is None:  # there is no record
            write()
        return bench.record("runs", tmp_path / "own", "a")

    write()
    assert assert_guarded(tmp_path / "own", [Path("bench/a.json")], read, write) >= 5


CONFIG = DataConfig(source="synthetic", synthetic_documents=60, validation_fraction=0.2)


def test_a_corpus(tmp_path):
    folder = tmp_path / "data"
    corpus = prepare(CONFIG, 300, folder)

    def read():
        found = prepare(CONFIG, 300, folder)
        verify(found)
        tokens = [getattr(found, split)[:].tolist() for split in build.SPLITS]
        return found.hash, tokens, (found.path / "tokenizer.json").read_bytes()

    names = [path.relative_to(folder) for path in sorted(corpus.path.iterdir())]
    assert len(names) == 4
    told = assert_guarded(folder, names, read, lambda: prepare(CONFIG, 300, folder))
    assert told >= 27


def test_shards_that_change_places(tmp_path):
    """Each is whole, and neither is the one that was built."""
    corpus = prepare(CONFIG, 300, tmp_path)
    validation = (corpus.path / "validation-00000.bin").read_bytes()
    (corpus.path / "train-00000.bin").unlink()
    (corpus.path / "train-00000.bin").write_bytes(validation)
    with pytest.raises(UserError, match="train-00000.bin: it is not the file that was built"):
        prepare(CONFIG, 300, tmp_path)


def test_names_of_shards_stay_in_their_folder(tmp_path):
    corpus = prepare(CONFIG, 300, tmp_path)
    meta = read_json(corpus.path / "meta.json")
    for name in ("../x.bin", "/etc/passwd", "", "train-0.bin", 3):
        meta["splits"]["train"]["shards"] = [name]
        write_sealed(corpus.path / "meta.json", meta)
        with pytest.raises(UserError, match="meta.json: it is no description of a corpus"):
            prepare(CONFIG, 300, tmp_path)


def test_a_corpus_of_an_earlier_version_is_read_as_it_lies(tmp_path):
    corpus = prepare(CONFIG, 300, tmp_path)
    meta = read_json(corpus.path / "meta.json")
    old = {key: value for key, value in meta.items() if key not in ("digests", "digest")}
    (corpus.path / "meta.json").write_bytes(as_json(old))
    assert prepare(CONFIG, 300, tmp_path).hash == corpus.hash
    (corpus.path / "meta.json").write_bytes(as_json({**old, "digests": meta["digests"]}))
    with pytest.raises(UserError, match="meta.json: it is no description of a corpus"):
        prepare(CONFIG, 300, tmp_path)


def test_a_partial_build(tmp_path, monkeypatch):
    """Whatever is damaged in it, the corpus comes out the same; a damage is told, not an error."""
    monkeypatch.setattr(build, "_SHARD", 2000)
    monkeypatch.setattr(build, "_ENCODE_BATCH", 5000)
    whole = prepare(CONFIG, 300, tmp_path / "whole")
    folder = tmp_path / "data"

    def stopped():
        real = build._Build._save

        def save(self):
            real(self)
            if self._counts["train"]["shards"]:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(build._Build, "_save", save)
            prepare(CONFIG, 300, folder)

    stopped()
    (partial,) = folder.glob(".*.partial")
    names = [path.relative_to(folder) for path in sorted(partial.iterdir())]
    assert {path.name for path in names} >= {
        "documents.bin", "state.json", "tokenizer.json", "train-00000.bin",
    }  # fmt: skip

    def read():
        found = prepare(CONFIG, 300, folder)
        return found.hash, (found.path / "tokenizer.json").read_bytes(), found.train[:].tolist()

    expected = whole.hash, (whole.path / "tokenizer.json").read_bytes(), whole.train[:].tolist()
    pristine = tmp_path / "pristine"
    shutil.copytree(folder, pristine)
    draw = random.Random(0)
    for name in names:
        for damage in damages(draw, (pristine / name).read_bytes()):
            (folder / name).unlink()
            if damage is not None:
                (folder / name).write_bytes(damage)
            assert read() == expected, name
            shutil.rmtree(folder)
            shutil.copytree(pristine, folder)


def test_a_figure(tmp_path, monkeypatch):
    """Whatever of it is damaged, it is drawn anew; also where a table was mended."""
    folder = tmp_path / "results"
    shutil.copytree(PUBLISHED / "tiny" / "linear_layer", folder / "reference/tiny/linear_layer")
    target = folder / "figures"
    drawn = []

    def draw_it(numbers, context):
        drawn.append(1)
        figure, axis = plt.subplots(figsize=(1, 1))
        axis.plot(numbers["x"])
        return figure

    monkeypatch.setattr(multiplier_lr, "EXPERIMENTS", ("linear_layer",))
    monkeypatch.setattr(multiplier_lr, "numbers", lambda tables: pd.DataFrame({"x": [1.0, 2.5]}))
    monkeypatch.setattr(multiplier_lr, "draw", draw_it)

    def render():
        figures.render("multiplier_lr", "tiny", "reference", folder, target)
        plt.close("all")

    def read():
        return {path.name: path.read_bytes() for path in target.glob("m*")}

    render(), render()
    assert len(drawn) == 1
    good, names = read(), sorted(path.name for path in target.iterdir())
    assert names == [
        ".multiplier_lr.json",
        *(f"multiplier_lr.{k}" for k in ("csv", "pdf", "png", "svg")),
    ]
    draw = random.Random(0)
    for name in names:
        content = (target / name).read_bytes()
        for damage in damages(draw, content):
            (target / name).unlink()
            if damage is not None:
                (target / name).write_bytes(damage)
            render()
            assert read() == good, name
            (target / name).write_bytes(content)
    # Another table under the ids of the same runs.
    count = len(drawn)
    source = folder / "reference" / "tiny" / "linear_layer"
    runs = lzma.compress(json.dumps(read_run_list(source / RUN_LIST)).encode(), preset=1)
    tables = {name: (source / name).read_bytes() for name in ("scalars.parquet", "vectors.parquet")}
    write_listed(source, tables | {RUN_LIST: runs})
    render(), render()
    assert len(drawn) == count + 1


def test_published_pictures(tmp_path):
    """The report copies them as they were drawn, or tells of the damage."""
    folder = tmp_path / "results" / "reference" / "tiny" / "figures"
    folder.mkdir(parents=True)
    names = [".table1.json", *(f"table1.{kind}" for kind in content.FORMATS)]
    for name in names:
        shutil.copy(PUBLISHED / "tiny" / "figures" / name, folder)

    def read():
        return content._figure("table1", {}, "tiny", "reference", tmp_path / "results")

    files = [Path("reference/tiny/figures") / name for name in names]
    # Of 24. A flip in what the stamp says of the drawing, which nobody compares, does no damage.
    assert assert_guarded(tmp_path / "results", files, read, lambda: None) >= 20
    for name in names:
        (folder / name).unlink()
    assert read() is None


def test_files_that_another_program_keeps(tmp_path):
    """Those of compiled code: what is damaged is named and removed, and made anew."""
    made = {"ab/kernel.so": b"machine code", "graphs/x/y": b"a graph", "ab/kernel.cpp": b"text"}

    def use():
        with checked(tmp_path) as damaged:
            for name, text in made.items():
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                if not (tmp_path / name).exists():
                    (tmp_path / name).write_bytes(text)
        assert all((tmp_path / name).read_bytes() == text for name, text in made.items())
        return damaged

    (tmp_path / "ab" / "tmp.pid_7").mkdir(parents=True)  # Triton writes there first
    (tmp_path / "ab" / "tmp.pid_7" / "part").touch()
    assert use() == use() == [] and "tmp" not in (tmp_path / "digests.json").read_text()
    draw, listed = random.Random(0), tmp_path / "digests.json"
    for name in made:
        for damage in damages(draw, made[name]):
            (tmp_path / name).unlink()
            if damage is not None:
                (tmp_path / name).write_bytes(damage)
            assert use() == [name] and use() == []
    for damage in damages(draw, listed.read_bytes()):
        listed.unlink()
        if damage is None:  # taken as it lies
            assert use() == []
            continue
        listed.write_bytes(damage)
        assert set(use()) in ({listed.name, *made}, set()) and use() == []  # a cut line end is none
    write_sealed(listed, {"files": {"../outside": "no digest"}})
    (tmp_path.parent / "outside").touch()
    assert use() == ["../outside"] and (tmp_path.parent / "outside").exists()


def test_what_another_program_left_half_made(tmp_path):
    """Its failure removes what is new, unless others are at work, who may have made it."""
    with checked(tmp_path), checked(tmp_path):
        (tmp_path / "whole").write_bytes(b"1")
    with suppress(OSError), checked(tmp_path):
        (tmp_path / "torn").write_bytes(b"2")
        raise OSError
    assert {path.name for path in tmp_path.glob("[!.]*")} == {"whole", "digests.json"}
    with checked(tmp_path):
        with suppress(OSError), checked(tmp_path):
            (tmp_path / "other").write_bytes(b"3")
            raise OSError
        assert (tmp_path / "other").exists()
    (tmp_path / "other").write_bytes(b"4")
    with checked(tmp_path) as damaged:
        assert damaged == ["other"]


def test_norms_of_a_checkpoint(tmp_path):
    folder = tmp_path / "probes"
    table = pd.DataFrame({"tensor": ["a"], "layer": [0], "stat": ["row_norms"], "over": [4],
                          "value": [[1.0, 2.0]]})  # fmt: skip
    contents = {"norms.parquet": table.to_parquet(index=False),
                "model.json": as_json({"model": "some/model"})}  # fmt: skip

    def write():
        (folder / "model").mkdir(parents=True, exist_ok=True)
        write_listed(folder / "model", contents)

    def read():
        found, name = checkpoint_norms.read(folder / "model")
        return found.to_json(), name

    write()
    names = [Path("model") / name for name in (*contents, MANIFEST)]
    assert assert_guarded(folder, names, read, write) >= 22
    # Another folder is not to be removed.
    with pytest.raises(UserError, match=r"is no folder of lrm probe.*name one, such as") as caught:
        checkpoint_norms.read(folder)
    assert "remove" not in str(caught.value)


def test_verification_reads_every_token_of_a_corpus(tmp_path):
    """Opening compares what is small; the planner has every token read before a run begins."""
    corpus = data.prepare(CONFIG, 300, tmp_path)
    shard = corpus.path / "train-00000.bin"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.unlink()
    shard.write_bytes(content)
    with pytest.raises(UserError):
        data.verify(data.prepare(CONFIG, 300, tmp_path))


def test_manifests_are_written_anew_after_a_merge_by_hand(tmp_path):
    """From the files as they lie; drawings and what only people read are not listed."""
    from analysis.publish import list_digests

    for name in ("bench", "tiny/linear_layer"):
        shutil.copytree(PUBLISHED / name, tmp_path / name)
    (tmp_path / "tiny" / "figures").mkdir()
    (tmp_path / "tiny" / "figures" / ".fig1.json").write_text("{}")
    wanted = {path: path.read_bytes() for path in tmp_path.rglob(MANIFEST)}
    assert len(wanted) == 2
    for path, text in zip(wanted, (b"", b"no digest"), strict=True):
        path.write_bytes(text)
    assert list_digests(tmp_path) == sorted(wanted)
    assert {path: path.read_bytes() for path in tmp_path.rglob(MANIFEST)} == wanted
