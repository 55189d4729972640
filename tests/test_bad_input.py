"""Odd input of every kind, generated from a seed: exit code 2, one line, no traceback."""

import contextlib
import importlib
import io
import json
import os
import random
import re
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warm
from conftest import missing_at

from lrm import data
from lrm.cli import Display, guarded, parse_seeds
from lrm.data import tokenizer
from lrm.errors import UserError, first_line, line_of
from lrm.plan import yaml as layers
from lrm.plan.config import DataConfig, Settings, validate
from lrm.plan.experiment import SCALES, load
from lrm.sweep import command, machine
from lrm.sweep.machine import gpus

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(ROOT.glob("experiments/*/config.yaml"))

# Values that no setting may have, wherever they stand.
NOWHERE = {
    "tag of an integer": "!!int abc",
    "tag of a float": "!!float x",
    "tag of a boolean": "!!bool maybe",
    "tag of a date": "!!timestamp 2001-01-01",
    "tag of a set": "!!set {a, b}",
    "tag of an ordered mapping": "!!omap [a: 1]",
    "tag of pairs": "!!pairs [a: 1]",
    "tag of bytes": "!!binary aGk=",
    "tag of a mapping on a list": "!!map [1]",
    "tag of Python": "!!python/object/apply:os.getcwd []",
    "own tag": "!foo x",
    "mapping in itself": "&a {a: *a}",
    "list in itself": "&a [*a]",
    "alias of nothing": "*nowhere",
    "deep list": "[" * 300 + "]" * 300,
    "deep mapping": "{a: " * 300 + "1" + "}" * 300,
    "number in base 60": "60:30",
    "fraction in base 60": "60:30.5",
    "number in base 8": "0755",
    "digits": "9" * 5000,
    "hexadecimal digits": "0x" + "f" * 5000,
    "no digits": "0x_",
    "large": "1.0e+308",
    "small": "1.0e-308",
    "smallest": "5.0e-324",
    "infinite": "-.inf",
    "no number": ".nan",
    "bell": '"a\\x07b"',
    "zero byte": '"a\\0b"',
    "half a character": '"\\ud800"',
    "number as a name": "{5: 1}",
    "nothing as a name": "{null: 1}",
    "list as a name": "{[1]: 1}",
    "boolean as a name": "{yes: 1}",
    "name twice": "{steps: 30, steps: 40}",
    "name with a bell": '{"a\\x07": 1}',
    "open list": "[1",
}
NO_MAPPING = ("5", "null", "x", "[1]", "true", "1.5", '""', "2001-01-01", "$scale", "[{a: 1}]")
SECTIONS = ("model", "data", "train", "optimizer", "schedule", "probes", "multipliers", "execution",
            "cost", "width", "values", "grid")  # fmt: skip
LISTS = ("use", "rules")
# Where a value stands in an experiment's YAML: at its top, in an arm, in a scale, deeper.
PLACES = (
    *("title: %s", "figures: [%s]", "brownian: %s", "base_width: %s", "axes: %s", "arms: {A: %s}"),
    *("run: %s", "scales: {smoke: %s}", "arms: {A: {after: %s}}", "arms: {? %s : {}}"),
    *("rules: [%s]", "rules: [{match: %s}]", "rules: [{match: projector, lr: %s}]", "use: [%s]"),
    *("rules: [{match: projector, multiplier: {kind: scalar, init: %s}}]", "grid: {S: [1.0, %s]}"),
    *(
        "grid: {S: [1.0], ? %s : [2]}",
        "grid: {S: {a: %s}}",
        "values: {x: %s}",
        "train: {steps: %s}",
    ),
    *(f"{section}: %s" for section in (*SECTIONS, *LISTS)),
    *(f"arms: {{A: {{{section}: %s}}}}" for section in (*SECTIONS, *LISTS)),
    *(f"scales: {{smoke: {{{section}: %s}}}}" for section in (*SECTIONS, *LISTS)),
)
FIELDS = tuple(
    f"{section}.{name}"
    for section, field in Settings.model_fields.items()
    for name in getattr(field.annotation, "model_fields", ())
)
BODY = {
    "title": "odd input",
    "use": "[scale/$scale]",
    "grid": "{S: [0.5, 2.0]}",
    "arms": "{A: {}, B: {rules: [{match: 'mlp.*', relative_scale: $S}]}}",
}


def body(line: str = "") -> str:
    """A good experiment, but for ``line``."""
    key, _, value = line.partition(": ")
    said = BODY | ({key: value} if line else {})
    return "".join(f"{name}: {value}\n" for name, value in said.items())


