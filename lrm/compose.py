"""From an experiment's YAML to its list of runs. No torch here.

Order of precedence: type defaults, ``use``, experiment, scale, arm, grid point, ``--set``.
Settings merge key by key; rules are appended, and the last match wins field by field. ``$name``
stands for a point of the grid, or for one of the ``values`` that a layer defines (a scale may
redefine them).
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import hashlib
import itertools
import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, model_validator

from lrm import NUMERICS_VERSION
from lrm.config import Execution, Settings, Strict, validate
from lrm.errors import UserError
from lrm.model.tensors import addresses, check_pattern
from lrm.start import weights_hash

PRESETS = Path(__file__).parent / "presets"
SCALES = ("smoke", "tiny", "small", "paper")
_SETTINGS = tuple(Settings.model_fields)
# Columns of the tidy frame, and the name that presets are found by.
_RESERVED = ("experiment", "run", "kind", "arm", "seed", "scale", "corpus", "step", "tensor",
             "layer", "stat", "value")  # fmt: skip
_STAGES = ("warmup_steps", "decay_steps", "batch_ramp")
# Sizes that grow with a model's width; those of one head, one state and the vocabulary do not.
_WIDTHS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
           "mamba_d_ssm", "mamba_n_heads")  # fmt: skip
_LAYER = (*_SETTINGS, "execution", "cost", "width", "use", "values", "grid", "arms")


class Brownian(Strict):
    """Adam Brownian motion (ABM) beside the runs: which tensors, with which arms' settings."""

    match: tuple[str, ...] = Field(min_length=1)
    arms: tuple[str, ...] = Field(min_length=1)
    draws: int = Field(64, ge=2)
    # The embedding's rows have a gradient only in steps whose batch holds their token.
    occurrences: bool = False
    # The matched matrices as linear layers, whose outputs are measured (table 1). The arms are for
    # this alone, and train nothing.
    linear_layers: bool = False

    @model_validator(mode="after")
    def _tokens_have_rows(self) -> Brownian:
        if self.occurrences and "embedding" not in self.match:
            raise ValueError("occurrences are those of the embedding's tokens; match it too")
        return self


class After(Strict):
    """An arm's multipliers begin where those of another arm ended, of the same point and seed.

    ``noise``: where one draw of that arm's Brownian motion ended, which must walk them.
    """

    arm: str
    noise: bool = False


class Width(Strict):
    """Another width of the model that the settings state: all sizes grow in proportion.

    ``base_width`` stays, so that ``width_exponent`` of rules speaks of the ratio. The number of
    steps, and with it every stage, grows by the ratio to the power of ``steps_exponent``: where
    η ∝ 1/d, as many times e of forgetting take d times the steps.
    """

    hidden_size: int = Field(ge=1)
    steps_exponent: float = Field(0.0, ge=-2, le=2)


class Cost(Strict):
    """What the scale's machine does, for estimates."""

    device: str = "one CPU core"
    devices: int = Field(1, ge=1)  # devices that one run occupies
    flops_per_second: float = Field(2.0e10, gt=0)  # achieved, per device
    price_per_hour: float = Field(0.0, ge=0)  # US dollars, per device


class Header(Strict):
    """The descriptive part of an experiment's YAML."""

    title: str
    figures: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    # Tensors whose course over the training is published of every seed, not of the first alone.
    courses: tuple[str, ...] = ()
    brownian: Brownian | None = None


