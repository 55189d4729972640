"""The rooms of the house and the direction of the arrows between them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# From the bottom to the top; a room imports only rooms that stand before it.
LRM = ("errors", "cli", "store", "multipliers", "model", "plan", "data", "optim", "noise", "train",
       "sweep", "exchange", "symmetry", "bench")  # fmt: skip
# The files of the multipliers, from the bottom to the top.
MULTIPLIERS = ("parametrization", "multiplier", "precision", "classes", "layout", "sharding",
               "equations",
               "effective", "writing", "reading", "attach", "wiring", "saving", "groups",
               "roles", "placement", "report", "library", "scale_vectors")  # fmt: skip
# What else a room must not import, though it stands below.
APART = {"train": {"noise"}, "multipliers": {"store", "cli"}, "data": {"model", "multipliers"},
         "exchange": {"sweep"}, "figures": {"claims"}}  # fmt: skip
# Of analysis too. Figures draw what quantities say, and never ask what a claim makes of it.
ANALYSIS = ("needs", "tables", "quantities", "drawing", "claims", "figures", "explore",
            "report", "demo", "publish", "notebooks")  # fmt: skip
# Rooms that the planner and the analysis use: none of them loads torch.
PLANNING = {"errors", "cli", "store", "plan"}


def imports(path: Path) -> set[str]:
    """The modules that a file imports, wherever in the file it does."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def rooms(package: str) -> dict[str, set[str]]:
    """For each room of ``package`` the rooms of lrm and analysis that it imports."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / package).rglob("*.py"):
        own = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
        to = {tuple(name.split(".")[:2]) for name in imports(path)}
        arrows = {pair for pair in to if pair[0] in ("lrm", "analysis") and len(pair) == 2}
        found.setdefault(own, set()).update(map(".".join, arrows - {(package, own)}))
    return found


@pytest.mark.parametrize(("package", "order"), [("lrm", LRM), ("analysis", ANALYSIS)])
def test_arrows_point_downward(package, order):
    graph = rooms(package)
    assert graph.pop("__init__") == (
        {"lrm.errors", "lrm.multipliers"} if package == "lrm" else set()
    )
    assert set(graph) <= set(order), "a room without a place"
    for room, targets in graph.items():
        allowed = {f"{package}.{name}" for name in order[: order.index(room)]}
        allowed -= {f"{package}.{name}" for name in APART.get(room, ())}
        assert {name for name in targets if name.startswith(f"{package}.")} <= allowed, room


def test_only_analysis_reads_both():
    assert not any(name.startswith("analysis") for targets in rooms("lrm").values()
                   for name in targets)  # fmt: skip


def test_analysis_loads_no_trainer():
    for room, targets in rooms("analysis").items():
        of_lrm = {name for name in targets if name.startswith("lrm.")}
        assert of_lrm <= {f"lrm.{name}" for name in PLANNING}, room


def test_the_multipliers_are_read_from_bottom_to_top():
    folder = ROOT / "lrm" / "multipliers"
    assert {path.stem for path in folder.glob("*.py")} == {*MULTIPLIERS, "__init__"}
    for number, name in enumerate(MULTIPLIERS):
        own = {each.split(".")[2] for each in imports(folder / f"{name}.py")
               if each.startswith("lrm.multipliers.")}  # fmt: skip
        assert own <= set(MULTIPLIERS[:number]), name


def test_few_rooms():
    """Beside its own page and ``__init__`` a reader meets at most fourteen entries."""
    entries = {path.name for path in (ROOT / "lrm").iterdir()} - {"__pycache__"}
    assert len(entries - {"__init__.py", "__init__.pyi", "py.typed", "README.md"}) <= 14


# The library at work on a model that this suite knows nothing of.
LIBRARY = """
import lrm, torch
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
lrm.attach_multipliers(model, row={"parametrization": "log"})
optimizer = torch.optim.AdamW(lrm.build_param_groups(model, lr=0.1, weight_decay=0.1))
with lrm.same_weights(model):
    model(torch.ones(5, 4)).sum().backward()
lrm.clip_grad_norm_(model, 1.0)
optimizer.step()
assert set(lrm.effective_weights(model)) == {"0.weight", "1.weight"}
lrm.merge_multipliers(model)
"""
# Torch itself loads numpy, sympy and, with the first optimizer, its compiler.
HEAVY = ("pydantic", "yaml", "pandas", "scipy", "matplotlib", "transformers",
         "lrm.plan", "lrm.model", "lrm.store", "lrm.optim")  # fmt: skip


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import lrm", ("torch", "numpy", "pydantic")),
        (LIBRARY, HEAVY),
        ("import lrm, torch; lrm.attach_multipliers(torch.nn.Linear(2, 2))",
         ("torch.distributed.tensor", "sympy")),
        ("import lrm.sweep.command", ("torch",)),
        # A model's shape is checked by its blocks, which know of it by type alone.
        ("import lrm.model.blocks", ("lrm.model.config", "torch")),
        ("import analysis.figures.__main__", ("torch",)),
        ("import analysis.needs", ("numpy", "pandas", "yaml")),
    ],
)  # fmt: skip
def test_what_is_loaded(code, unwanted):
    check = f"{code}\nimport sys; print([name for name in {unwanted!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stdout + found.stderr