def called(action) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            action()
        except SystemExit as end:
            return end.code, out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def refused(action, what: object = "", or_accepted: bool = False) -> str:
    """The one line with which ``action`` ends; asserts that it is one, and exit code 2."""
    code, _, err = called(action)
    if or_accepted and code == 0:
        return ""
    assert code == 2, (what, code, err[-500:])
    lines = [line for line in err.splitlines() if "error:" in line]
    assert len(lines) == 1 and "Traceback" not in err, (what, err[-500:])
    assert err.endswith(lines[0] + "\n") and len(lines[0]) < 6000, (what, lines[0][:300])
    return lines[0]


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """A function from an experiment's YAML and arguments to its command at the smoke scale."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder = tmp_path / "experiments" / "odd"
    folder.mkdir(parents=True)

    def command_of(text: str | bytes, *arguments: str, dry: bool = True):
        given = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        (folder / "config.yaml").write_bytes(given)
        options = ["--results", str(tmp_path / "results"), *arguments]
        if not any(option.startswith("--scale") for option in arguments):
            options += ["--scale", "smoke"]
        options += ["--dry-run"] if dry else []
        return lambda: command.main(str(folder / "run.py"), options)

    return command_of


def test_the_good_experiment_is_accepted(odd):
    code, out, err = called(odd(body()))
    assert code == 0 and "4 runs" in out, err


def test_values_that_no_setting_may_have(odd):
    """Every kind in places drawn at random, and every place with kinds drawn at random."""
    draw = random.Random(0)
    pairs = [(draw.choice(PLACES), value) for value in NOWHERE.values() for _ in range(3)]
    pairs += [(place, draw.choice(list(NOWHERE.values()))) for place in PLACES for _ in range(2)]
    for place, value in pairs:
        if value == "[1" and "{" in place:
            continue  # what follows closes it
        line = refused(odd(body(place % value)), (place, value[:60]))
        assert "config.yaml" in line or "is out of range" in line


def test_sections_that_are_no_mapping(odd):
    for section in (*SECTIONS, *LISTS):
        for value in NO_MAPPING:
            if section in LISTS and value in ("[1]", "[{a: 1}]"):
                continue
            for place in (section + ": %s", "arms: {A: {" + section + ": %s}}"):
                line = refused(odd(body(place % value)), (section, value))
                assert section in line


def test_presets_are_read_as_strictly(odd, tmp_path, monkeypatch):
    """Also one that uses itself by way of another."""
    presets = tmp_path / "presets"
    presets.mkdir()
    monkeypatch.setattr(layers, "PRESETS", presets)
    monkeypatch.setattr(layers, "_read_preset", layers.read_yaml)
    for text in ("train: 5", "use: [b]", "- 1", "grid: 5", "use: 5", "tain: {}", "arms: {}", "{"):
        (presets / "a.yaml").write_text(text)
        (presets / "b.yaml").write_text("use: [a]")
        line = refused(odd(body("use: [a]")), text)
        assert "a.yaml" in line or "b.yaml" in line
    for name in ("x" * 5000, "../../x", "a.yaml", "", "/a"):
        assert "no preset" in refused(odd(body(f"use: ['{name}']")), name)


def test_names_of_arms_and_axes(odd):
    for name in ('""', '" "', '" A"', "A B", '"A\\nB"', "A" * 81, "A=1", "'*'", "a/b", '"\\u202e"'):
        assert "name" in refused(odd(body(f"arms: {{? {name} : {{}}}}")), name)
        assert "name" in refused(odd(body(f"grid: {{S: [1.0], ? {name} : [1]}}")), name)
    assert "no setting refers to $T" in refused(odd(body("grid: {S: [1.0], T: [1, 2]}")))
    assert "20000 points" in refused(
        odd(body("grid: {" + ", ".join(f"{n}: {list(range(20))}" for n in "STUV") + "}"))
    )
    long = f"grid: {{S: {list(range(9999))}}}"
    assert "more than 20000 runs" in refused(odd(body(long), "--seeds", "3"))


def test_whole_files(odd):
    repeated = "\n".join(
        f"  {one}: &{one} [{','.join(['*' + before] * 9)}]"
        for before, one in zip("abcdefgh", "bcdefghi", strict=True)
    )
    files = {
        "no text": b"\xff\xfe\x00t",
        "Latin-1": b"title: \xe9\n",
        "empty": b"",
        "a list": b"[1]",
        "text": b"x",
        "two documents": b"--- {title: x}\n--- {title: y}\n",
        "a control character": b"title: a\x07\n",
        "a surrogate": b"title: \xed\xa0\x80\n",
        "a tab": b"title:\n\tx\n",
        "long": body().encode() + b"# " + b"x" * (1 << 20),
        "many entries": body().encode() + b"values: [" + b"1, " * 21_000 + b"]\n",
        "aliases of aliases": f"{body()}values:\n  a: &a [x, x, x]\n{repeated}\n".encode(),
        "deep blocks": b"".join(b" " * n + b"a:\n" for n in range(300)),
    }
    for name, content in files.items():
        assert "config.yaml" in refused(odd(content), name)


def test_damaged_copies_of_published_settings(odd):
    """Characters lost, doubled or exchanged: accepted or refused, but never a traceback."""
    draw = random.Random(1)
    ends = []
    for _ in range(60):
        text = draw.choice(CONFIGS).read_text()
        for _ in range(draw.choice((1, 3, 10))):
            at = draw.randrange(len(text))
            text = text[:at] + draw.choice("{}[]:,&*!|>%@`\"'-$ \t\n5x") + text[at + 1 :]
        ends.append(refused(odd(text), text[:300], or_accepted=True))
    assert "" in ends and any(ends)


def test_overrides(odd):
    """What stands behind ``--set`` is read as strictly as the YAML."""
    draw = random.Random(2)
    for value in NOWHERE.values():
        for path in draw.sample(FIELDS, 2):
            refused(odd(body(), "--set", f"{path}={value}"), (path, value[:60]))
    for section in SECTIONS:
        for value in (*NO_MAPPING, ""):
            refused(odd(body(), "--set", f"{section}={value}"), (section, value))
    for path in ("", " ", ".", "train.", ".train", "train..steps", "train.steps.x", "model.", "5",
                 "a." * 3000 + "b", "x" * 5000, "rules", "rules.x", "use", "grid.S", "arms",
                 "train.\udcff", "train.a\x07", "base_width.x", "execution.kernels.x"):  # fmt: skip
        refused(odd(body(), "--set", f"{path}=3"), path[:50])
    line = refused(odd(body(), "--set", "train={steps: 30, steps: 40}"))
    assert "the key 'steps' is given twice" in line
    assert "base 8 or 60" in refused(odd(body(), "--set", "train.steps=60:30"))
    refused(odd(body(), "--set", "train.steps"))


def test_numbers_out_of_bounds(odd):
    draw = random.Random(5)
    for field in FIELDS:
        assert "out of range" in refused(odd(body(), "--set", f"{field}=1.0e+31"))
        for value in draw.sample(("-1", "0", "1.0e+30", "1.0e-30", str(1 << 52), "2000001.5"), 2):
            refused(odd(body(), "--set", f"{field}={value}"), (field, value), or_accepted=True)
    for setting in ("train.steps=2000001", "model.num_hidden_layers=1001", "base_width=2000000",
                    "execution.threads=9999", "optimizer.muon_momentum=0.9999"):  # fmt: skip
        assert "less than or equal" in refused(odd(body(), "--set", setting))


def test_extreme_but_finite_numbers_are_planned(odd):
    """At the bounds nothing overflows, is divided by zero or has no logarithm."""
    draw = random.Random(3)

    def number() -> str:
        return draw.choice(("1.0e+30", "1.0e-30", "1.0"))

    for _ in range(25):
        names = ("lr", "lr_scale", "wd_scale", "weight_decay", "relative_scale", "init_scale")
        said = ", ".join(f"{name}: {number()}" for name in names)
        powers = f"{{lr: {draw.choice((-4, 4))}, weight_decay: 4, init: {draw.choice((-4, 4))}}}"
        learned = f"{{kind: row, lr: {number()}, init: {number()}, weight_decay: {number()}}}"
        rule = f"{{match: 'mlp.*', {said}, width_exponent: {powers}, multiplier: {learned}}}"
        text = body(f"rules: [{rule}]") + (
            f"base_width: {draw.choice((1, 1 << 20))}\n"
            f"optimizer: {{name: {draw.choice(('adamw', 'muon'))}, lr: {number()}}}\n"
            f"cost: {{flops_per_second: {number()}, price_per_hour: {number()}}}\n"
        )
        code, _, err = called(odd(text))
        assert code == 0, (text, err)


def test_flags(odd):
    for seeds in ("0-99999999999", "99999999999", "0", "-1", "1-", "-", "5-2", "a", "1,a", "", " ",
                  "1e3", "1.5", "²", "1-2-3", "9" * 5000, "0-" + "9" * 5000, "\udcff", "+3",
                  "1_0", "0x3", "0-9999,10000-19999", str(1 << 60) + ","):  # fmt: skip
        refused(odd(body(), f"--seeds={seeds}"), seeds[:50])
    for only in ("", "nothing", "\udcff", "[", "x" * 10_000, "\n", "[!]", "[" * 500):
        assert "selects no run" in refused(odd(body(), f"--only={only}"), only[:50])
    for workers in ("0", "-1", "x", "1.5", "²", "٣", "9" * 5000, "99999999", "", "\udcff"):
        refused(odd(body(), f"--workers={workers}"), workers[:50])
    for scale in ("", "smok", "\udcff", "x" * 5000, "smoke\n", "../x"):
        assert "unknown scale" in refused(odd(body(), f"--scale={scale}"), scale[:50])
    for results in ("x" * 300, "/" + "a/" * 3000):
        assert "File name too long" in refused(odd(body(), f"--results={results}"), results[:50])
    for arguments in (["--foo"], ["x"], ["--set"], ["--dry-run=3"], ["\udcff"]):
        refused(odd(body(), *arguments), arguments)
    with pytest.raises(UserError, match="write 1, or 0-0, for seed 0"):
        parse_seeds("0")
    assert parse_seeds("5,") == [5] and parse_seeds("100-102, 7") == [100, 101, 102, 7]


def test_files_and_devices_that_are_not_there(odd, tmp_path, monkeypatch):
    """Told when the plan is made, also by a dry run."""
    monkeypatch.setattr(machine, "gpus", lambda: ["0", "1"])
    monkeypatch.setattr(machine, "_OTHER_GPUS", ())
    monkeypatch.setattr(sys, "platform", "linux")
    for setting in (
        *("execution.device=cuda:7", "execution.device=cuda:2"),
        *("data.tokenizer=absent.json", f"data.tokenizer={tmp_path}", "data.tokenizer=~nobody9/x"),
        *(f"train.start={tmp_path}", "train.start=absent", "data.tokenizer=" + "x" * 300),
        *("train.start=" + "x" * 300, f"data={{source: folder, path: {tmp_path}/absent}}"),
        *(
            "data={source: jsonl, path: ~nobody9/x}",
            "data={source: parquet, path: " + "x" * 300 + "}",
        ),
    ):
        refused(odd(body(), "--set", setting), setting[:80])
    for device in ("auto", "cpu", "cuda", "cuda:1"):
        assert called(odd(body(), "--set", f"execution.device={device}"))[0] == 0
    monkeypatch.setattr(machine, "gpus", lambda: [])
    assert "there are 0 GPUs here" in refused(odd(body(), "--set", "execution.device=cuda"))


def test_sizes_that_no_memory_holds(odd, monkeypatch):
    """A run that does not fit, or workers that do not fit together; a dry run never minds."""
    monkeypatch.setattr(machine, "gpus", lambda: [])
    monkeypatch.setattr(machine, "memory", lambda: 8_000_000_000)
    for setting in ("train={batch_size: 1048576, sequence_length: 65536}",
                    "model={vocab_size: 16777216, hidden_size: 65536}"):  # fmt: skip
        line = refused(odd(body(), "--set", setting, dry=False), setting)
        assert "GB of memory, and there are 8; make model" in line
        assert called(odd(body(), "--set", setting))[0] == 0
    large = ("--set", "train={batch_size: 1024, sequence_length: 8192}", "--workers", "4")
    line = refused(odd(body(), *large, dry=False))
    assert line.endswith("use --workers 3") and "4 workers need at least 9 GB" in line


def test_memory_is_that_of_the_tightest_limit(tmp_path, monkeypatch):
    for name, content in (("one", "max"), ("other", "12345")):
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(machine, "_LIMITS", (str(tmp_path / "one"), str(tmp_path / "absent")))
    assert machine.memory() > 12345
    monkeypatch.setattr(machine, "_LIMITS", (str(tmp_path / "one"), str(tmp_path / "other")))
    assert machine.memory() == 12345
    # A job of SLURM's has its limit in a group above the one that its processes are in.
    monkeypatch.setattr(machine, "_own_limits", lambda: [tmp_path / "job"])
    (tmp_path / "job").write_text("1234")
    assert machine.memory() == 1234
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (999, 999))
    assert machine.memory() == 999


@pytest.mark.parametrize(
    ("said", "limits"),
    [
        ("0::/system/job_7/step_0", ["system/job_7/step_0/memory.max", "system/job_7/memory.max",
                                     "system/memory.max", "memory.max"]),
        ("5:cpu,cpuacct:/a\n4:memory:/slurm/job_7",
         [f"memory/{path}memory.limit_in_bytes" for path in ("slurm/job_7/", "slurm/", "")]),
    ],
)  # fmt: skip
def test_the_groups_that_limit_memory(said, limits, monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda self: said)
    assert machine._own_limits() == [Path("/sys/fs/cgroup", each) for each in limits]


def test_places_among_processes(odd, monkeypatch):
    """What torchrun would set, set wrongly: told before torch is loaded."""
    good = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_PORT": "29500"}
    for name, value in good.items():
        monkeypatch.setenv(name, value)
    machine.check_places()
    for name, values in {
        "WORLD_SIZE": ("-1", "0", "x", "", "1.5", "9" * 5000, "²"),
        "RANK": ("-1", "2", "x", "", "1_0"),
        "LOCAL_RANK": ("-1", "2", "z"),
        "MASTER_PORT": ("-1", "65536", "x"),
    }.items():
        for value in values:
            monkeypatch.setenv(name, value)
            assert refused(odd(body()), (name, value)).startswith(f"error: {name} = ")
        monkeypatch.setenv(name, good[name])


def test_names_of_gpus(odd, monkeypatch):
    for visible, found in {"": [], "-1": [], "0": ["0"], "2, 0": ["2", "0"], "1,-1,0": ["1"],
                           "GPU-8f-0,MIG-3e/1/0": ["GPU-8f-0", "MIG-3e/1/0"],
                           "NoDevFiles": []}.items():  # fmt: skip
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert gpus() == found
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(Path, "glob", lambda *_: [Path("/dev/nvidia1"), Path("/dev/nvidia6")])
    assert gpus() == ["0", "1"]  # a container's own, which CUDA counts from 0
    for visible in ("abc", "0;1", "-2", "0,x", "cuda:0", "9" * 5000):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert "CUDA_VISIBLE_DEVICES = " in refused(odd(body()), visible[:50])


def test_an_environment_that_has_hardly_anything(tmp_path):
    """Odd numbers of threads and tunables, an output that knows no Greek, and no home."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "HOME"},
        "OMP_NUM_THREADS": "abc",
        "MKL_NUM_THREADS": "-1",
        "GLIBC_TUNABLES": "x:y:z",
        "PYTHONIOENCODING": "ascii",
    }
    order = [sys.executable, "experiments/projector/run.py", "--scale", "smoke", "--dry-run"]
    order += ["--results", str(tmp_path), "--only", "FPN S=1 *"]
    done = subprocess.run(order, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "1 run, " in done.stdout, done.stderr
    assert "Traceback" not in done.stderr
    order += ["--set", "data.tokenizer=~nobody9/é"]
    done = subprocess.run(order, cwd=ROOT, env=environment, capture_output=True, text=True)
    # Newer versions of glibc say something of the tunables too.
    said = [x for x in done.stderr.splitlines() if not x.startswith("WARNING: ld.so:")]
    assert done.returncode == 2 and len(said) == 1, done.stderr


GOOD_LINES = [json.dumps({"text": f"a document of some words, the {n}. " * 5}) for n in range(60)]
LINES = {
    "deep list": b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep object": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "digits": b'{"text": ' + b"9" * 5000 + b"}",
    "Latin-1": b'{"text": "\xe9"}',
    "list": b"[1]",
    "number": b"5",
    "no number": b"NaN",
    "more": b'{"text": "a"} x',
    "number as text": b'{"text": 5}',
    "bytes": bytes(range(128, 256)),
    "other field": b'{"te\\u0007xt": 1}',
    "many fields": json.dumps({f"field{n}": 1 for n in range(3000)}).encode(),
}


