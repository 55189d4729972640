"""Every notebook runs from top to bottom on smoke-scale runs, and is committed without outputs."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PARAMETERS = """
from pathlib import Path
RESULTS, SCALE, SOURCE = Path({results!r}), "smoke", "{source}"
"""

per_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """Two seeds of the projector experiment at the smoke scale, one of the MLP's with Adam."""
    folder = tmp_path_factory.mktemp("notebook_results")
    for name, *options in (("projector", "--seeds", "2"), ("mlp_scale", "--only", "*ADAM*")):
        command = [sys.executable, f"experiments/{name}/run.py", "--scale", "smoke", *options]
        command += ["--results", str(folder)]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr
    return folder


def outputs(notebook):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [output for cell in cells for output in cell.outputs]


def test_there_are_notebooks():
    assert NOTEBOOKS


@per_notebook
def test_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not outputs(notebook)
    assert all(cell.execution_count is None for cell in notebook.cells if "outputs" in cell)
    assert path.stat().st_size < 50_000


@per_notebook
def test_runs(path, results):
    notebook = nbformat.read(path, as_version=4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert first.metadata.tags == ["parameters"]
    first.source = PARAMETERS.format(results=str(results), source="runs")
    # Any cell that raises fails the test, with its traceback.
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    images = [output for output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert len(images) >= 3
    printed = "".join(o.text for o in outputs(notebook) if o.output_type == "stream")
    assert f"source: runs, in {results}" in printed
