"""Notebooks hold prose and short calls, and run on the reference and on a user's own runs.

They are committed with their outputs, which are small and name no folder of a machine.
"""

import itertools
import json
import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
import warm

from analysis import notebooks
from analysis.quantities.stats import with_interval
from analysis.tables.run_list import RUN_LIST
from lrm.errors import UserError

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PARAMETERS = """
from pathlib import Path
RESULTS, SCALE, SOURCE = Path({results!r}), "smoke", "{source}"
"""
# Tables are read and drawn in seconds, unless what trains is loaded too.
LOADED = """
import sys
print("loaded:", sorted({"torch", "transformers"} & sys.modules.keys()))
"""
# Of code in a cell; imports are the longest.
MOST_LINES = 20
ABSOLUTE_PATH = re.compile(r"(?<![\w./<:])(?:/[\w.-]+){2,}|[A-Z]:\\")

# One trains a layer, and one finds symmetries in a model.
TRAINS = ("method", "symmetry")

# Experiments without runs, so that a notebook says so.
LEFT_OUT = ("mlp_scale_design", "frozen_multipliers", "symmetry_placement", "gradient_noise")
# What is said then.
SAID = {
    "mlp_scale": "no variants to show: no finished runs of mlp_scale_design",
    "symmetry": "no placements to show: no finished runs of symmetry_placement",
    "grad_clipping": "no noise to show: no finished runs of gradient_noise",
    "scale_diversity": "no frozen multipliers to show: no finished runs of frozen_multipliers",
}

per_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(scope="session")
def results(tmp_path_factory, smoke_results):
    """A user's own runs at the smoke scale, but for some experiments."""
    folder = tmp_path_factory.mktemp("notebooks") / "results"
    return shutil.copytree(smoke_results, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code(notebook) for output in cell.outputs]


def images(notebook):
    return [o for o in outputs(notebook) if "image/png" in o.get("data", {})]


def printed(notebook):
    return "".join(o.text for o in outputs(notebook) if o.output_type == "stream")