def test_json_lines(tmp_path):
    for name, line in LINES.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes("\n".join(GOOD_LINES).encode() + b"\n" + line + b"\n")
        assert f"{name}.jsonl, line 61" in built(tmp_path, name, source="jsonl", path=str(path))
    for encoding in ("utf-16", "utf-32", "cp500"):
        path = tmp_path / f"{encoding}.jsonl"
        path.write_bytes("\n".join(GOOD_LINES).encode(encoding))
        built(tmp_path, encoding, source="jsonl", path=str(path))
    (tmp_path / "folder.jsonl").mkdir()
    built(tmp_path, "a folder", source="jsonl", path=str(tmp_path / "folder.jsonl"))


def test_parquet(tmp_path):
    texts = [f"a document of some words, the {n}. " * 5 for n in range(60)]
    tables = {
        "two columns": pa.Table.from_arrays([pa.array(texts)] * 2, names=["text", "text"]),
        "integers": pa.table({"text": list(range(60))}),
        "lists": pa.table({"text": [[text] for text in texts]}),
        "structures": pa.table({"text": [{"a": text} for text in texts]}),
        "bytes": pa.table({"text": [text.encode() for text in texts]}),
        "nothing": pa.table({"text": pa.nulls(60)}),
        "no rows": pa.table({"text": pa.array([], pa.string())}),
        "no columns": pa.table({}),
        "many columns": pa.table({f"column{n}": [1] for n in range(2000)}),
    }
    for name, table in tables.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table, path)
        built(tmp_path, name, source="parquet", path=str(path))
    pq.write_table(pa.table({"text": texts}), tmp_path / "good.parquet")
    good, draw = (tmp_path / "good.parquet").read_bytes(), random.Random(4)
    for number in range(12):
        content = bytearray(good)
        for _ in range(draw.choice((5, 50))):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path = tmp_path / f"damaged{number}.parquet"
        path.write_bytes(content[: draw.choice((None, -20, 40))])
        config = {"source": "parquet", "path": str(path)}
        refused(building(tmp_path, **config), number, or_accepted=True)


