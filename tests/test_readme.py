"""The guide of experiments/README.md, as a reader would follow it."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.needs import experiments_of, figures, wanted
from lrm.cli import _VERBS
from lrm.plan.claims import asked_by

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the tree with the guide's files as printed, and the guide's commands."""
    copy = tmp_path_factory.mktemp("tree")
    for folder in ("lrm", "analysis", "experiments", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("Makefile", "README.md", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / file, copy)
    (copy / "results").mkdir()
    (copy / "results" / "reference").symlink_to(ROOT / "results" / "reference")
    return copy, follow(copy, "guide", files=3)


def follow(copy, part, files):
    """Write the files of a part of the page into the tree; returns the part's commands."""
    page = (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")
    page = page.split(f"<!-- {part}: ")[1].split(f"<!-- end of the {part}")[0]
    printed = re.findall(r"`([\w/.]+)`\n```\w+\n(.*?)```", page, re.S)
    assert len(printed) == files
    for name, text in printed:
        (copy / name).parent.mkdir(exist_ok=True)
        assert not (copy / name).exists()
        (copy / name).write_text(text)
    [commands] = re.findall(r"```sh\n(.*?)```", page, re.S)
    return commands.strip().splitlines()


def call(folder, *arguments):
    environment = {"PYTHONPATH": str(folder), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_guide_trains_and_draws(tree):
    """On a copy of the tree: its files as printed, then its commands as printed."""
    copy, commands = tree
    for command in commands:
        words = command.split()
        assert words[0] == ".venv/bin/python"
        call(copy, *words[1:])
    png = copy / "results" / "figures" / "smoke" / "my_figure.png"
    assert png.stat().st_size > 10_000


def test_an_added_experiment_is_found_everywhere(tree):
    """With the guide's files in the tree, and nothing else touched, the tests of what the tree
    holds pass, and make knows the experiment and the figure."""
    copy, _ = tree
    files = [f"tests/test_{name}.py" for name in ("architecture", "compose", "ledger", "readme")]
    chosen = "downward or no_trainer or complete or without_runs or draws_every or my_sweep"
    said = call(copy, "-m", "pytest", "-p", "no:cacheprovider", "-vv", *files, "-k", chosen)
    assert "test_make_all_draws_every_figure[options0] PASSED" in said and "my_sweep" in said
    listed = make(copy, "help")
    assert re.search(r"^  make my_sweep +a fixed factor on the MLP's output$", listed, re.M)
    assert re.search(r"^  make my_figure +", listed, re.M)


def test_an_added_claim_is_judged(tree, tmp_path):
    """As the page adds one: its header, its files, and its commands."""
    copy = shutil.copytree(tree[0], tmp_path / "tree", symlinks=True)
    configuration = copy / "experiments" / "my_sweep" / "config.yaml"
    configuration.write_text("#   claims:  Y1\n" + configuration.read_text())
    for command in follow(copy, "claim", files=2):
        said = call(copy, *command.split()[1:])
    assert "loss without − with" in said and "n = 2; at least 0, 0.01" in said
    assert "changed after" not in said


def run_make(folder, *arguments):
    """make as a user calls it: under ``make test`` it would take itself for a part of that one.

    Nor does it see variables that it reads, such as ``SEEDS``.
    """
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = ["make", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def make(folder, *arguments):
    """What make says, and the calls of Python that it makes, one a line."""
    done = run_make(folder, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("target", "name"), [("probe", "MODEL"), ("evaluate", "RUN")])
def test_make_asks_for_what_is_not_named(target, name, tmp_path):
    for made in (".core", ".dev" if target == "probe" else ".evaluation"):  # else it is installed
        (tmp_path / made).touch()
        os.utime(tmp_path / made, (4e9, 4e9))
    done = run_make(ROOT, target, f"VENV={tmp_path}")
    assert (
        done.returncode == 2 and f"error: no {name.lower()} is named; give {name}=" in done.stderr
    )


@pytest.fixture
def calls(tmp_path):
    """Options of make with which every Python but the planner's only prints what it is given."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        f'#!/bin/sh\ncase "$2" in analysis.needs) exec {sys.executable} "$@";; esac\n'
        'case "$*" in "-m lrm.sweep --scale"*) exit 2;; esac\n'  # a sweep of nothing
        'line=; for word; do line="$line$word|"; done; echo "$line"\n'
    )
    python.chmod(0o755)
    for made in (".core", ".evaluation"):
        (tmp_path / made).touch()
    return f"VENV={tmp_path}"


def test_every_module_that_a_command_names_can_be_run():
    """Those of the Makefile and of the pages, as ``python -m``; verbs of ``lrm`` and targets."""
    pages = [ROOT / "Makefile", *ROOT.glob("*.md"), *ROOT.glob("*/README.md"),
             *ROOT.glob("experiments/*/README.md")]  # fmt: skip
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"python -m ((?:lrm|analysis)[\w.]*)", text))
    assert len(named) > 10
    for name in named:
        found = importlib.util.find_spec(name)
        if found and found.submodule_search_locations:
            found = importlib.util.find_spec(f"{name}.__main__")
        assert found, f"python -m {name}"
        runs = "__main__" in found.name or '"__main__"' in Path(found.origin).read_text()
        assert runs, f"python -m {name}"
    assert set(re.findall(r"(?:`|bin/|\n)lrm ([a-z]+)", text)) <= set(_VERBS)
    targets = set(re.findall(r"^([a-z_-]+):", pages[0].read_text(), re.M)) | set(figures())
    targets |= {path.parent.name for path in ROOT.glob("experiments/*/config.yaml")}
    made = set(re.findall(r"(?:`|\n)make ([a-z][\w-]+)", text))
    assert len(made) > 10 and not made - targets - {"my_sweep", "my_figure"}


def test_make_trains_what_figure_1_reads(calls):
    projector, mlp, draw = make(ROOT, "fig1", calls, "SCALE=smoke").splitlines()
    options = "--scale|smoke|--seeds|1|--results|results|"
    assert projector == f"experiments/projector/run.py|{options}"
    only = "".join(f"--only|{pattern}|" for pattern in experiments_of("fig1")["mlp_scale"])
    assert mlp == f"experiments/mlp_scale/run.py|{only}{options}"
    assert draw == "-m|analysis.figures|fig1|--scale|smoke|--results|results|"


@pytest.mark.parametrize(
    ("target", "prefix"), [("gdn", "gdn_"), ("steepest", "bm_"), ("scale_vectors", "sv_")]
)
def test_make_names_figures_of_other_texts_that_have_no_runs(calls, target, prefix):
    lines = make(ROOT, target, calls, "SCALE=mini").splitlines()
    [told] = [line for line in lines if line.startswith("left out: ")]
    calls_of_python = [line for line in lines if line != told]
    assert told.startswith(f"left out: {prefix}") and told.endswith("They have no runs at mini")
    assert all(re.match(r"(-m\||experiments/)", line) for line in calls_of_python)


@pytest.mark.parametrize("value, sure", [("1", True), ("yes", True), ("0", False), ("no", False)])
def test_a_switch_of_make_can_be_off(calls, value, sure):
    """The runs of whoever writes YES=no are there afterwards."""
    said = make(ROOT, "clean-runs", calls, f"YES={value}")
    assert ("|--yes|" in said) is sure


def test_make_quotes_what_it_is_given(calls):
    said = make(ROOT, "fig4", calls, "RESULTS=/a b/Anna's", "SEEDS=100-101;7").splitlines()
    assert all("|--results|/a b/Anna's|" in line for line in said) and len(said) == 2
    assert "|--seeds|100-101;7|" in said[0]


@pytest.mark.parametrize("wrong, told", [
    ("SCALE=tinny", "SCALE=tinny is no scale; there are "),
    ("FROM=references", "FROM=references: write runs or reference"),
])  # fmt: skip
def test_make_knows_its_words(calls, wrong, told):
    done = run_make(ROOT, "gdn", calls, wrong)
    assert done.returncode == 2 and told in done.stderr and not done.stdout


@pytest.mark.parametrize(("wrong", "told"), [
    ("SCALE=tiny mini", "SCALE=tiny mini is no scale"), ("SCALE=%", "SCALE=% is no scale"),
    ("ONLY=FPN*", "a figure trains all that it reads"),
])  # fmt: skip
def test_make_refuses_what_it_would_read_otherwise(calls, wrong, told):
    done = run_make(ROOT, "fig4", calls, wrong)
    assert done.returncode == 2 and told in done.stderr and not done.stdout


def test_make_gives_a_pattern_whole_and_cleans_one_experiment(calls):
    assert "|--only|FPN S=8 *|" in make(ROOT, "equilibrium", calls, "ONLY=FPN S=8 *")
    assert "|--experiment|projector|" in make(ROOT, "clean-runs", calls, "EXPERIMENT=projector")


@pytest.mark.parametrize("target", ["all", "steepest"])
def test_make_draws_and_fails_where_runs_failed(calls, tmp_path, target):
    python = tmp_path / "bin" / "python"
    python.write_text(python.read_text() + 'case "$2" in lrm.sweep) exit 3;; esac\n')
    done = run_make(ROOT, target, calls)
    assert done.returncode == 2 and "error: runs failed" in done.stderr
    assert "-m|analysis.figures|" in done.stdout


def test_make_with_results_elsewhere_trains_nothing_that_is_published(calls, tmp_path):
    sweep, drawn, *told = make(ROOT, "all", calls, f"RESULTS={tmp_path}/my results").splitlines()
    assert "frozen_multipliers" not in sweep + drawn and "--source" not in drawn
    assert any("frozen_multipliers" in line and "FROM=runs" in line for line in told)


def test_make_stops_where_training_fails(calls, tmp_path):
    python = tmp_path / "bin" / "python"
    python.write_text(python.read_text() + 'case "$1" in experiments/*) exit 3;; esac\n')
    done = run_make(ROOT, "fig4", calls)
    assert done.returncode == 2 and "Error 3" in done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_make_trains_an_experiment_that_has_no_figure_of_its_name(calls):
    assert make(ROOT, "equilibrium", calls, "SEEDS=3").splitlines() == [
        "experiments/equilibrium/run.py|--scale|tiny|--seeds|3|--results|results|"
    ]


@pytest.mark.parametrize("options", [("FROM=runs",), ("SCALE=smoke",), ()])
def test_make_all_draws_every_figure(calls, options):
    """Of what it trains or, where they are published, ours of the reference.

    Figures that need tuned presets are left out, and named, where no search has run; so are those
    of experiments that are for other scales.
    """
    sweep, *drawn = make(ROOT, "all", calls, *options).splitlines()
    left_out = []
    while drawn[-1].startswith("left out: "):
        left_out += drawn.pop().removeprefix("left out: ").split(".")[0].split()
    scale = "smoke" if "SCALE=smoke" in options else "tiny"
    tuned = (ROOT / "lrm" / "plan" / "presets" / "tuned" / scale).exists()
    elsewhere = ["fig11", "table2"] if scale == "tiny" else []
    published = {path.stem for path in ROOT.glob("results/reference/tiny/figures/*.csv")}
    others = [name for name in figures() if name.startswith(("sv_", "gdn_", "bm_"))]
    others = [name for name in others if options or name not in published]
    assert sorted(left_out) == sorted(
        elsewhere + ([] if tuned else ["fig7", "tuning_mechanism"]) + others
    )
    drawn = {line.endswith("--source|reference|"): line.split("|--scale")[0] for line in drawn}
    own, borrowed = (drawn.get(source, "||").split("|")[2:] for source in (False, True))
    assert sorted([*own, *filter(None, borrowed), *left_out]) == figures()
    paper = [
        name for name in set(figures()) - set(left_out) if re.fullmatch(r"(fig|table)\d+", name)
    ]
    assert set(paper) <= set(own)
    assert set(filter(None, borrowed)) == (published - set(paper) if not options else set())
    trained = re.findall(r"experiments/(\w+)\|", sweep)
    assert trained == list(wanted(own))


def test_figures_wait_for_the_search_that_tunes_their_arms(tree):
    """At a scale without any preset, and where a search has ended with its first tier."""
    copy, _ = tree

    def waiting():
        asked = ("--eval", "asked: ; @echo $(UNTUNED)", "asked", "SCALE=paper")
        return set(make(copy, "--silent", *asked).split())

    assert waiting() == {"fig7", "fig11", "table2", "tuning_controls", "tuning_mechanism"}
    preset = copy / "lrm" / "plan" / "presets" / "tuned" / "paper" / "ADAM_LRM_NONE.yaml"
    preset.parent.mkdir()
    preset.touch()
    assert waiting() == {"fig11", "table2"}
    preset.with_name("ADAM_LRM_FULL.yaml").touch()
    assert waiting() == set()
    shutil.rmtree(preset.parent)


def test_make_scale_vectors_trains_and_draws_the_second_paper(calls):
    """All experiments in one sweep, each once, but for the search of learning rates."""
    sweep, drawn = make(ROOT, "scale_vectors", calls, "SCALE=smoke").splitlines()
    trained = re.findall(r"experiments/(\w+)", sweep)
    every = {path.parent.name for path in ROOT.glob("experiments/sv_*/config.yaml")}
    assert sorted(trained) == sorted(every - {"sv_learning_rates"})
    own = {name for name in figures() if name.startswith("sv_")} - {"sv_learning_rates"}
    assert set(drawn.split("|--scale")[0].split("|")[2:]) == own


def test_what_figures_need():
    assert wanted(["fig4", "symmetry_stress"]) == {
        "symmetry": (), "symmetry_stress": ()
    }  # fmt: skip
    assert (
        wanted(["fig1", "fig8"]) == wanted(["fig8", "fig1"]) == {"projector": (), "mlp_scale": ()}
    )
    # A figure may name the claim that asks for its runs.
    asked = asked_by(ROOT / "experiments/steepest_width", "BM4")[1]
    assert asked and experiments_of("bm_fig5") == {"steepest_width": tuple(asked)}
    # Runs of a part of an experiment are trained with its others.
    assert list(experiments_of("sv_fig3")) == ["sv_decay", "sv_decay/short"]
    assert asked_by(ROOT / "experiments/long_run", "L1")[0] == [
        110,
        111,
        112,
        113,
        114,
        115,
    ]  # 116 is spare
    short = asked_by(ROOT / "experiments/sv_decay", "SV5b")[1]
    both = (*experiments_of("sv_fig3")["sv_decay"], *short)
    assert wanted(["sv_fig3"]) == {"sv_decay": tuple(dict.fromkeys(both))}
    for name in figures():
        module = importlib.import_module(f"analysis.figures.{name}")
        assert list(experiments_of(name)) == list(module.EXPERIMENTS)
    command = [sys.executable, "-m", "analysis.needs", "fig0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown figure 'fig0'; there are bm_fig1, bm_fig2, ")


def test_drawing_the_reference_leaves_it_alone(tmp_path):
    (tmp_path / "reference").symlink_to(ROOT / "results" / "reference")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "reference").rglob("*")}
    command = [sys.executable, "-m", "analysis.figures", "frozen_multipliers", "--source",
               "reference", "--results", str(tmp_path)]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    drawn = tmp_path / "figures" / "tiny" / "reference" / "frozen_multipliers.png"
    assert drawn.stat().st_size > 10_000
    assert before == {path: path.stat().st_mtime_ns for path in before}
