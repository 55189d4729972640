"""YAML files, presets and overrides as plain layers of settings, strictly read and merged."""

from __future__ import annotations

import copy
import difflib
import functools
import re
import unicodedata
from pathlib import Path
from typing import Any

import yaml

from lrm.errors import UserError, nearest, shown
from lrm.plan.config import Settings
from lrm.plan.groups import spelled_out

PRESETS = Path(__file__).parent / "presets"
_SETTINGS = tuple(Settings.model_fields)
LAYER = (*_SETTINGS, "execution", "cost", "width", "use", "values", "grid", "arms")
# What a layer must hold under these keys. All other settings are checked by their types.
_MAPPINGS = {*_SETTINGS, "execution", "cost", "width", "values", "grid"} - {"base_width", "rules"}
_LISTS = {
    "use": "use must be a list of presets, e.g. [scale/$scale]",
    "rules": "rules must be a list, e.g. [{match: projector, lr: 1.0e-3}]",
}
_DEEPEST, _LARGEST, _LONGEST = 32, 20_000, 1 << 20  # levels, nodes and bytes of a file
_LEAST, _MOST, _EXACT = 1e-30, 1e30, 1 << 53  # of numbers; of integers
_ANCHORS = ("while scanning an alias", "while scanning an anchor")
_YAML = "tag:yaml.org,2002:"
_KINDS = {f"{_YAML}{kind}" for kind in ("null", "bool", "int", "float")}
_NUMBERS = {f"{_YAML}int", f"{_YAML}float"}
_BASE_8_OR_60 = re.compile(r"[-+]?(0[0-7_]+|[0-9_]+(:[0-5]?[0-9])+(\.[0-9_]*)?)")