def test_folders_and_tokenizers(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(40):
        (texts / f"{number}.txt").write_text(f"a document of some words, the {number}. " * 5)
        (texts / f"{number}.latin").write_bytes(b"\xe9\xff" * 50)
    for name, config in {
        **{repr(p): {"pattern": p} for p in ("x" * 300, "\0", "/etc/*", "[", "*.latin")},
        **{
            repr(p[:9]): {"path": p}
            for p in ("x" * 300, "a\0b", "~nobody9/x", "\udcff", "/dev/null")
        },
    }.items():
        built(
            tmp_path, name, **{"source": "folder", "path": str(texts), "pattern": "*.no"} | config
        )
    for name, content in {
        "empty": b"",
        "object": b"{}",
        "deep": b"[" * 100_000,
        "bytes": b"\xff\xfe",
        "no model": b'{"version": "1.0"}',
        "no unknown word": b'{"version": "1.0", "model": {"type": "WordLevel", "unk_token": "x",'
        b' "vocab": {"<|endoftext|>": 0}}}',
        "no words": b'{"version": "1.0", "model": {"type": "Unigram", "vocab": []}}',
    }.items():
        path = tmp_path / f"{name}.json"
        path.write_bytes(content)
        built(tmp_path, name, source="folder", path=str(texts), tokenizer=str(path))
    built(tmp_path, "a zero byte", source="folder", path=str(texts), tokenizer="a\0")


def building(folder: Path, **config):
    """The command that builds a corpus."""
    given = validate(DataConfig, config, "the test")
    return lambda: guarded(lambda: data.prepare(given, 300, folder / "corpora"))


def built(folder: Path, what: object, **config) -> str:
    """The one line with which that is refused."""
    return refused(building(folder, **config), what)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.parent.name)
