"""``python -m analysis.demo``: the end of ``make demo``, one sentence about its two trainings."""

from __future__ import annotations

from pathlib import Path

from analysis.tables.find import RESULTS, NothingFound, find
from lrm.cli import Parser, a_folder, guarded
from lrm.store.rundir import read_outcome

SCALE, EXPERIMENT = "tiny", "projector"
# A frozen norm scale, and a learned scalar, where weight decay is weak.
ARMS, S, STEPS = ("FPN", "SPN"), 8.0, 500


def main() -> None:
    """Parse the command line and print."""
    parser = Parser(prog="python -m analysis.demo")
    parser.add_argument("--results", type=a_folder, default=RESULTS)
    options = parser.parse_args()
    guarded(lambda: print(sentence(options.results)))


def sentence(results: Path) -> str:
    """Both losses after the decay. Raises UserError where one of the runs is missing."""
    losses = {}
    # Of several, with other settings or another text, the newest counts: it has just ended.
    found = find(EXPERIMENT, SCALE, "runs", results, configuration="all")
    for description, path in sorted(found, key=lambda one: (one[1] / "done.json").stat().st_mtime):
        at = (description["grid"].get("S"), description["settings"]["train"]["steps"])
        if at == (S, STEPS) and description["seed"] == 0:
            losses[description["arm"]] = read_outcome(path)["validation_loss"]
    if missing := [arm for arm in ARMS if arm not in losses]:
        raise NothingFound(f"no finished run of {', '.join(missing)} with {STEPS} steps; make demo")
    frozen, learned = (losses[arm] for arm in ARMS)
    drawn = results / "figures" / SCALE / "reference" / "fig1.png"
    if not drawn.exists():
        drawn = RESULTS / "reference" / SCALE / "figures" / "fig1.png"
    return (
        f"After {STEPS} steps at S = {S:g} the loss is {frozen:.3f} nats with a frozen norm scale "
        f"and {learned:.3f} with a learned one (one seed).\n"
        f"The whole sweep, all published seeds: {drawn}"
    )


if __name__ == "__main__":
    main()
