"""The record of ``make gpu`` as tables of text, and what follows from it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from lrm.cli import columns

_TOY = "A TOY RUN on a CPU: it shows that everything works, and says nothing of a GPU."


def render(record: Mapping[str, Any]) -> str:
    """A table of each part that has items, and what failed, with the reasons."""
    lines = [f"{record['device']['name']}, {len(record['calls'])} calls"]
    lines += [_TOY] if record["toy"] else []
    for part, table in _TABLES.items():
        items = record["parts"].get(part, {})
        failed = [f"failed: {name}: {why}" for name, why in failures(record, part).items()]
        if items:
            lines += ["", f"## {part}", "", *table(results(record, part), record), *failed]
    return "\n".join(lines)


def results(record: Mapping[str, Any], part: str) -> dict[str, Any]:
    """What was found in a part, by the names of its items; of those that failed nothing."""
    items = record["parts"].get(part, {})
    return {name: item["result"] for name, item in items.items() if "result" in item}


def failures(record: Mapping[str, Any], part: str) -> dict[str, str]:
    """Why items of a part failed, by their names."""
    items = record["parts"].get(part, {})
    return {name: item["failed"] for name, item in items.items() if "failed" in item}


def utilisation(speed: Mapping[str, Any], record: Mapping[str, Any]) -> float | None:
    """The share of the device's peak that goes into the model's FLOPs.

    None without a peak, and in float32: the peak is that in bfloat16.
    """
    peak = record.get("peak_flops") if speed["precision"] == "bfloat16" else None
    return speed["flops_per_second"] / peak if peak else None


def overheads(
    items: Mapping[str, Mapping[str, Any]], what: str = "tokens_per_second"
) -> dict[str, list[float]]:
    """By "group, variant" ``what`` over that of the variant it is set ``over``, by round.

    Nothing of a variant that lacks it, as memory off CUDA, and of a group whose first variant
    does. Records of earlier versions do not say which that is, and have it in front.
    """
    rates: dict[str, dict[str, dict[str, float]]] = {}
    over: dict[str, str] = {}
    for name, speed in items.items():
        group, variant, number = name.split(", ")
        over.setdefault(group, speed.get("over", variant))
        if speed[what] is not None:
            rates.setdefault(group, {}).setdefault(variant, {})[number] = speed[what]
    found = {}
    for group, variants in rates.items():
        first = variants.get(over[group], {})
        for variant in (each for each in variants if each != over[group]):
            both = variants[variant].keys() & first.keys()
            if both:
                ratios = [variants[variant][n] / first[n] for n in sorted(both)]
                found[f"{group}, {variant}"] = ratios
    return found


def _tests(found: Mapping[str, Any], _: Mapping) -> list[str]:
    lines = []
    for path, told in found.items():
        skipped = [f"{n} skipped ({reason})" for reason, n in told["skipped"].items()]
        failed = f"{len(told['failed'])} failed" + "".join(f", {name}" for name in told["failed"])
        lines.append(f"{path}: " + "; ".join([f"{told['passed']} passed", failed, *skipped]))
    return lines


def _parity(found: Mapping[str, Any], _: Mapping) -> list[str]:
    table = [("what", "how", "agrees", "largest distance", "in")]
    for name, result in found.items():
        if "gradient" in result:
            worst = result["worst"]
            how = result["precision"] + (", compiled" if result["compiled"] else "")
            where = f"all gradients; {worst['tensor']}: {worst['distance']:.1e}"
            table.append((name, how, _yes(result), f"{result['gradient']:.1e}", where))
            continue
        for how, one in result.items():
            if "distances" in one:
                where = max(one["distances"], key=one["distances"].__getitem__)
                table.append((name, how, _yes(one), f"{one['distances'][where]:.1e}", where))
            else:
                said = one.get("fails") or one["left_out"]
                table.append((name, how, "no" if "fails" in one else "left out", "", said))
    return columns(table)


def _yes(result: Mapping[str, Any]) -> str:
    return "yes" if result["agrees"] else "NO"


def _speed(found: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    table = [("variant", "precision", "batch", "length", "ms a step", "tokens/s", "utilisation",
              "peak memory, GB")]  # fmt: skip
    best = None
    for name, one in found.items():
        share, memory = utilisation(one, record), one["peak_memory"]
        best = max(best or 0.0, share) if share is not None else best
        table.append(
            (
                name,
                one["precision"] + (", compiled" if one["compiled"] else ""),
                str(one["batch"]),
                str(one["length"]),
                f"{1e3 * one['seconds_per_step']:.1f}",
                f"{one['tokens_per_second']:,.0f}",
                "" if share is None else f"{share:.1%}",
                "" if memory is None else f"{memory / 1e9:.1f}",
            )
        )
    if best is None:
        return [*columns(table), "No peak is known of this device; --peak-flops says it."]
    reached = "reached" if best >= record["goal"] else "not reached by these"
    return [*columns(table), f"The goal of {record['goal']:.0%} is {reached}: {best:.1%}."]


def _profile(found: Mapping[str, Any], _: Mapping) -> list[str]:
    lines = []
    for name, one in found.items():
        lines += [f"{name}: a step takes {1e3 * one['step']:.1f} ms; "
                  f"watched, the device is busy for {one['busy']:.0%} of it"]  # fmt: skip
        if "parts" in one:
            table = [("part", "direction", "ms", "share")]
            whole = sum(seconds for *_, seconds in one["parts"])
            for part, way, seconds in sorted(one["parts"], key=lambda row: -row[2]):
                table.append((part, way, f"{1e3 * seconds:.2f}", f"{seconds / whole:.1%}"))
            lines += [*columns(table), ""]
        whole = sum(one["kinds"].values())
        table = [("operations", "ms", "share")]
        for kind, seconds in one["kinds"].items():
            table.append((kind, f"{1e3 * seconds:.2f}", f"{seconds / whole:.1%}"))
        lines += [*columns(table), ""]
    return lines


def _overhead(found: Mapping[str, Any], _: Mapping) -> list[str]:
    head = ("what", "tokens/s over those without", "least", "most", "rounds", "peak memory over")
    table, memory = [head], overheads(found, "peak_memory")
    for name, ratios in overheads(found).items():
        cells = (statistics.median(ratios), min(ratios), max(ratios))
        more = f"{statistics.median(memory[name]):.3f}" if name in memory else ""
        table.append((name, *(f"{cell:.3f}" for cell in cells), str(len(ratios)), more))
    return columns(table)


def by_runs(items: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """By variant and number of runs at once: seconds of a step over those of one run's step."""
    seconds: dict[str, dict[int, float]] = {}
    for name, speed in items.items():
        variant = name.rpartition(", ")[0]
        seconds.setdefault(variant, {})[speed["runs"]] = speed["seconds_per_step"]
    return {
        variant: {runs: one / own[1] for runs, one in sorted(own.items())}
        for variant, own in seconds.items()
        if 1 in own
    }


