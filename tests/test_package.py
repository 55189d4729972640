"""The package as others install it: a wheel that needs torch alone, its command and its types."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import lrm

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this tree; it is built from a copy, since building leaves files behind."""
    copy = tmp_path_factory.mktemp("source")
    for folder in ("lrm", "analysis"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    built = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index", "-w", built]
    subprocess.run([sys.executable, "-m", "pip", *build, copy], check=True)
    [found] = built.glob("*.whl")
    return found


def needed_by(name: str, seen: set[str]) -> Iterator[importlib.metadata.Distribution]:
    """The distribution of that name and all that it requires."""
    if name.lower() in seen:
        return
    seen.add(name.lower())
    distribution = importlib.metadata.distribution(name)
    yield distribution
    for line in distribution.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from needed_by(requirement.name, seen)


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    """A virtual environment with the wheel, what it requires, and nothing else; its ``bin``."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    wanted = [Requirement(line).name for line in PROJECT["dependencies"]]
    assert wanted == ["torch"]
    for distribution in needed_by("torch", set()):
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))
    return folder / "bin"


def test_the_wheel_holds_the_package_and_its_pages(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "lrm", f"lrm_suite-{PROJECT['version']}.dist-info"
    }  # fmt: skip
    kinds = {".py", ".pyi", ".md", ".yaml", ".typed"}
    files = {path for path in (ROOT / "lrm").rglob("*") if path.suffix in kinds}
    assert {str(path.relative_to(ROOT)) for path in files} <= set(names)


SCRIPT = """
import sys, torch
import lrm

torch.manual_seed(0)
def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

model = network()
lrm.attach_multipliers(model, implementation=sys.argv[1])
optimizer = torch.optim.AdamW(lrm.build_param_groups(model, lr=0.05, weight_decay=0.1))
x = torch.randn(64, 4)
losses = []
for _ in range(10):
    optimizer.zero_grad()
    with lrm.same_weights(model):
        loss = (model(x) - x[:, :2]).square().mean()
        loss.backward()
    lrm.clip_grad_norm_(model, 1.0)
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0]
torch.save(model.state_dict(), "model.pt")
again = network()
lrm.attach_multipliers(again)
again.load_state_dict(torch.load("model.pt"))
assert torch.equal(again(x), model(x))
before = model(x)
lrm.merge_multipliers(model)
torch.testing.assert_close(model(x), before)
assert list(model.state_dict()) == list(network().state_dict())
for name in ("numpy", "pandas", "pydantic", "yaml", "pyarrow", "scipy", "analysis"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise AssertionError(f"the environment is not clean: {name}")
assert "venv" in lrm.__file__ and lrm.__version__
from lrm.optim import SteepestDescent
optimizer = SteepestDescent(model, lr=0.1)
(model(x) - x[:, :2]).square().mean().backward()
optimizer.step()
print("done")
"""


@pytest.mark.parametrize("implementation", ["forward", "optimizer"])
def test_the_wheel_trains_where_only_torch_is(clean, implementation, tmp_path):
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [clean / "python", "-c", SCRIPT, implementation],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr


def test_the_command_names_the_extra_that_it_needs(clean, tmp_path):
    def call(*arguments):
        found = subprocess.run(
            [clean / "lrm", *arguments], cwd=tmp_path, capture_output=True, text=True
        )
        assert "Traceback" not in found.stderr
        return found

    shown = call("--help")
    assert shown.returncode == 0 and "symmetries of placements" in shown.stdout
    verbs = {"probe": "evaluation", "export": "evaluation", "evaluate": "evaluation",
             "adopt": "evaluation", "symmetries": "suite"}  # fmt: skip
    for verb, extra in verbs.items():
        assert extra in PROJECT["optional-dependencies"]
        found = call(verb, "anything")
        *warnings, line = found.stderr.splitlines()  # torch's own, of numpy that is not there
        assert found.returncode == 2 and not any("error:" in warning for warning in warnings)
        assert line.startswith(f"error: lrm {verb} needs ")
        assert line.endswith(f"; run pip install 'lrm-suite[{extra}]'")
    assert call("prob").returncode == 2


CALLER = """
import torch
from torch import nn

import lrm

model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
handle: lrm.Attached = lrm.attach_multipliers(
    model,
    {"preset": "all", "0.weight": [(0, 4, "row_column"), (4, 8, "scalar")]},
    implementation="optimizer",
    row={"parametrization": "log"},
)
optimizer = torch.optim.AdamW(
    lrm.build_param_groups(model, lr=1e-3, weight_decay=0.1, by_kind={"matrix": {"lr": 3e-3}})
)
with lrm.same_weights(model):
    loss: torch.Tensor = model(torch.ones(3, 4)).sum()
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
norm: torch.Tensor = lrm.clip_grad_norm_(model, 1.0)
optimizer.step()
norms: dict[str, float] = handle.norms()
weights: dict[str, torch.Tensor] = lrm.effective_weights(model)
state = model.state_dict()
plain: nn.Module = lrm.merge_multipliers(model)


def kind(name: str, module: nn.Module, parameter: nn.Parameter) -> str | None:
    return "row" if parameter.dim() == 2 else None


try:
    lrm.attach_multipliers(plain, **lrm.saved_placement(state))
    lrm.attach_multipliers(plain, kind)
except lrm.UserError as error:
    print(error, lrm.__version__)
"""


def test_a_caller_is_checked_by_mypy(clean, tmp_path):
    """Against the wheel's types and torch's own; a slip is found."""
    pytest.importorskip("mypy", reason="mypy is not installed: types of callers were not checked")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", clean / "python"]

    def check(text: str) -> str:
        (tmp_path / "caller.py").write_text(text)
        found = subprocess.run(
            [*command, "caller.py"], cwd=tmp_path, capture_output=True, text=True
        )
        assert not found.stderr
        return found.stdout

    assert check(CALLER).startswith("Success"), check(CALLER)
    slip = check(CALLER.replace("lr=1e-3, ", 'lr="1e-3", ').replace("clip_grad_norm_", "clip"))
    assert 'Module has no attribute "clip"' in slip
    assert 'Argument "lr" to "build_param_groups" has incompatible type "str"' in slip


def test_the_command_does_what_its_modules_do():
    found = subprocess.run(
        [warm.python, "-c", "from lrm.cli import main; main()", "symmetries", "irredundant",
         "--layers", "1"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("irredundant: ") and "0 symmetries derived" in found.stdout


def test_a_clone_that_is_not_installed_says_so(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert lrm.__version__ == "not installed"


def test_what_is_locked_runs_on_the_oldest_python_that_is_promised():
    [oldest] = [each.version for each in SpecifierSet(PROJECT["requires-python"])]
    for line in (ROOT / "requirements.lock").read_text().split():
        name, _, version = line.partition("==")
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra that is not installed here
        if found.version.partition("+")[0] == version:
            needed = SpecifierSet(found.metadata["Requires-Python"] or "")
            assert f"{oldest}.0" in needed, f"{line} needs Python {needed}"