@dataclass(frozen=True)
class Run:
    """One resolved run: what ``lrm`` trains, and what its directory is named by."""

    experiment: str
    scale: str
    arm: str
    grid: dict[str, Any]
    seed: int
    settings: Settings
    execution: Execution
    cost: Cost
    kind: str = "train"  # or "brownian"
    brownian: Brownian | None = None
    # Hash of the corpus; filled in once it is built.
    corpus: str | None = None
    # The run whose multipliers this one begins with.
    source: Run | None = None
    # Hash of each claim's criterion as it stood when the run was planned.
    criteria: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        """For people and for ``--only``; nothing is ever parsed out of it."""
        points = [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                  for name, value in self.grid.items()]  # fmt: skip
        arm = self.arm if self.kind == "train" else f"ABM {self.arm}"
        return " ".join([arm, *points, f"seed={self.seed}"])

    @property
    def reads_corpus(self) -> bool:
        """Whether it needs data, as all but pure noise does."""
        return self.kind == "train" or self.brownian.occurrences

    @property
    def source_id(self) -> str | None:
        """The id of ``source``, which reads the same corpus."""
        return self.source and dataclasses.replace(self.source, corpus=self.corpus).id

    def describe(self) -> dict[str, Any]:
        """What the run is, for ``run.json``: the columns of the tidy frame and the settings."""
        return {
            "experiment": self.experiment,
            "id": self.id,
            "kind": self.kind,
            "scale": self.scale,
            "arm": self.arm,
            "grid": self.grid,
            "seed": self.seed,
            "label": self.label,
            "criteria": self.criteria,
            "after": self.source_id,
            "settings": self.settings.model_dump(mode="json"),
        }

    @property
    def id(self) -> str:
        """Hash of everything that changes the mathematics."""
        if self.reads_corpus and self.corpus is None:
            raise ValueError("a run's id needs the hash of its corpus")
        # Defaults are left out, so that a new setting with an inert default changes no id;
        # whoever changes a default raises NUMERICS_VERSION.
        settings = self.settings.model_dump(mode="json", exclude_defaults=True)
        # What was read is told by its hash, however it was spelled.
        settings.pop("data", None)
        if self.settings.train.start is not None:
            settings["train"]["start"] = weights_hash(Path(self.settings.train.start))
        content: dict[str, Any] = {
            "numerics": NUMERICS_VERSION,
            "kind": self.kind,
            "arm": self.arm,
            "grid": self.grid,
            "seed": self.seed,
            "settings": settings,
        }
        if self.kind == "brownian":
            content["brownian"] = self.brownian.model_dump(
                mode="json", exclude={"arms", "occurrences", "linear_layers"}
            )
            # Of the training only its length enters, of the probes only when they are taken.
            train = self.settings.train
            settings["train"] = {"steps": train.steps}
            if self.brownian.occurrences:
                # And the batches.
                batches = ("batch_size", "sequence_length", "data_order")
                settings["train"] |= {name: getattr(train, name) for name in batches}
                content |= {"occurrences": True, "corpus": self.corpus}
            if self.brownian.linear_layers:
                content["linear_layers"] = True
            settings["probes"] = {"every": self.settings.probes.every}
        else:
            content["corpus"] = self.corpus
        if self.source is not None:
            content["after"] = self.source_id
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


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

        Raises UserError for an unknown scale or key, an override that does not parse, a rule
        that matches nothing, or patterns of labels, ``only``, that select no run.
        """
        if scale not in SCALES:
            raise UserError(f"unknown scale {scale!r}; choose one of {', '.join(SCALES)}")
        runs: list[Run] = []
        for arm, layer in self.arms.items():
            if scale not in (layer or {}).get("scales", SCALES):
                continue
            for layers, point in self._points(scale, arm):
                settings, execution, cost = self._settings(layers, point, scale, overrides)
                common = (settings, execution, cost)
                brownian = self.header.brownian
                has_noise = brownian is not None and arm in brownian.arms
                if not (has_noise and brownian.linear_layers):
                    runs += [Run(self.name, scale, arm, point, seed, *common) for seed in seeds]
                if has_noise:
                    present = addresses(settings.model)
                    for pattern in brownian.match:
                        check_pattern(pattern, present, optional=False)
                    # Brownian motion draws its own seeds: one run serves all of the arm's.
                    runs.append(Run(self.name, scale, arm, point, 0, *common, "brownian", brownian))
        if not runs:
            raise UserError(f"{self.path}: no arm is for the scale {scale}; choose another")
        runs = [self._with_source(run, runs) for run in runs]
        if not only:
            return runs
        chosen = [run for run in runs if any(fnmatch.fnmatch(run.label, o) for o in only)]
        if not chosen:
            said = " ".join(f"--only {pattern!r}" for pattern in only)
            raise UserError(f"{said} selects no run; labels look like {runs[0].label!r}")
        return chosen

    def _with_source(self, run: Run, runs: list[Run]) -> Run:
        said = (self.arms[run.arm] or {}).get("after")
        if said is None or run.kind == "brownian":
            return run
        where = f"{self.path}: arms.{run.arm}: after"
        after = validate(After, said, where)
        wanted = (after.arm, "brownian" if after.noise else "train")
        for other in runs:
            seed = other.seed if after.noise else run.seed
            if (other.arm, other.kind, other.grid, other.seed) == (*wanted, run.grid, seed):
                if (self.arms[after.arm] or {}).get("after"):
                    raise UserError(f"{where}: {after.arm!r} itself comes after another arm")
                return dataclasses.replace(run, source=other)
        kind = "no Brownian motion of arm" if after.noise else "no arm"
        raise UserError(f"{where}: {kind} {after.arm!r} with the same point of the grid")

    @property
    def arms(self) -> dict[str, Any]:
        """The arms' settings by name; one called ``base`` where the YAML has none."""
        return self.body.get("arms") or {"base": {}}

    def _points(self, scale: str, arm: str):
        """The layers of settings of one arm and every point of its grid."""
        body = {key: value for key, value in self.body.items() if key != "arms"}
        scales = body.pop("scales", None) or {}
        source = str(self.path)
        layers = [
            *_expand(body, scale, source),
            *_expand(scales.get(scale) or {}, scale, f"{source}: scales.{scale}"),
            *_expand(self.arms[arm] or {}, scale, f"{source}: arms.{arm}"),
        ]
        grid: dict[str, Any] = {}
        for layer, where in layers:
            for axis, values in _mapping(layer, "grid", where).items():
                _check_axis(axis, values, where)
                grid[axis] = values
        for values in itertools.product(*grid.values()):
            yield layers, dict(zip(grid, values, strict=True))

    def _settings(self, layers, point, scale, overrides) -> tuple[Settings, Execution, Cost]:
        names = {"scale": scale}
        for layer, where in layers:
            names |= _mapping(layer, "values", where)
        names |= point
        merged: dict[str, Any] = {}
        rules: list[Any] = []
        for layer, where in layers:
            layer = _substitute(layer, names, where)
            layer_rules = layer.pop("rules", None) or []
            if not isinstance(layer_rules, list):
                raise UserError(f"{where}: rules must be a list")
            rules += layer_rules
            for name in ("use", "grid", "values", "after", "scales"):
                layer.pop(name, None)
            merged = _merge(merged, layer)
        source = str(self.path)
        width = merged.pop("width", None)
        planned = merged
        for override in overrides:
            merged = _merge(merged, _parse_override(override))
            source = f"{self.path} with --set {override}"
        merged = _keep_stages(planned, merged)
        if width is not None:
            where = f"{source}: width"
            merged = _at_width(merged, validate(Width, width, where), where)
        execution = validate(Execution, merged.pop("execution", {}), f"{source}: execution")
        cost = validate(Cost, merged.pop("cost", {}), f"{source}: cost")
        settings = validate(Settings, {**merged, "rules": rules}, source)
        return settings, execution, cost