def read(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def assert_fit_to_store(path):
    """What is shown is small, all there, of no machine and needs no kernel."""
    notebook = read(path)
    assert path.stat().st_size <= 600_000
    counts = [cell.execution_count for cell in code(notebook)]
    assert counts == list(range(1, len(counts) + 1)), "not run from top to bottom"
    # An experiment of which nothing is published says so.
    assert len(images(notebook)) >= 3 or "nothing to show: there is no" in printed(notebook)
    assert notebook.metadata.language_info == {"name": "python"}
    assert "widgets" not in notebook.metadata
    assert not any("execution" in cell.metadata for cell in notebook.cells)
    for output in outputs(notebook):
        data = dict(output.get("data", {}))
        assert data.keys() <= {"text/plain", "text/html", "image/png"}
        data.pop("image/png", None)
        text = output.get("text", "") + "".join(data.values())
        assert output.output_type != "error" and output.get("name") != "stderr", text
        for machines in (str(ROOT), sys.prefix, str(Path.home()), " at 0x"):
            assert machines == "/" or machines not in text
        assert not ABSOLUTE_PATH.search(text), text


def test_there_are_notebooks():
    assert NOTEBOOKS


@per_notebook
def test_prose_and_short_calls(path):
    notebook = read(path)
    assert code(notebook)[0].metadata.tags == ["parameters"]
    for cell in code(notebook):
        lines = [line for line in cell.source.splitlines() if line.strip()]
        assert len(lines) <= MOST_LINES, cell.source
        assert not any(line.startswith("class ") for line in lines)
    assert sum(len(cell.source) for cell in notebook.cells) < 20_000


@per_notebook
def test_every_figure_is_explained(path):
    """Below each stands what is seen and what it means; one cell is there to be changed."""
    cells = read(path).cells
    for cell, below in itertools.pairwise(cells):
        if any("image/png" in o.get("data", {}) for o in cell.get("outputs", [])):
            said = re.fullmatch(r"\*\*What you see\.\*\* (.+)\n\n\*\*What it means\.\*\* (.+)",
                                below.source, re.S)  # fmt: skip
            assert said, f"{cell.source}\nis followed by\n{below.source}"
    assert sum(cell.source.startswith("## Now change this") for cell in cells) == 1


def test_the_list_has_every_notebook_and_they_know_every_experiment():
    page = (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\d+\. \[(\w+)\]\(\1\.ipynb\)", page, re.M)
    assert sorted(listed) == [path.stem for path in NOTEBOOKS]
    # Its table of experiments is stored: is it today's?
    shown = "".join(o.get("data", {}).get("text/plain", "")
                    for o in outputs(read(ROOT / "notebooks" / "explore.ipynb")))  # fmt: skip
    for folder in (ROOT / "results" / "reference" / "tiny").glob(f"*/{RUN_LIST}"):
        assert re.search(rf"^{folder.parent.name} ", shown, re.M), "make notebooks"


@per_notebook
def test_outputs_are_stored(path):
    assert_fit_to_store(path)


@pytest.fixture
def warm_kernels(monkeypatch):
    """Kernels start with what most notebooks import; a fresh one spends two seconds on that."""

    class Manager(notebooks.Manager):
        def format_kernel_cmd(self, *arguments, **named):
            return [warm.kernels, *super().format_kernel_cmd(*arguments, **named)[1:]]

    monkeypatch.setattr(notebooks, "Manager", Manager)


@pytest.mark.notebooks
@per_notebook
def test_runs_on_the_reference(path, tmp_path, warm_kernels):
    before = read(path)
    before.cells.append(nbformat.v4.new_code_cell(LOADED))
    copy = tmp_path / path.name
    nbformat.write(before, copy)
    notebooks.run(copy)
    assert_fit_to_store(copy)
    after = read(copy)
    assert [cell.source for cell in after.cells] == [cell.source for cell in before.cells]
    assert "source: reference, in results\n" in printed(after)
    needed = ["torch"] if path.stem in TRAINS else []
    assert f"loaded: {needed}\n" in printed(after)


@pytest.mark.notebooks
@per_notebook
def test_runs_on_own_runs(path, tmp_path, results, warm_kernels):
    notebook = read(path)
    code(notebook)[0].source = PARAMETERS.format(results=str(results), source="runs")
    copy = tmp_path / path.name
    nbformat.write(notebook, copy)
    notebooks.run(copy)
    assert len(images(read(copy))) >= (2 if path.stem in SAID else 3)
    assert f"source: runs, in {results}" in printed(read(copy))
    assert SAID.get(path.stem, "") in printed(read(copy))


def test_numbers_in_tables():
    assert with_interval([0.5]) == "0.500"
    assert with_interval([1.0, 1.0, 1.0], digits=1) == "1.0 [1.0, 1.0]"
    assert with_interval([-1.0, 1.0]) == "0.000 [-12.706, 12.706]"


def test_messages_are_looked_for_again():
    """Or a notebook may stand still for as long as a cell may take."""
    manager = notebooks.Manager()
    manager.write_connection_file()
    try:
        client = manager.client()
        assert isinstance(client.shell_channel, notebooks.Channel)
        assert isinstance(client.iopub_channel, notebooks.Channel)
        # By files: a free port, once chosen, may be another process's when the kernel binds it.
        assert client.shell_channel.socket.LAST_ENDPOINT.startswith(b"ipc://")
    finally:
        manager.cleanup_connection_file()


def test_what_fails_or_is_large_is_not_stored(tmp_path, monkeypatch):
    path = tmp_path / "small.ipynb"
    cells = [nbformat.v4.new_code_cell(source) for source in ("print('a')", "print(1 / 0)")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    before = path.read_bytes()
    with pytest.raises(UserError, match="small.ipynb: a cell fails with ZeroDivisionError: div"):
        notebooks.run(path)
    assert path.read_bytes() == before
    nbformat.write(nbformat.v4.new_notebook(cells=cells[:1]), path)
    before = path.read_bytes()
    monkeypatch.setattr(notebooks, "LARGEST", 100)
    with pytest.raises(UserError, match="over 0: show fewer"):
        notebooks.run(path)
    assert path.read_bytes() == before
    with pytest.raises(UserError, match="there is no notebook"):
        notebooks.run(tmp_path / "none.ipynb")


def test_the_command_says_what_each_took(tmp_path, capsys, monkeypatch):
    path = tmp_path / "widget.ipynb"
    source = "import ipywidgets\nprint('a')\nipywidgets.IntSlider()"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    nbformat.write(notebook, path)
    monkeypatch.setattr(sys, "argv", ["analysis.notebooks", str(path)])
    notebooks.main()
    found = capsys.readouterr()
    assert re.fullmatch(r"widget.ipynb: [\d.]+ s, [\d.]+ s of CPU, \d+ kB\n", found.out)
    once = path.read_bytes()
    assert b"where a kernel runs" in once and b"widget-view" not in once
    assert json.loads(once)["metadata"]["language_info"] == {"name": "python"}
    notebooks.main()
    assert path.read_bytes() == once