class _Loader(yaml.SafeLoader):
    """Builds null, booleans, numbers, text, lists and mappings of bounded size, nothing else.

    It refuses tags, anchors that contain themselves, keys that are given twice or are no text,
    and numbers that YAML 1.1 reads in base 8 or 60. Dates are text.
    """

    yaml_implicit_resolvers = {
        first: [(tag, rule) for tag, rule in rules if tag in _KINDS]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0
        self._sizes: dict[str, int] = {}  # nodes behind each anchor that is complete

    def compose_node(self, parent, index):
        event, before = self.peek_event(), self._nodes
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if anchor in self.anchors and anchor not in self._sizes:
                _refuse(event, f"*{anchor} stands inside of what it repeats")
            self._nodes += self._sizes.get(anchor, 0)
        elif getattr(event, "tag", None) is not None:
            tag = event.tag.replace(_YAML, "!!")
            _refuse(event, f"the tag {shown(tag)} is not allowed; leave it out, put text in quotes")
        self._depth += 1
        self._nodes += 1
        if self._depth > _DEEPEST or self._nodes > _LARGEST:
            _refuse(event, f"more than {_DEEPEST} levels, or {_LARGEST} entries; make it smaller")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None and not isinstance(event, yaml.AliasEvent):
            self._sizes[anchor] = self._nodes - before
        if isinstance(node, yaml.ScalarNode):
            self._check(node)
        return node

    def _check(self, node: yaml.ScalarNode) -> None:
        text = node.value
        if node.tag in _NUMBERS:
            if _BASE_8_OR_60.fullmatch(text):
                _refuse(node, f"{shown(text)} is a number in base 8 or 60; put text in quotes")
            exact = node.tag == f"{_YAML}int"
            try:
                build = self.construct_yaml_int if exact else self.construct_yaml_float
                size = abs(build(node))
            except ValueError:  # thousands of digits, or none
                size = float("nan")
            if not (size == 0 or _LEAST <= size <= (_EXACT if exact else _MOST)):
                limit = f"2**53 = {_EXACT}" if exact else f"{_MOST:g}, or 0 or from {_LEAST:g} on"
                _refuse(node, f"{shown(text)} is out of range; give a number up to {limit}")
        elif any(unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" for c in text):
            _refuse(node, f"{shown(text)} has a control character; take it out")

    def construct_mapping(self, node, deep=False):
        keys: set[str] = set()
        for where, _ in node.value:
            key = self.construct_object(where, deep=True)
            if not isinstance(key, str):
                _refuse(where, f"the name {shown(key)} is not text; put it in quotes")
            if not key.isprintable():
                _refuse(where, f"the name {shown(key)} has a control character; take it out")
            if key in keys:
                _refuse(where, f"the key {shown(key)} is given twice")
            keys.add(key)
        return super().construct_mapping(node, deep)


def _refuse(place: yaml.Event | yaml.Node, problem: str) -> None:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


def parse(text: str, where: str) -> Any:
    """What a YAML text says, as plain data; UserError, opened by ``where`` and the line."""
    return copy.deepcopy(_parsed(text, where))  # who asks may change it


@functools.lru_cache(maxsize=256)
def _parsed(text: str, where: str) -> Any:
    """One command reads the same few files again and again; each takes a hundredth of a second."""
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        if getattr(error, "context", None) in _ANCHORS or "undefined alias" in problem:
            problem += "; text that begins with * or & needs quotes, as in '*.md'"
        raise UserError(f"{where}{line}: not valid YAML: {problem}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping; UserError where the file is missing, broken or something else."""
    try:
        # A pipe or a device may never end.
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is no file; name a YAML file")
        with path.open("rb") as file:
            text = file.read(_LONGEST + 1).decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except NotADirectoryError:
        file = next(one for one in path.parents if one.exists())
        raise UserError(f"{file} is no folder; name its folder, {file.parent}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}") from None
    if len(text) > _LONGEST:
        raise UserError(f"{path} has more than {_LONGEST} bytes; make it smaller")
    data = parse(text, str(path))
    if data is None:
        raise UserError(f"{path} is empty; write lines such as key: value")
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a mapping of settings, found {type(data).__name__}")
    return data


def preset_rules(name: str) -> list[dict[str, Any]]:
    """The rules of a preset such as ``placement/all``; UserError where there is none."""
    layers = expand({"use": [name]}, {"scale": "tiny"}, "presets")
    return spelled_out([rule for layer, _ in layers for rule in layer.get("rules", [])])


_PRESET_NAME = re.compile(r"[\w-]{1,80}(/[\w-]{1,80}){0,5}", re.ASCII)
_PLACEHOLDER = re.compile(r"\$(\w+)")
# Arms and scales use the same few files again and again. Nobody changes what is read.
_read_preset = functools.cache(read_yaml)


def expand(layer: dict[str, Any], names: dict[str, str], where: str, inside: tuple[str, ...] = ()):
    """``layer`` behind the presets that it uses, each with the name of its source.

    ``names`` are what ``$scale`` and ``$arm`` stand for, ``inside`` the presets that led here.
    Raises UserError where a preset is not there or leads back to itself.
    """
    check_shapes(layer, where, substituted=False)
    for name in layer.get("use", []):
        if not isinstance(name, str):
            raise UserError(f"{where}: {_LISTS['use']}")
        name = _PLACEHOLDER.sub(lambda match: names.get(match[1], match[0]), name)
        if "$" in name:
            known = ", ".join(f"${each}" for each in names)
            raise UserError(f"{where}: use: {shown(name)}: only {known} stand for something here")
        path = PRESETS / f"{name}.yaml"
        if not (_PRESET_NAME.fullmatch(name) and path.is_file()):
            raise _no_preset(name, names["scale"], where)
        if name in inside:
            raise UserError(f"{where}: use: {name} uses itself; take it out")
        preset = _read_preset(path)
        check_keys(preset, LAYER[:-1], str(path))
        yield from expand(preset, names, str(path), (*inside, name))
    yield layer, where


class NotTuned(UserError):
    """A preset that a search has not found yet."""


def _no_preset(name: str, scale: str, where: str) -> UserError:
    if name.startswith("tuned/"):
        return NotTuned(
            f"{where}: use: no preset {shown(name)}, because no search has decided it at this "
            f"scale; run make tune SCALE={scale} PUBLISH=1, with SEARCH= what config.yaml has as "
            "tuned_by, and FROM_PUBLISHED=1 where a log of it is published"
        )
    known = (p.relative_to(PRESETS).with_suffix("").as_posix() for p in PRESETS.rglob("*.yaml"))
    have = [each for each in known if not each.startswith("tuned/")]
    return UserError(f"{where}: use: no preset {shown(name)}; there are {nearest(name, have)}")


def mapping(layer: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """``layer[key]``, or nothing where it is absent; UserError where it is no mapping."""
    value = layer.get(key, {})
    if not isinstance(value, dict):
        raise UserError(f"{where}: {key} must map names to values, found {shown(value)}")
    return value


def check_shapes(layer: dict[str, Any], where: str, substituted: bool = True) -> None:
    """Raise UserError where a section is no mapping, or a list is none.

    As long as nothing is ``substituted``, ``$name`` may stand for either.
    """
    for key, value in layer.items():
        waits = not substituted and key != "use" and isinstance(value, str)
        if waits and _PLACEHOLDER.fullmatch(value):
            continue
        if key in _MAPPINGS:
            mapping(layer, key, where)
        elif key in _LISTS and not isinstance(value, list):
            raise UserError(f"{where}: {_LISTS[key]}, not {shown(value)}")


def check_name(name: str, where: str) -> None:
    """Raise UserError where an arm or a grid's axis has a name that no label could show."""
    if not re.fullmatch(r"\w[\w.+-]{0,79}", name):
        raise UserError(
            f"{where}: the name {shown(name)} cannot be used; write up to 80 letters, digits and _"
        )


def layer_of(layer: Any, allowed: tuple[str, ...], where: str) -> dict[str, Any]:
    """A layer of settings that knows no key but ``allowed``; one that says nothing is empty."""
    layer = {} if layer is None else layer
    check_keys(layer, allowed, where)
    return layer


def check_keys(layer: Any, allowed: tuple[str, ...], where: str) -> None:
    """Raise UserError where ``layer`` is no mapping, or has a key that is not ``allowed``."""
    if not isinstance(layer, dict):
        raise UserError(f"{where}: expected a mapping of settings, found {shown(layer)}")
    for key in layer:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(allowed)}"
            raise UserError(f"{where}: unknown key {shown(key, quoted=False)}; {hint}")


def names_in(data: Any) -> set[str]:
    """Every ``$name`` in a layer, but in its grid and its values."""
    if isinstance(data, dict):
        kept = [value for key, value in data.items() if key not in ("grid", "values")]
        return set().union(*map(names_in, kept))
    if isinstance(data, list):
        return set().union(*map(names_in, data))
    return set(_PLACEHOLDER.findall(data)) if isinstance(data, str) else set()


def substitute(data: Any, names: dict[str, Any], where: str) -> Any:
    """Replace ``$axis`` by the value of the grid point, keeping its type.

    Raises UserError where ``names`` lacks what is asked for.
    """
    if isinstance(data, dict):
        return {key: substitute(value, names, where) for key, value in data.items()}
    if isinstance(data, list):
        return [substitute(value, names, where) for value in data]
    if isinstance(data, str) and "$" in data:
        for name in _PLACEHOLDER.findall(data):
            if name not in names:
                known = ", ".join(names)
                raise UserError(
                    f"{where}: ${name} is no grid axis and no value at this scale; there are "
                    f"{known}; define it under values, or choose another scale"
                )
        if _PLACEHOLDER.fullmatch(data):
            return names[data[1:]]
        return _PLACEHOLDER.sub(lambda match: str(names[match[1]]), data)
    return data


def merge(base: dict[str, Any], layer: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``layer`` above it, mapping by mapping; a list replaces the other whole."""
    merged = dict(base)
    for key, value in layer.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def parse_override(text: str, option: str = "--set") -> dict[str, Any]:
    """The layer that ``option`` asks for with ``text``; UserError where it is none."""
    where = f"{option} {shown(text)}"
    path, equals, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys) or len(keys) > _DEEPEST:
        raise UserError(f"{where}: write it as key=value, e.g. train.steps=200")
    if keys[0] == "rules":
        raise UserError(f"{where}: rules are a list; change them in the YAML")
    data = parse(value, where)
    for key in reversed(keys):
        data = {key: data}
    check_shapes(data, where)
    return data