def test_what_is_published_still_plans(path):
    experiment = load(path)
    for scale in SCALES:
        if missing_at(experiment, scale) is None:
            assert experiment.runs(scale, [0]), scale


@pytest.mark.parametrize("name", ["long_run", "gdn_draws", "steepest_search"])
def test_a_scale_that_an_experiment_does_not_know(name):
    command = [sys.executable, ROOT / "experiments" / name / "run.py", "--scale", "small"]
    found = subprocess.run([*command, "--dry-run"], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (2, "")
    assert re.fullmatch(r"error: .*config\.yaml: .*\n", found.stderr)


def test_a_line_is_one_line_whatever_it_quotes():
    line = line_of(UserError("a\nb\x07\udcff\u2028" + "x" * 5000 + "end"))
    assert line.startswith("error: a\\nb\\x07\\udcff\\u2028x") and line.endswith("end")
    assert len(line) < 1100 and line.isprintable()


def test_a_notebook_that_is_none(tmp_path):
    pytest.importorskip("nbclient")
    notebooks = importlib.import_module("analysis.notebooks")
    for number, content in enumerate(("", "{", "[]", "5", "[" * 9999)):
        path = tmp_path / f"{number}.ipynb"
        path.write_text(content)
        with pytest.raises(UserError, match=f"{number}.ipynb is no notebook"):
            notebooks.run(path)


def test_the_override_at_fault_is_blamed(odd):
    """Of several the one without which the others would do; else all of them."""
    good = ("--set", "train.batch_size=4")
    for bad in ("train.stepz=3", "train.steps=-1", "optimizer.lr=x"):
        for order in ((*good, "--set", bad), ("--set", bad, *good)):
            line = refused(odd(body(), *order), order)
            assert f"--set {bad}: " in line and "batch_size" not in line
    line = refused(odd(body(), "--set", "train.steps=-1", "--set", "train.batch_size=-1"))
    assert "with --set train.steps=-1 --set train.batch_size=-1: " in line
    # Neither does without the other.
    pair = ("--set", "data.source=folder", "--set", "data.path=lrm")
    assert called(odd(body(), *pair, "--set", "data.pattern='*.py'"))[0] == 0


def test_remedies_that_can_be_followed(odd):
    for value in ("nan", "inf", "-inf"):
        line = refused(odd(body(), "--set", f"optimizer.lr={value}"))
        assert line.endswith("is text, not a number; write one that is finite")
    assert refused(odd(body(), "--set", "optimizer.lr=1e-3")).endswith("; write 1.0e-3")
    for value in ("*.md", "**/*.md", "*md", "&.md"):
        line = refused(odd(body(), "--set", f"data.pattern={value}"), value)
        assert line.endswith("text that begins with * or & needs quotes, as in '*.md'")
    repeated = "title: x\ntrain:\n  steps: 3\n  batch_size: 4\n  steps: 5\narms: {A: {}}\n"
    assert "config.yaml, line 5: not valid YAML: the key 'steps' is given twice" in refused(
        odd(repeated)
    )


def test_remedies_that_lead_in_no_circle(odd):
    for key in ("use", "grid", "arms", "axes", "scales", "values", "width", "brownian", "at"):
        for given in (f"{key}=3", f"{key}=[optimizer/muon]", f"{key}.S=[1]", f"{key}={{}}"):
            line = refused(odd(body(), "--set", given), given)
            assert f"{key} is no setting of a run; change it in the YAML" in line
    line = refused(odd(body() + "search: {}\n"))
    assert "odd is a search, but its run.py is not that of one; copy experiments/tuning_s" in line
    for given in ("data.packages=numpy", "data={packages: numpy}"):
        line = refused(odd(body(), "--set", given))
        assert line.endswith("data.packages: 'numpy' is no list; write a list such as [numpy]")
    line = refused(odd(body("at: mini")))
    assert line.endswith("at: 'mini' is no list; write a list such as [mini]")
    assert refused(odd(body("at: []"))).endswith(
        "at: no scale; write a list such as [tiny], or leave at out"
    )
    for empty in ("", "# nothing\n"):
        assert "config.yaml is empty; write lines such as key: value" in refused(odd(empty))
    line = refused(odd(body("rules: [{match: mlp.upp, lr: 1.0}]")))
    assert "the addresses are mlp.up, " in line and re.search(r" and \d+ more; the roles", line)
    assert line.endswith("norms.input, norms.output") and len(line) < 500
    line = refused(odd(body("use: [scale/tinny]")))
    assert "no preset 'scale/tinny'; there are scale/tiny, " in line and len(line) < 500


def test_a_file_where_a_folder_is_wanted():
    path = CONFIGS[0]
    with pytest.raises(UserError) as caught:
        load(path / "config.yaml")
    assert str(caught.value) == f"{path} is no folder; name its folder, {path.parent}"


def test_experiments_that_are_named_and_are_not_there(odd, tmp_path):
    for key in ("tuned_by", "replaces"):
        line = refused(odd(body() + f"{key}: nosuch\n"))
        assert f"{key}: there is no experiment 'nosuch' in " in line
        assert line.endswith(f"correct the name, or leave {key} out")
    other = tmp_path / "experiments" / "other"
    other.mkdir()
    (other / "config.yaml").write_text(body())
    assert called(odd(body() + "tuned_by: other\nreplaces: other\n"))[0] == 0


def test_what_never_ends_is_not_read(odd, tmp_path):
    """A pipe that nobody writes to, and a device without an end."""
    os.mkfifo(tmp_path / "pipe")
    action = odd(body())
    path = tmp_path / "experiments" / "odd" / "config.yaml"
    for endless in (tmp_path / "pipe", Path("/dev/zero")):
        path.unlink()
        path.symlink_to(endless)
        assert "config.yaml is no file; name a YAML file" in refused(action, endless)
        given = {"source": "synthetic", "tokenizer": str(endless)}
        assert "is no file; name a tokenizer.json" in built(tmp_path, endless, **given)


def test_plans_of_any_size_are_refused_at_once(odd):
    for setting in ("train.steps=1000000000", "model.num_hidden_layers=1000000",
                    "model.vocab_size=10000000000000", "execution.threads=1000"):  # fmt: skip
        assert "less than or equal" in refused(odd(body(), "--set", setting))
    thousand = list(range(1000))
    line = refused(odd(body(f"grid: {{S: {thousand}, T: {thousand}, U: {thousand}}}")))
    assert "more than 20000 points" in line


def test_criteria_and_locks_that_are_none(odd, tmp_path):
    """A plan notes their digests; each names its file and the claim."""
    folder = tmp_path / "experiments" / "odd"
    entry = ("P1: {experiment: odd, statement: x, criterion: y, thresholds: {}, "
             "seeds: {judge: 100-101, planned: 2}}")  # fmt: skip
    for criteria, locks, said in (
        ("P1: 3", "{}", "criteria.yaml: P1: expected a mapping with experiment, statement"),
        ("[P1]", "{}", "criteria.yaml: expected a mapping"),
        (entry, "[]", "locks.json is damaged: it is no mapping of claims to locks; restore it"),
        (entry, '{"P1": 3}', "locks.json: P1: 3 is no lock; restore it from the repository"),
        (entry, "{", "locks.json is damaged"),
    ):
        (folder / "criteria.yaml").write_text(criteria)
        (folder / "locks.json").write_text(locks)
        assert said in refused(odd(body()), said)
    (folder / "locks.json").write_text('{"P1": {"code": "x", "only_added": null}}')
    (folder / "criteria.yaml").write_text(entry)
    for claim in ("P1", "p1"):
        assert called(odd(body(), "--claim", claim))[0] == 0
    assert "odd has no claim 'p2'; it has P1" in refused(odd(body(), "--claim", "p2"))
    for wrong, said in (
        ("P1: {experiment: odd, statment: x}", "P1: no statement, criterion, thresholds, seeds"),
        (entry.replace("judge:", "juge:"), "P1: no seeds that judge; write seeds: {judge:"),
        (entry.replace("{judge: 100-101, planned: 2}", "100-101"), "P1: no seeds that judge"),
        (entry.replace(", planned: 2", ""), "P1: seeds: no planned, how many have to judge"),
        (entry.replace("P1: {", "P1: {only: A *, "), "P1: only: expected a list of patterns"),
    ):
        (folder / "criteria.yaml").write_text(wrong)
        # Before anything is trained whose seeds would count for nothing.
        assert said in refused(odd(body(), "--dry-run"), wrong)


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ("judge: abc, planned: 2", "judge: 'abc' names no seeds; write judge: 100-107"),
        ("judge: 107-100, planned: 2", "judge: '107-100' names no seeds"),
        ("judge: [100, 101], planned: 2", "judge: [100, 101] names no seeds"),
        ("judge: 0-7, planned: 2", "judge: seeds below 100 explore; write judge: 100-107"),
        ("judge: 100-107, planned: 80", "planned: 80 is not from 1 to 8, the number of seeds that"),
        ("judge: 100-107, planned: -3", "planned: -3 is not from 1 to 8"),
        ("judge: 100-107, minimum: 0", "minimum: 0 is not from 1 to 8"),
        ("judge: 100-107, planned: '8', minimum: 3", "no planned, how many have to judge"),
        ("judge: 100-107, planned: true", "no planned, how many have to judge"),
        ("judge: 100-107, spare: 300, planned: 8", "spare: 300 must be some of the seeds that"),
        ("judge: 100-107, spare: 100-107, planned: 8", "not all; choose from 100-107"),
        ("judge: 100-107, spare: 106-107, planned: 7", "from 1 to 6, the number of seeds that jud"),
        ("judge: 100-107, spare: x, planned: 7", "spare: 'x' names no seeds"),
        ("judge: 200-200, draws: 48, planned: 49", "planned: 49 is not from 1 to 48, the number"),
        ("judge: 200-201, draws: many, planned: 2", "draws: 'many' is no number; write draws: 48"),
    ],
)  # fmt: skip
def test_seeds_that_could_never_judge(odd, tmp_path, seeds, said):
    path = tmp_path / "experiments" / "odd" / "criteria.yaml"
    entry = "P1: {experiment: odd, statement: x, criterion: y, thresholds: {}, seeds: {%s}}"
    path.write_text(entry % seeds)
    line = refused(odd(body()), seeds)
    assert f"{path}: P1: seeds" in line and said in line


