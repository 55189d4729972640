"""From an experiment's YAML to its list of runs. No torch here.

Order of precedence: type defaults, ``use``, experiment, scale, arm, the arm's axes, grid point,
``--set``. Settings merge key by key; rules are appended, and the last match wins field by field.
``$name`` stands for a point of the grid, or for one of the ``values`` that a layer defines (a scale
may redefine them). ``lrm/README.md`` shows how grids, axes and groups are written.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import importlib
import inspect
import itertools
import math
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lrm.errors import UserError, shown
from lrm.model.config import Strict
from lrm.plan.arms import Arm, read_arms
from lrm.plan.config import Execution, Settings, validate
from lrm.plan.cost import Cost
from lrm.plan.evaluation import Evaluation, EvaluationRun
from lrm.plan.groups import spelled_out
from lrm.plan.run import Brownian, BrownianRun, LayerRun, NoiseRun, Run, SeededLayerRun, TrainRun
from lrm.plan.scales import SCALES
from lrm.plan.search import Search
from lrm.plan.widths import Width, at_width, keep_stages
from lrm.plan.yaml import (
    LAYER,
    NotTuned,
    check_keys,
    check_name,
    check_shapes,
    expand,
    layer_of,
    mapping,
    merge,
    names_in,
    parse_override,
    read_yaml,
    substitute,
)

MOST_RUNS = 20_000  # in one plan
# Columns of the tidy frame, and the name that presets are found by.
_RESERVED = ("experiment", "run", "kind", "arm", "seed", "scale", "corpus", "step", "tensor",
             "layer", "stat", "value", "id", "label", "description")  # fmt: skip


class NoSuchRun(UserError):
    """No run that an experiment asks for at a scale has such a label, of which ``patterns`` are."""

    def __init__(self, text: str, patterns: Collection[str] = ()):
        super().__init__(text)
        self.patterns = tuple(patterns)


class After(Strict):
    """An arm's multipliers begin where those of another arm ended, of the same point and seed.

    ``noise``: where one draw of that arm's Brownian motion ended, which must walk them.
    """

    arm: str
    noise: bool = False


class Header(Strict):
    """The descriptive part of an experiment's YAML."""

    title: str
    # Its place where claims of all experiments are listed; without one it comes last.
    order: int | None = None
    # Tensors whose course over the training is published of every seed, not of the first alone.
    courses: tuple[str, ...] = ()
    # Where vectors are published of other seeds than the first: claims may read fewer steps.
    vectors_at: tuple[Literal["start", "constant", "end"], ...] = ("start", "constant", "end")
    brownian: Brownian | None = None
    # The class of the arms' runs, ``package.module:Class``.
    run: str = f"{TrainRun.__module__}:{TrainRun.__qualname__}"
    # Its arms are where a search for hyperparameters begins (lrm.sweep.tuning). ``scales`` in it
    # changes what it says for one scale.
    search: dict[str, Any] | None = None
    # The experiment whose search found the presets of its arms.
    tuned_by: str | None = None
    # The experiment of which it is the better one: claims of that number are its own, once judged.
    replaces: str | None = None
    # The tasks with which the snapshots of its runs are evaluated (lrm.plan.evaluation).
    # ``scales`` in it changes what it says for one scale.
    evaluation: dict[str, Any] | None = None
    # The scales that it is made for.
    at: tuple[str, ...] = SCALES


# What stands in the YAML and is no setting of a run.
_OF_THE_FILE = {*LAYER, "axes", "scales", *Header.model_fields} - {
    *Settings.model_fields,
    "execution",
    "cost",
}