def load(path: Path) -> Experiment:
    """Read ``experiments/<name>/config.yaml``; the experiment is named by its directory."""
    body = read_yaml(path)
    header = {key: body.pop(key) for key in Header.model_fields if key in body}
    experiment = Experiment(
        path.resolve().parent.name, path, validate(Header, header, str(path)), body
    )
    _check_keys(body, (*_LAYER, "scales", *Header.model_fields), str(path))
    for group, allowed in (("arms", (*_LAYER[:-1], "after", "scales")), ("scales", _LAYER[:-1])):
        for name, layer in _mapping(body, group, str(path)).items():
            where = f"{path}: {group}.{name}"
            _check_keys(layer or {}, allowed, where)
            if group == "scales":
                _check_scales([name], str(path))
            else:
                _check_scales((layer or {}).get("scales", []), f"{where}: scales")
    if header := experiment.header.brownian:
        for arm in header.arms:
            if arm not in experiment.arms:
                raise UserError(f"{path}: brownian.arms names {arm!r}, which is no arm")
    return experiment


def _check_scales(names: Any, where: str) -> None:
    if not isinstance(names, list):
        raise UserError(f"{where}: expected a list of scales, found {names!r}")
    for name in names:
        if name not in SCALES:
            raise UserError(f"{where}: unknown scale {name!r}; use {', '.join(SCALES)}")