@pytest.mark.parametrize(
    "seeds",
    [
        "judge: 100-107, minimum: 3",
        "judge: '100,105', planned: 2",
        "judge: 100, planned: 1",
        "judge: 110-117, spare: 116-117, planned: 6",
        "judge: 110-117, spare: 117, planned: 7",
        "judge: 200-200, draws: 48, planned: 48",
        "judge: 208-215, values: 48, planned: 48",
    ],
)
def test_seeds_that_judge(odd, tmp_path, seeds):
    entry = "P1: {experiment: odd, statement: x, criterion: y, thresholds: {}, seeds: {%s}}"
    (tmp_path / "experiments" / "odd" / "criteria.yaml").write_text(entry % seeds)
    code, _, err = called(odd(body()))
    assert code == 0, err


def test_what_was_once_accepted(odd, tmp_path):
    for line in ("rules: false", "rules: 0", "arms: 0", "arms: false", "arms: []"):
        assert line.partition(":")[0] in refused(odd(body(line)), line)
    for axis in ("id", "label", "description"):
        line = refused(odd(body(f"grid: {{S: [0.5, 2.0], {axis}: [1, 2]}}")), axis)
        assert f"grid.{axis}: that name is a column of every table" in line
    for name in ("/etc/passwd", str(ROOT / "lrm" / "plan" / "presets" / "scale" / "smoke")):
        assert "no preset" in refused(odd(body(f"use: [{name}]")), name)
    texts = tmp_path / "texts" / "inner"
    texts.mkdir(parents=True)
    (texts.parent / "secret.txt").write_text("a secret " * 50)
    for pattern in ("../*.txt", "x/../../*.txt", ".."):
        line = built(tmp_path, pattern, source="folder", path=str(texts), pattern=pattern)
        assert "leads out of data.path; name that folder as data.path" in line