@dataclass(frozen=True)
class Experiment:
    """An experiment's YAML, read and checked; ``runs`` expands it."""

    name: str
    path: Path
    header: Header
    body: dict[str, Any]

    def runs(
        self,
        scale: str,
        seeds: list[int],
        overrides: Collection[str] = (),
        only: Collection[str] = (),
    ) -> list[Run]:
        """Every run at ``scale``: arms × grid × seeds, then the Brownian motions.

        Arms that wait for a search (``untuned``) have none. Raises UserError for an unknown scale
        or key, an override that does not parse, or a rule that matches nothing; NotTuned where all
        arms that are asked for wait; NoSuchRun where patterns of labels, ``only``, select no run.
        So does one of several patterns that selects none, unless it does at another scale: figures
        and claims name what a scale may lack.
        """
        self.check_scale(scale)
        runs: list[Run] = []
        axes: set[str] = set()
        used: set[str] = set()
        noise = self.header.brownian
        waiting: dict[str, NotTuned] = {}
        for name in self.arms_at(scale):
            walks = noise is not None and matches_any(name, noise.arms)
            try:
                layers, points = self._points(scale, name)
            except NotTuned as error:
                waiting[name] = error
                continue
            if len(runs) + len(points) * len(seeds) > MOST_RUNS:
                raise UserError(
                    f"{self.path}: more than {MOST_RUNS} runs; give fewer seeds or grid points"
                )
            axes |= points[0][0].keys()
            used |= names_in([layer for layer, _ in layers])
            for point, values in points:
                names = {"scale": scale, "arm": name, **point, **values}
                settings = self._settings(layers, names, overrides)
                given = (self.name, scale, name, point)
                if walks and settings[0].train.start is not None:
                    raise UserError(
                        f"{self.path}: brownian: {name} has train.start, and noise alone would "
                        "begin with other norms; leave it out of brownian.arms"
                    )
                if not (walks and noise.linear_layers):
                    runs += [self.run_class(*given, seed, *settings) for seed in seeds]
                if walks and noise.seeded:
                    runs += [SeededLayerRun(*given, s, *settings, brownian=noise) for s in seeds]
                elif walks:
                    # Brownian motion draws its own seeds: one run serves all of the arm's.
                    walk = LayerRun if noise.linear_layers else BrownianRun
                    runs.append(walk(*given, 0, *settings, brownian=noise))
        if unused := sorted(axes - used):
            raise UserError(
                f"{self.path}: grid.{unused[0]}: no setting refers to ${unused[0]}; use or drop it"
            )
        if not runs:
            for error in waiting.values():
                raise error
            raise UserError(f"{self.path}: no arm is for the scale {scale}; choose another")
        runs = [self._with_predecessor(run, runs) for run in runs]
        evaluation = self.evaluation(scale)
        if evaluation is not None:
            runs += [EvaluationRun.of(run, evaluation) for run in runs if run.trains]
        if not only:
            return runs
        chosen = [run for run in runs if matches_any(run.label, only)]
        awaited = [f"{name} seed={seed}" for name in waiting for seed in seeds]
        idle = selecting_none([run.label for run in runs], only)
        missed = selecting_none(awaited, idle)
        if chosen and missed:
            missed = self._nowhere(missed, scale, seeds)
        elif not chosen:
            for name, error in waiting.items():
                if any(matches_any(f"{name} seed={seed}", only) for seed in seeds):
                    raise error
        if missed:
            said = " ".join(f"--only {shown(pattern)}" for pattern in missed)
            raise NoSuchRun(f"{said} selects no run; labels look like {runs[0].label!r}", missed)
        return chosen

    def _nowhere(self, patterns: Collection[str], scale: str, seeds: list[int]) -> list[str]:
        """Those of ``patterns`` that select no run at any scale but ``scale`` either."""
        left = list(patterns)
        for other in self.header.at:
            if left and other != scale:
                with suppress(UserError):  # that scale has faults, or arms, of its own
                    left = selecting_none([run.label for run in self.runs(other, seeds)], left)
        return left

    @functools.cached_property
    def _unused_values(self) -> list[str]:
        """Names of ``values`` in the YAML that nothing refers to, of any arm at any scale."""
        scales = (self.body.get("scales") or {}).values()
        arms = [layer for arm in self.arms.values() for layer, _ in arm.layers]
        layers = [layer or {} for layer in (self.body, *scales, *arms)]
        left = {name for layer in layers for name in mapping(layer, "values", str(self.path))}
        left -= names_in(self.body)
        for scale in self.header.at if left else ():  # presets may refer to them
            for name in self.arms_at(scale):
                try:
                    left -= names_in([layer for layer, _ in self._points(scale, name)[0]])
                except UserError:  # what that arm refers to is not known
                    return []
        return sorted(left)

    def check_names(self) -> None:
        """Raise UserError for a value that nothing refers to, and for an experiment not beside it.

        Not in ``runs``: a benchmark takes a part of its file alone, and a copy has no neighbours.
        """
        if unused := self._unused_values:
            raise UserError(
                f"{self.path}: values.{unused[0]}: no setting refers to ${unused[0]}; use or drop "
                "it"
            )
        for key in ("tuned_by", "replaces"):
            name = getattr(self.header, key)
            beside = self.path.resolve().parents[1]
            if name is not None and not (beside / name / "config.yaml").is_file():
                raise UserError(
                    f"{self.path}: {key}: there is no experiment {shown(name)} in {beside}; "
                    f"correct the name, or leave {key} out"
                )

    def check_scale(self, scale: str) -> None:
        """Raise UserError where it has no runs at ``scale``."""
        check_scale(scale)
        if scale not in self.header.at:
            raise UserError(
                f"{self.path}: there are no runs at {scale}; use {', '.join(self.header.at)}"
            )

    def _with_predecessor(self, run: Run, runs: list[Run]) -> Run:
        said = self.arms[run.arm].said.get("after")
        if said is None or isinstance(run, NoiseRun):
            return run
        where = f"{self.path}: arms.{run.arm}: after"
        after = validate(After, said, where)
        for other in runs:
            seed = other.seed if after.noise else run.seed
            found = (other.arm, other.grid, other.seed, isinstance(other, BrownianRun))
            if found == (after.arm, run.grid, seed, after.noise):
                if self.arms[after.arm].said.get("after"):
                    raise UserError(f"{where}: {after.arm!r} itself comes after another arm")
                return dataclasses.replace(run, after=other)
        kind = "no Brownian motion of arm" if after.noise else "no arm"
        raise UserError(f"{where}: {kind} {after.arm!r} with the same point of the grid")

    @functools.cached_property
    def run_class(self) -> type[Run]:
        """The class of the arms' runs; UserError where the YAML names none."""
        module, _, name = self.header.run.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise UserError(
                f"{self.path}: run: {self.header.run!r} cannot be imported ({error}); write "
                "package.module:Class"
            ) from None
        if not (isinstance(found, type) and issubclass(found, Run)) or _needs_more(found):
            raise UserError(f"{self.path}: run: {self.header.run!r} is no class of runs")
        return found

    @functools.cached_property
    def arms(self) -> dict[str, Arm]:
        """The arms by name; see ``lrm.plan.arms``."""
        return read_arms(self.body, str(self.path))

    def search(self, scale: str) -> Search:
        """The rules of its search at ``scale``; UserError where it has none, or a wrong one."""
        said = self.header.search
        if said is None:
            raise UserError(f"{self.path}: search is missing; experiments/tuning_search has one")
        return self._at_scale(Search, said, scale, f"{self.path}: search")

    def evaluation(self, scale: str) -> Evaluation | None:
        """How its runs are evaluated at ``scale``; UserError where that is said wrongly."""
        said = self.header.evaluation
        if said is None:
            return None
        return self._at_scale(Evaluation, said, scale, f"{self.path}: evaluation")

    @staticmethod
    def _at_scale(kind: type[Strict], said: dict[str, Any], scale: str, where: str) -> Any:
        """Validate ``said`` with what stands in it for one scale."""
        scales = mapping(said, "scales", where)
        _check_scales(list(scales), f"{where}.scales")
        own = mapping(scales, scale, f"{where}.scales")
        said = {key: value for key, value in said.items() if key != "scales"}
        return validate(kind, merge(said, own), where)

    def arms_at(self, scale: str) -> dict[str, Arm]:
        """The arms that there are at ``scale``; UserError where there is no such scale."""
        check_scale(scale)
        return {
            name: arm for name, arm in self.arms.items() if scale in arm.said.get("scales", SCALES)
        }

    def untuned(self, scale: str) -> list[str]:
        """Arms at ``scale`` whose preset no search has found yet."""
        found = []
        for name in self.arms_at(scale):
            try:
                self._points(scale, name)
            except NotTuned:
                found.append(name)
        return found

    def settings(
        self,
        scale: str,
        arm: str,
        layer: dict[str, Any] | None = None,
        overrides: Collection[str] = (),
    ) -> tuple[Settings, Execution, Cost]:
        """What an arm without a grid is at ``scale``, with one more layer of settings on it.

        Raises UserError as ``runs`` does, and where the arm has a grid.
        """
        check_scale(scale)
        layers, points = self._points(scale, arm)
        if len(points) > 1:
            raise UserError(f"{self.path}: arm {arm} has a grid; make arms of its points")
        layers = [*layers, (layer or {}, f"{self.path}: arm {arm}")]
        names = {"scale": scale, "arm": arm, **points[0][0], **points[0][1]}
        return self._settings(layers, names, overrides)

    def _points(self, scale: str, name: str) -> tuple[list[tuple], list[tuple[dict, dict]]]:
        """The arm's layers, and every point of its grid with what its names stand for.

        An axis with named values has their names in the point.
        """
        body = {key: value for key, value in self.body.items() if key not in ("arms", "axes")}
        scales = body.pop("scales", None) or {}
        place = str(self.path)
        arm = self.arms[name].layers
        own = [(body, place), (scales.get(scale) or {}, f"{place}: scales.{scale}"), *arm]
        names = {"scale": scale, "arm": name}
        layers = [one for layer, where in own for one in expand(layer, names, where)]
        grid: dict[str, Any] = {}
        for layer, where in layers:
            for axis, values in mapping(layer, "grid", where).items():
                _check_axis(axis, values, where)
                grid[axis] = values
        if math.prod(map(len, grid.values())) > MOST_RUNS:
            raise UserError(f"{place}: grid: more than {MOST_RUNS} points; give fewer values")
        points = []
        for values in itertools.product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            named = {a: grid[a][v] for a, v in point.items() if isinstance(grid[a], dict)}
            points.append((point, named))
        return layers, points

    def _settings(self, layers, given, overrides) -> tuple[Settings, Execution, Cost]:
        try:
            return self._composed(layers, given, overrides, overrides)
        except UserError:
            if len(overrides) < 2:
                raise
        # All are to blame, unless without one of them the others would do.
        for override in overrides:
            others = [other for other in overrides if other is not override]
            try:
                self._composed(layers, given, others, others)
            except UserError:
                continue
            return self._composed(layers, given, overrides, [override])
        return self._composed(layers, given, overrides, overrides)

    def _composed(self, layers, given, overrides, blamed) -> tuple[Settings, Execution, Cost]:
        """The settings with ``overrides``; an error names those that are ``blamed``."""
        names: dict[str, Any] = {}
        for layer, where in layers:
            own = mapping(layer, "values", where)
            if taken := sorted({"scale", "arm"} & own.keys()):
                raise UserError(
                    f"{where}: values.{taken[0]}: that name stands for the {taken[0]} of the run; "
                    "choose another"
                )
            names |= own
        names |= given
        merged: dict[str, Any] = {}
        rules: list[Any] = []
        for layer, where in layers:
            layer = substitute(layer, names, where)
            check_shapes(layer, where)
            rules += spelled_out(layer.pop("rules", []))
            for name in ("use", "grid", "values", "after", "scales"):
                layer.pop(name, None)
            merged = merge(merged, layer)
        place = str(self.path)
        width = merged.pop("width", None)
        planned, overridden = merged, dict[str, Any]()
        for override in overrides:
            key = override.partition("=")[0].partition(".")[0].strip()
            if key in _OF_THE_FILE:
                raise UserError(
                    f"--set {shown(override)}: {key} is no setting of a run; change it in the YAML"
                )
            layer = parse_override(override)
            merged, overridden = merge(merged, layer), merge(overridden, layer)
        if blamed:
            said = " ".join(f"--set {shown(override, quoted=False)}" for override in blamed)
            place = f"{place} with {said}"
        merged = keep_stages(planned, merged, overridden)
        if width is not None:
            where = f"{place}: width"
            merged = at_width(merged, validate(Width, width, where), where)
        execution = validate(Execution, merged.pop("execution", {}), f"{place}: execution")
        cost = validate(Cost, merged.pop("cost", {}), f"{place}: cost")
        settings = validate(Settings, {**merged, "rules": rules}, place)
        self._check_size(layers, settings)
        return settings, execution, cost

    def _check_size(self, layers, settings: Settings) -> None:
        """Raise UserError where nothing says how large a model is that is trained.

        The defaults are half a billion parameters, which the paper's scale alone means.
        """
        theory = settings.theory
        has_model = self.run_class.trains if theory is None else theory.of_model
        stated = "hidden_size" in settings.model.model_fields_set
        presets = [name for layer, _ in layers for name in layer.get("use", [])]
        if has_model and not stated and not any(name.startswith("scale/") for name in presets):
            raise UserError(
                f"{self.path}: nothing says how large the model is; write use: [scale/$scale], or "
                "model.hidden_size and its other sizes"
            )