class _Loader(yaml.SafeLoader):
    """Safe, and strict about keys: one given twice would silently win over the other."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key, (where, _) in zip(keys, node.value, strict=True):
            if keys.count(key) > 1:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} is given twice", problem_mark=where.start_mark
                )
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping; UserError where the file is missing, broken or something else."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{path}{line}: not valid YAML: {problem}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a mapping of settings, found {type(data).__name__}")
    return data


def preset_rules(name: str) -> list[dict[str, Any]]:
    """The rules of a preset such as ``placement/all``; UserError where there is none."""
    layers = _expand({"use": [name]}, "tiny", "presets")
    return [rule for layer, _ in layers for rule in layer.get("rules") or []]


def _expand(layer: dict[str, Any], scale: str, where: str):
    """``layer`` behind the presets that it uses, each with the name of its source."""
    used = layer.get("use") or []
    if not isinstance(used, list) or not all(isinstance(name, str) for name in used):
        raise UserError(f"{where}: use must be a list of presets, e.g. [scale/$scale]")
    for name in used:
        name = name.replace("$scale", scale)
        path = PRESETS / f"{name}.yaml"
        if not path.exists():
            known = sorted(
                str(p.relative_to(PRESETS).with_suffix("")) for p in PRESETS.rglob("*.yaml")
            )
            raise UserError(f"{where}: use: no preset {name!r}; there are {', '.join(known)}")
        preset = read_yaml(path)
        _check_keys(preset, _LAYER[:-1], str(path))
        yield from _expand(preset, scale, str(path))
    yield layer, where


def _mapping(layer: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """``layer[key]``, which must map names to something, or be absent."""
    value = layer.get(key) or {}
    if not isinstance(value, dict):
        raise UserError(f"{where}: {key} must map names to values, found {value!r}")
    for name in value:
        if not isinstance(name, str):
            raise UserError(f"{where}: {key}: the name {name!r} is not text; put it in quotes")
    return value


def _check_axis(axis: str, values: Any, where: str) -> None:
    if axis in _RESERVED:
        raise UserError(
            f"{where}: grid.{axis}: that name is a column of every table; choose another"
        )
    plain = isinstance(values, list) and all(isinstance(v, (int, float, str)) for v in values)
    if not plain or not values:
        raise UserError(f"{where}: grid.{axis} must be a list of values (numbers or text)")
    if len(set(values)) < len(values):
        raise UserError(f"{where}: grid.{axis} has a value twice")


def _check_keys(layer: Any, allowed: tuple[str, ...], where: str) -> None:
    if not isinstance(layer, dict):
        raise UserError(f"{where}: expected a mapping of settings, found {layer!r}")
    for key in layer:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(allowed)}"
            raise UserError(f"{where}: unknown key {key}; {hint}")


def _substitute(data: Any, names: dict[str, Any], where: str) -> Any:
    """Replace ``$axis`` by the value of the grid point, keeping its type."""
    if isinstance(data, dict):
        return {key: _substitute(value, names, where) for key, value in data.items()}
    if isinstance(data, list):
        return [_substitute(value, names, where) for value in data]
    if isinstance(data, str) and "$" in data:
        for name in re.findall(r"\$(\w+)", data):
            if name not in names:
                known = ", ".join(names)
                raise UserError(f"{where}: ${name} is no grid axis and no value; there are {known}")
        if re.fullmatch(r"\$\w+", data):
            return names[data[1:]]
        return re.sub(r"\$(\w+)", lambda match: str(names[match[1]]), data)
    return data


def _merge(base: dict[str, Any], layer: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in layer.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _at_width(merged: dict[str, Any], width: Width, where: str) -> dict[str, Any]:
    """The settings with the model made as wide as ``width`` asks for."""
    model = merged.get("model", {})
    stated = model.get("hidden_size")
    if not isinstance(stated, int) or stated < 1:
        raise UserError(f"{where}: state model.hidden_size too, and all sizes at that width")
    sizes: dict[str, int] = {}
    for name in _WIDTHS:
        if isinstance(model.get(name), int):
            sizes[name], rest = divmod(model[name] * width.hidden_size, stated)
            if rest or not sizes[name]:
                raise UserError(
                    f"{where}: hidden_size {width.hidden_size} makes {name} "
                    f"{model[name] * width.hidden_size / stated:g}; it is {model[name]} at "
                    f"{stated}, so choose another width or other sizes"
                )
    wider = _merge(merged, {"model": sizes})
    steps = merged.get("train", {}).get("steps")
    if isinstance(steps, int) and width.steps_exponent:
        longer = round(steps * (width.hidden_size / stated) ** width.steps_exponent)
        wider = _keep_stages(merged, _merge(wider, {"train": {"steps": longer}}))
    return wider


def _keep_stages(planned: dict[str, Any], merged: dict[str, Any]) -> dict[str, Any]:
    """An overridden train.steps keeps the stages' shares, unless one is overridden too."""
    steps, before = (m.get("train", {}).get("steps") for m in (merged, planned))
    stages, given = (
        {name: m.get("schedule", {}).get(name) for name in _STAGES} for m in (planned, merged)
    )
    if steps == before or stages != given:
        return merged
    if not all(isinstance(n, int) and n > 0 for n in (steps, before)):
        return merged

    def scaled(step: int) -> int:
        return round(step * steps / before)

    # What is of a wrong type is left to the validation. The steps at which stages begin and end
    # are rounded, not their lengths, which might add up to more than there are.
    shares: dict[str, Any] = {}
    warmup, decay, ramp = (stages[name] for name in _STAGES)
    if isinstance(warmup, int):
        shares["warmup_steps"] = scaled(warmup)
    if isinstance(decay, int):
        shares["decay_steps"] = steps - scaled(before - decay)
    if isinstance(ramp, list) and all(isinstance(_until_step(stage), int) for stage in ramp):
        # A stage that would last no step goes.
        ends = {scaled(_until_step(stage)): stage for stage in reversed(ramp)}
        shares["batch_ramp"] = [
            {**ends[end], "until_step": end} for end in sorted(ends) if 0 < end < steps
        ]
    return _merge(merged, {"schedule": shares})


def _until_step(stage: Any) -> Any:
    return stage.get("until_step") if isinstance(stage, dict) else None


def _parse_override(text: str) -> dict[str, Any]:
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise UserError(f"--set {text!r}: write it as key=value, e.g. train.steps=200")
    keys = path.strip().split(".")
    if keys[0] == "rules":
        raise UserError(f"--set {text!r}: rules are a list; change them in the YAML")
    try:
        data: Any = yaml.safe_load(value)
    except yaml.YAMLError:
        raise UserError(f"--set {text!r}: {value!r} is not a valid value") from None
    for key in reversed(keys):
        data = {key: data}
    return data