def test_names_stay_in_their_folder(tmp_path, monkeypatch):
    """Scales of the commands that read and write results, and the name of a benchmark's record."""
    from analysis import publish
    from analysis.claims import __main__ as claims
    from analysis.figures import __main__ as figures
    from lrm.bench import __main__ as bench

    results = ["--results", str(tmp_path / "results")]
    for main, given in ((claims.main, []), (figures.main, ["fig1"]), (publish.main, ["projector"])):
        for scale in ("../../..", "nope", "", "tiny/../..", "/etc"):
            monkeypatch.setattr(sys, "argv", ["x", *given, "--scale", scale, *results])
            assert "invalid choice" in refused(main, scale)
    for name in ("../x", "/etc/x", ".x", "a/b", "a\nb", "x" * 200):
        line = refused(lambda name=name: bench.main(["--name", name, *results]), name)
        assert "--name" in line and "write up to 80 letters" in line
    assert not (tmp_path / "results").exists()


def test_control_characters_reach_no_terminal(capsys):
    display = Display(["worker\x1b[31m"])
    display.note("a\x1b]0;title\x07 note")
    display.show(["a\x1b[2J line"], last=True)
    command._print_progress("reading folder \x9b31m")
    said = capsys.readouterr().err
    assert "\x1b" not in said and "\x07" not in said and "\x9b" not in said
    assert "\\x1b[2J line" in said