def load(path: Path) -> Experiment:
    """Read ``experiments/<name>/config.yaml``; the experiment is named by its directory.

    Raises UserError, opened by the path, for what is missing, misspelt or of another type.
    """
    body = read_yaml(path)
    header = {key: body.pop(key) for key in Header.model_fields if key in body}
    experiment = Experiment(
        path.resolve().parent.name, path, validate(Header, header, str(path)), body
    )
    if not experiment.header.at:
        raise UserError(f"{path}: at: no scale; write a list such as [tiny], or leave at out")
    _check_scales(list(experiment.header.at), f"{path}: at")
    check_keys(body, (*LAYER, "axes", "scales", *Header.model_fields), str(path))
    for group, allowed in (("arms", (*LAYER[:-1], "after", "scales")), ("scales", LAYER[:-1])):
        for name, layer in mapping(body, group, str(path)).items():
            where = f"{path}: {group}.{name}"
            layer = layer_of(layer, allowed, where)
            if group == "scales":
                _check_scales([name], str(path))
            else:
                _check_scales(layer.get("scales", []), f"{where}: scales")
    arms, noise = experiment.arms, experiment.header.brownian
    for arm in arms:
        check_name(arm, f"{path}: arms")
    for pattern in noise.arms if noise else ():
        if not any(matches_any(arm, [pattern]) for arm in arms):
            raise UserError(f"{path}: brownian.arms names {pattern!r}, which is no arm")
    return experiment


