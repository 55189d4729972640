"""``python -m analysis.explore.gpu RECORD.json``: the tables of a record of ``make gpu``, drawn.

The figure stands beside the record, as png and pdf.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

from analysis.drawing.axes import dots
from analysis.drawing.page import headline, key, label, sheet
from analysis.drawing.pictures import pictures
from analysis.drawing.style import (
    ARM_COLOURS,
    ARM_LOOKS,
    NEUTRAL,
    SMALL,
    STYLE_FILE,
    log_axis,
    plain_log_axis,
    power_of_two,
    ramp,
)
from analysis.explore.gpu_tables import (
    PARTS,
    by_runs,
    failures,
    overheads,
    render,
    results,
    utilisation,
)
from lrm.cli import Parser, guarded
from lrm.store.files import read_json, write_atomic

_FORWARD, _BACKWARD, _NEITHER = ARM_COLOURS["SPN"], ARM_COLOURS["FPN"], "#999999"
_LINES = {"bfloat16": "-", "compiled": "--", "recomputed": ":"}
# Parts of a step that are drawn by name; shorter ones are left to the table.
_PARTS = 10
# Characters of a line of the message, and of what stands below the panels.
_WIDTH = 84


def draw(record: dict[str, Any]):
    """A figure of what the record holds, under what its numbers say.

    Below it stands what failed, what is not taken yet, and which packages ran.
    """
    panels: list[tuple[str, str, Callable[..., None]]] = [
        ("parity", "distance from float64", _parity),
        ("speed", "utilisation of each variant", _speed),
        ("shapes", "batches and lengths", _shapes),
        ("profile", "where the step goes", _profile),
        ("overhead", "tokens/s, first / second", _overhead),
        ("together", "time of a step of several runs", _at_once),
        ("projector", "projector's sweep", _projector),
    ]
    found = {part: results(record, part) for part, *_ in panels}
    taken = [panel for panel in panels if found[panel[0]]]
    figure, axes = _grid([_height(part, found[part], record) for part, *_ in taken])
    said = []
    for axis, letter, (part, title, panel) in zip(axes, "abcdefg", taken, strict=False):
        label(axis, f"{letter}   {title}")
        panel(axis, found[part], record)
        if part in _SAID and (told := _SAID[part](found[part], record)):
            said.append(f"{told} ({letter})")
    if said and not record["toy"]:
        message = "; ".join(said)
        headline(figure, fill(message[0].upper() + message[1:], _WIDTH))
    left = [part for part in PARTS if not results(record, part)]
    lines = ["A TOY RUN ON A CPU: it says nothing of a GPU"] if record["toy"] else []
    lines.append(record["device"]["name"])
    lines += [f"not taken yet: {', '.join(left)}"] if left else []
    failed = [f"{part}: {name}" for part in record["parts"] for name in failures(record, part)]
    lines += [f"failed, with reasons in the table: {'; '.join(failed)}"] if failed else []
    lines += [f"not drawn: {said}" for said in _other_peak(found["speed"], record)]
    kernels = [
        f"{name} ({_packages(one)})"
        for name, one in _with_peak(found["speed"], record).items()
        if "kernels" in one
    ]
    lines += [fill(f"kernels: {'; '.join(kernels)}", _WIDTH)] if kernels else []
    figure.supxlabel("\n".join(lines), fontsize=SMALL, color="#444444")
    return figure


def _grid(heights: list[float]):
    """A figure with axes of these heights (inches), in two columns that are about as high.

    Those of the first column come first, from above.
    """
    whole, count = sum(heights), 0
    while count < len(heights) and sum(heights[:count]) < whole / 2:
        count += 1
    columns = [part for part in (heights[:count], heights[count:]) if part]
    figure = sheet(1.0 + max(map(sum, columns), default=1.0), w_pad=0.06, h_pad=0.06)
    if not columns:
        return figure, []
    subfigures = figure.subfigures(1, len(columns), squeeze=False)
    axes = []
    for part, own in zip(subfigures[0], columns, strict=True):
        axes += list(part.subplots(len(own), 1, squeeze=False, height_ratios=own)[:, 0])
    return figure, axes


def _height(part: str, found: dict[str, Any], record: dict) -> float:
    """Inches for a panel with its labels: panels of rows have so many as they have rows."""
    rows = {"speed": lambda: _with_peak(found, record), "overhead": lambda: overheads(found)}
    return 0.75 + 0.24 * len(rows[part]()) if part in rows else 2.1


def _with_peak(found: dict[str, Any], record: dict) -> dict[str, Any]:
    """The variants whose utilisation is known, or all where none is."""
    own = {name: one for name, one in found.items() if utilisation(one, record) is not None}
    return own or found


def _other_peak(found: dict[str, Any], record: dict) -> list[str]:
    """What the variants that ``_with_peak`` leaves out reach."""
    return [
        f"{name}, {one['tokens_per_second']:,.0f} tokens/s (its peak is another)"
        for name, one in found.items()
        if name not in _with_peak(found, record)
    ]


def _parity(axis, found: dict[str, Any], _: dict) -> None:
    """The largest distance of every implementation, over scales, operations and gradients."""
    largest: dict[str, list[float]] = defaultdict(list)
    for result in found.values():
        if "gradient" in result:
            words = ["model", *(["compiled"] if result["compiled"] else []), result["precision"]]
            largest[" ".join(words)].append(result["gradient"])
        for how, one in result.items() if "gradient" not in result else ():
            largest[how] += [max(one["distances"].values())] if "distances" in one else []
    named = {how: values for how, values in largest.items() if values}
    dots(axis, named, dict.fromkeys(named, _FORWARD), intervals=False)
    axis.set_xscale("log")
    axis.set_xlabel("relative; a point an operation")


def _speed(axis, found: dict[str, Any], record: dict) -> None:
    """Bars of utilisation, or of tokens per second where no peak is known."""
    found = _with_peak(found, record)
    shares = {name: utilisation(one, record) for name, one in found.items()}
    known = all(share is not None for share in shares.values())
    bars = {n: 100 * shares[n] if known else one["tokens_per_second"] for n, one in found.items()}
    axis.barh(list(reversed(bars)), list(reversed(bars.values())), height=0.6, color=_FORWARD)
    if known:
        axis.axvline(100 * record["goal"], **NEUTRAL | {"ls": ":"})
        what = "% of bfloat16's peak; dotted: goal"
    else:
        what = "tokens per second"
    steps = {one.get("steps") for one in found.values()}
    timed = f"\nmeans of {steps.pop()} steps" if len(steps - {None}) == 1 else ""
    axis.set_xlabel(what + timed)
    axis.grid(axis="y", visible=False)


def _packages(speed: dict[str, Any]) -> str:
    """The packages whose kernels ran."""
    named = dict.fromkeys(kernel.partition(" ")[0] for kernel in speed["kernels"].values())
    return ", ".join(name for name in named if name != "torch") or "torch alone"


def _shapes(axis, found: dict[str, Any], _: dict) -> None:
    """A line for each variant and length: tokens per second against the tokens of a step."""
    lines: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    for name, one in found.items():
        point = one["batch"] * one["length"], one["tokens_per_second"]
        lines[name.partition(", ")[0], one["length"]].append(point)
    lengths = sorted({length for _, length in lines})
    colours = dict(zip(lengths, ramp(len(lengths)), strict=True))
    for (variant, length), points in lines.items():
        look = {"color": colours[length], "ls": _LINES.get(variant, "-."), "marker": "o"}
        axis.plot(*zip(*sorted(points), strict=True), **look)
    variants = dict.fromkeys(variant for variant, _ in lines)
    handles = [key(str(length), color=colours[length]) for length in lengths]
    handles += [key(name, ls=_LINES.get(name, "-.")) for name in variants]
    axis.set_xscale("log", base=2)
    log_axis(axis)
    axis.set(xlabel="tokens of a step; shades: length", ylabel="tokens per second")
    low, high = axis.get_ylim()
    axis.set_ylim(low * (low / high) ** 0.6, high)  # room for the legend
    look = {"fontsize": SMALL, "handlelength": 1.3, "columnspacing": 0.8}
    axis.legend(handles=handles, loc="lower right", ncols=2, **look)


def _profile(axis, found: dict[str, Any], _: dict) -> None:
    """The longest parts of the first profile that has parts, forward and backward."""
    parts = next((one["parts"] for one in found.values() if "parts" in one), [])
    times: dict[str, dict[str, float]] = defaultdict(dict)
    for part, way, seconds in parts:
        times[part][way] = 1e3 * seconds
    longest = sorted(times, key=lambda part: -sum(times[part].values()))[:_PARTS][::-1]
    start = dict.fromkeys(longest, 0.0)
    ways = {"forward": _FORWARD, "backward": _BACKWARD, "": _NEITHER}
    for way, colour in ways.items():
        widths = [times[part].get(way, 0.0) for part in longest]
        axis.barh(longest, widths, left=list(start.values()), height=0.6, color=colour)
        start = {part: start[part] + w for part, w in zip(longest, widths, strict=True)}
    handles = [key(way or "neither", color=colour, lw=4) for way, colour in ways.items()]
    axis.legend(handles=handles, fontsize=SMALL, loc="lower right")
    axis.set_xlabel("milliseconds")
    axis.grid(axis="y", visible=False)


def _overhead(axis, found: dict[str, Any], _: dict) -> None:
    """A point for each round."""
    over = _over(found)
    named = {}
    for name, ratios in overheads(found).items():
        group, _, variant = name.partition(", ")
        named[f"{variant} /\n{over[group]}"] = ratios
    dots(axis, named, dict.fromkeys(named, _FORWARD), intervals=False)
    axis.axvline(1.0, **NEUTRAL)
    counts = sorted({len(ratios) for ratios in named.values()})
    n = "–".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "0"
    axis.set_xlabel(f"ratio of tokens per second\nn = {n} rounds; bar: mean")


def _at_once(axis, found: dict[str, Any], _: dict) -> None:
    """What a step of several runs costs, in steps of one."""
    prices = by_runs(found)
    colours = dict(zip(prices, ramp(len(prices)), strict=True))
    for variant, points in prices.items():
        axis.plot(*zip(*points.items(), strict=True), marker="o", color=colours[variant],
                  label=variant)  # fmt: skip
    most = max((runs for points in prices.values() for runs in points), default=1)
    axis.plot([1, most], [1, most], label="one after another", **NEUTRAL)
    counts = sorted({runs for points in prices.values() for runs in points})
    axis.set_xscale("log", base=2)
    axis.set_xticks(counts, map(str, counts))
    log_axis(axis)
    axis.set(xlabel="runs trained at once; one timing each", ylabel="time in steps of one run")
    axis.legend(fontsize=SMALL)


def _over(found: dict[str, Any]) -> dict[str, str]:
    """By group the variant over which ``overheads`` has the others."""
    over: dict[str, str] = {}
    for name, speed in found.items():
        group, variant, _ = name.split(", ")
        over.setdefault(group, speed.get("over", variant))
    return over


def _said_of_speed(found: dict[str, Any], record: dict) -> str:
    shares = [share for one in found.values() if (share := utilisation(one, record)) is not None]
    return f"these variants reach at most {max(shares):.0%} of the peak" if shares else ""


def _said_of_overhead(found: dict[str, Any], _: dict) -> str:
    means = {name: fmean(ratios) for name, ratios in overheads(found).items()}
    if not means:
        return ""
    group, _, variant = (slowest := min(means, key=means.__getitem__)).partition(", ")
    return f"{variant}: {means[slowest]:.2f} times the tokens/s of {_over(found)[group]}"


def _said_of_at_once(found: dict[str, Any], _: dict) -> str:
    prices = [(runs, price) for own in by_runs(found).values() for runs, price in own.items()]
    if not prices:
        return ""
    runs, price = max(prices)
    return f"a step of {runs} runs takes {price:.1f} times one run's"


_SAID = {"speed": _said_of_speed, "overhead": _said_of_overhead, "together": _said_of_at_once}


def _projector(axis, found: dict[str, Any], _: dict) -> None:
    """The loss of each arm against S."""
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in found.values():
        for arm, run in one["runs"].items():
            if run["validation_loss"] is not None:
                points[arm].append((one["S"], run["validation_loss"]))
    for arm, pairs in points.items():
        axis.plot(*zip(*sorted(pairs), strict=True), label=arm, **ARM_LOOKS[arm])
    values = sorted({one["S"] for one in found.values()})
    axis.set_xscale("log", base=4)
    axis.set_xticks(values, [power_of_two(value) for value in values])
    axis.minorticks_off()
    axis.set(xlabel="S", ylabel="loss (nats)")
    plain_log_axis(axis)
    axis.legend(fontsize=SMALL)


def read(path: Path) -> dict[str, Any]:
    """The record in ``path``; UserError where it is missing, damaged or of another kind."""
    keys = ("name", "toy", "device", "calls", "goal", "parts")
    return read_json(path, keys, "name a record that make gpu has written")


def show(path: Path) -> str:
    """Draw the record in ``path``; its tables as text. Raises UserError as ``read`` does."""
    record = read(path)
    matplotlib.use("agg")
    target = path.with_name(f"{record['name']}.png")
    with plt.style.context(STYLE_FILE):
        figure = draw(record)
        for kind, content in pictures(figure, ("png", "pdf")).items():
            write_atomic(target.with_suffix(f".{kind}"), content)
        plt.close(figure)
    return f"{render(record)}\n\ndrew {target}, with pdf beside it"


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, draw, and print the tables."""
    parser = Parser(prog="python -m analysis.explore.gpu")
    parser.add_argument("record", type=Path, help="results/reference/gpu/<device>.json")
    options = parser.parse_args(arguments)
    guarded(lambda: print(show(options.record)))


if __name__ == "__main__":
    main()