def test_a_word_without_end(tmp_path):
    """It is cut for the training of a tokenizer, and nothing else of the text is touched."""
    words = "a few ordinary words, and then " * 40
    long = "".join(random.Random(0).choices("abcdefgh", k=300_000))
    pieces = list(tokenizer._pieces(words + long + words))
    assert "".join(pieces) == words + long + words
    assert max(len(word) for piece in pieces for word in piece.split()) <= 1000
    assert list(tokenizer._pieces(words)) == [words]
    for run in ("7" * 2500, "-" * 2500, "_" * 2500, "\n" * 2500):
        assert [len(piece) for piece in tokenizer._pieces(run)] == [1000, 1000, 500]
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(f"{number} {words} {long[: number * 20_000]}")
    corpus = data.prepare(
        DataConfig(source="folder", path=str(tmp_path), validation_fraction=0.3), 300, tmp_path
    )
    assert corpus.meta["splits"]["train"]["bytes"] > 100_000


def test_letters_that_an_output_lacks(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    claims = ["-m", "analysis.claims"]
    helps = ["experiments/projector/run.py", "--help"], ["-m", "lrm.sweep.runs", "--help"]
    for order in (claims, [*claims, "--all"], *helps):
        done = subprocess.run([sys.executable, *order], cwd=ROOT, env=environment,
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0 and done.stderr == "", (order, done.stderr)


def test_errors_of_libraries_are_told_in_a_line(tmp_path):
    path = tmp_path / "cut.parquet"
    pq.write_table(pa.table({"text": ["a text"] * 60}), path)
    path.write_bytes(path.read_bytes()[40:])
    line = built(tmp_path, "a cut head", source="parquet", path=str(path))
    assert "cannot be read as Parquet" in line and "\\n" not in line
    assert first_line(ValueError("\nfirst\nsecond\x07")) == "first"
    assert first_line(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    "command",
    [
        ("-c", "from lrm.cli import main; main()", "export"),
        ("-m", "lrm.sweep.runs", "lists"),
        ("-m", "analysis.claims", "--scale", "huge"),
        ("experiments/projector/run.py", "--workers", "0"),
    ],
)
def test_what_a_command_line_lacks_is_told_in_one_line(command):
    done = subprocess.run([warm.python, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1 and "--help lists what there is" in done.stderr