def _needs_more(found: type[Run]) -> bool:
    """Whether a run of this class cannot be made from what an arm says."""
    return inspect.isabstract(found) or issubclass(found, NoiseRun)


def matches_any(name: str, patterns: Collection[str]) -> bool:
    """Whether a label, or the name of an arm, matches one of these patterns, as ``--only`` does."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def selecting_none(names: Collection[str], patterns: Collection[str]) -> list[str]:
    """Those of ``patterns`` that match none of the labels, or names of arms."""
    return [one for one in patterns if not any(matches_any(name, [one]) for name in names)]


def check_scale(scale: str) -> None:
    """Raise UserError where there is no such scale."""
    if scale not in SCALES:
        raise UserError(f"unknown scale {shown(scale)}; choose one of {', '.join(SCALES)}")


def _check_scales(names: Any, where: str) -> None:
    if not isinstance(names, list):
        raise UserError(f"{where}: expected a list of scales, found {shown(names)}")
    for name in names:
        if name not in SCALES:
            raise UserError(f"{where}: unknown scale {shown(name)}; use {', '.join(SCALES)}")


def _check_axis(axis: str, values: Any, where: str) -> None:
    check_name(axis, f"{where}: grid")
    if axis in _RESERVED:
        raise UserError(
            f"{where}: grid.{axis}: that name is a column of every table; choose another"
        )
    if isinstance(values, dict):
        for name in values:
            check_name(name, f"{where}: grid.{axis}")
        values = list(values)
    plain = isinstance(values, list) and all(map(_is_plain, values))
    if not plain or not values:
        raise UserError(
            f"{where}: grid.{axis} must be a list of values (numbers or text), or map names to "
            "what they stand for"
        )
    if len(set(values)) < len(values):
        raise UserError(f"{where}: grid.{axis} has a value twice")


def _is_plain(value: Any) -> bool:
    """Whether a label can show it."""
    return value.isprintable() if isinstance(value, str) else isinstance(value, (int, float))
