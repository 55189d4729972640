"""The guide of experiments/README.md, as a reader would follow it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from analysis.figures import fig1

ROOT = Path(__file__).parents[1]


def test_the_guide_trains_and_draws(tmp_path):
    """On a copy of the tree: its files as printed, then its commands as printed."""
    for folder in ("lrm", "analysis", "experiments"):
        shutil.copytree(ROOT / folder, tmp_path / "suite" / folder)
    guide = (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")
    guide = guide.split("<!-- guide")[1].split("<!-- end of the guide")[0]
    files = re.findall(r"`([\w/.]+)`\n```\w+\n(.*?)```", guide, re.S)
    assert len(files) == 3
    for name, text in files:
        path = tmp_path / "suite" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    [commands] = re.findall(r"```sh\n(.*?)```", guide, re.S)
    for command in commands.strip().splitlines():
        words = command.split()
        assert words[0] == "python"
        done = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=tmp_path / "suite",
            env={"PYTHONPATH": str(tmp_path / "suite"), "PATH": "", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    png = tmp_path / "suite" / "results" / "figures" / "smoke" / "my_figure.png"
    assert png.stat().st_size > 10_000


def test_make_trains_what_figure_1_reads():
    makefile = (ROOT / "Makefile").read_text()
    patterns = fig1.EXPERIMENTS["mlp_scale"]
    assert " ".join(f"--only '{pattern}'" for pattern in patterns) in makefile


def test_make_all_draws_every_figure():
    makefile = (ROOT / "Makefile").read_text()
    named = re.findall(r"^(?:PAPER|OURS) := (.*)$", makefile, re.M)
    figures = {path.stem for path in (ROOT / "analysis" / "figures").glob("[a-z]*.py")}
    assert set(" ".join(named).split()) == figures


def test_drawing_the_reference_leaves_it_alone(tmp_path):
    (tmp_path / "reference").symlink_to(ROOT / "results" / "reference")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "reference").rglob("*")}
    command = [sys.executable, "-m", "analysis.figures", "frozen_multipliers", "--source",
               "reference", "--results", str(tmp_path)]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    drawn = tmp_path / "figures" / "tiny" / "reference" / "frozen_multipliers.png"
    assert drawn.stat().st_size > 10_000
    assert before == {path: path.stat().st_mtime_ns for path in before}
