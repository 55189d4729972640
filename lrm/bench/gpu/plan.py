"""What ``make gpu`` measures, read from ``plan.yaml`` and checked. No torch here."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from lrm.model.config import Strict
from lrm.plan.config import validate
from lrm.plan.experiment import Experiment, Header
from lrm.plan.run import TrainRun
from lrm.plan.yaml import read_yaml

PLAN = Path(__file__).with_name("plan.yaml")


class Timed(Strict):
    """One variant's step at the scale's own batch.

    ``whole_logits``: with torch's cross-entropy of all logits in place of the fused one.
    """

    variant: str
    whole_logits: bool = False


class Shapes(Strict):
    """One variant's step at every combination of a batch (sequences) and a length (tokens)."""

    variant: str
    batch: tuple[int, ...] = Field(min_length=1)
    length: tuple[int, ...] = Field(min_length=1)


class Overhead(Strict):
    """Variants in turn, ``rounds`` times; the first of each group is what the others cost more."""

    rounds: int = Field(ge=1)
    of: dict[str, tuple[str, ...]]


class AtOnce(Strict):
    """Each variant at ``scale`` with so many ``runs`` of it trained at once; 1 is one by itself."""

    scale: str
    variants: tuple[str, ...]
    runs: tuple[int, ...] = Field(min_length=1)


class Projector(Strict):
    """Runs of ``experiments/projector``: its arms at some S, ``workers`` of them at a time."""

    scale: str
    source: str
    S: tuple[float, ...] = Field(min_length=1)
    workers: int = Field(ge=1)


class Measure(Strict):
    """What is measured; sizes are those of ``scale``, but for ``overrides``."""

    scale: str
    tests: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    parity: tuple[str, ...]
    steps: int = Field(ge=1)
    warmup: int = Field(ge=0)
    speed: tuple[Timed, ...]
    shapes: tuple[Shapes, ...]
    profile: tuple[str, ...]
    overhead: Overhead
    at_once: AtOnce
    projector: Projector


class _Rest(Strict):
    """What stands in the file beside the experiment."""

    measure: dict[str, Measure]
    peaks: dict[str, float]
    goal: float = Field(gt=0, le=1)


class GpuPlan:
    """The plan of the day on a GPU, or of the ``toy`` that a CPU can do."""

    def __init__(self, toy: bool, path: Path = PLAN):
        body = read_yaml(path)
        said = {name: body.pop(name, {}) for name in _Rest.model_fields}
        rest: _Rest = validate(_Rest, said, str(path))
        header = {name: body.pop(name) for name in Header.model_fields if name in body}
        self._experiment = Experiment("gpu", path, validate(Header, header, str(path)), body)
        self._peaks = rest.peaks
        self.toy, self.goal = toy, rest.goal
        self.measure = rest.measure["toy" if toy else "gpu"]

    def run(
        self, variant: str, scale: str | None = None, overrides: tuple[str, ...] = ()
    ) -> TrainRun:
        """``variant`` at ``scale``, by default the plan's own; ``overrides`` as in ``--set``.

        On the GPU, or of a toy on the CPU.
        """
        device = "cpu" if self.toy else "cuda"
        given = (*self.measure.overrides, *overrides, f"execution.device={device}")
        pattern = f"{variant} seed=*"
        [run] = self._experiment.runs(scale or self.measure.scale, [0], given, [pattern])
        return run

    def peak(self, device: str) -> float | None:
        """FLOPs per second that the vendor states of a device by its name; None of others."""
        return next((peak for name, peak in self._peaks.items() if name in device), None)