def _at_once(found: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    table = [("variant", "runs", "steps of all per second", "price in single steps", "gain")]
    prices = by_runs(found)
    for name, speed in found.items():
        variant, runs = name.rpartition(", ")[0], speed["runs"]
        price = prices.get(variant, {}).get(runs)
        told = ("", "") if price is None else (f"{price:.2f}", f"{runs / price:.2f}")
        table.append((variant, str(runs), f"{runs / speed['seconds_per_step']:,.1f}", *told))
    return columns(table)


def _projector(found: Mapping[str, Any], _: Mapping) -> list[str]:
    table = [("S", "arm", "loss", "minutes", "tokens/s")]
    for one in found.values():
        for arm, run in one["runs"].items():
            loss = run["validation_loss"]
            cells = ("diverged" if loss is None else f"{loss:.4f}", f"{run['seconds'] / 60:.1f}")
            table.append((f"{one['S']:g}", arm, *cells, f"{run['tokens_per_second']:,.0f}"))
    return columns(table)


_TABLES = {
    "tests": _tests,
    "parity": _parity,
    "speed": _speed,
    "shapes": _speed,
    "profile": _profile,
    "overhead": _overhead,
    "together": _at_once,
    "projector": _projector,
}
# In the order of the day.
PARTS = tuple(_TABLES)
