"""The benchmark's record as text. No torch here."""

from __future__ import annotations

from typing import Any

from lrm.cli import columns

# A thread that has a core to itself is busy for nearly all of the time.
FREE = 0.9


def render(record: dict[str, Any]) -> str:
    """Every table of a record, with what was left out and the state of the machine."""
    machine = record["machine"]
    lines = [
        f"{machine['processor']}, {record['cores']} of {machine['cores']} cores, "
        f"torch {machine['torch']} ({machine['vector_instructions']}), "
        f"transformers {machine['transformers']}, commit {machine['commit']}",
        f"load average {_load(record['load_at_start'])} at the start, "
        f"{_load(record['load_at_end'])} at the end; {record['pairs']} pairs a row, medians",
    ]
    for name, title, table in (
        ("rows", "tokens per second, side by side", lambda rows: _rows(rows, record)),
        ("parts", "one step by parts, milliseconds", _parts),
        ("memory", "peak memory, MB", _memory),
        ("whole", "whole runs", lambda runs: list(map(_whole, runs))),
        ("left_out", "left out", _left_out),
    ):
        if record[name]:
            lines += ["", f"## {title}", "", *table(record[name])]
    return "\n".join(lines)


def _left_out(left_out: list[dict]) -> list[str]:
    return [f"{each['row']}: {each['variant']}: {each['reason']}" for each in left_out]


def _load(load: list[float] | None) -> str:
    return "unknown" if load is None else f"{load[0]:g}"


def _rows(rows: list[dict], record: dict[str, Any]) -> list[str]:
    table = [("row", "configuration", "variant", "how", "tokens/s", "95%", "busy",
              f"loss after {record['warm_up_steps']}", "ratio", "95%")]  # fmt: skip
    for row in rows:
        ratio = row["ratio"]
        names = (row["row"], row["configuration"])
        ratios = (f"{ratio['median']:.3f}", f"{ratio['low']:.3f} to {ratio['high']:.3f}")
        table.append((*names, *_side(row["of"]), *ratios))
        table.append(("", "", *_side(row["against"]), "", ""))
    lines = columns(table)
    lines += ["", "The ratio is the median over pairs of the first variant's tokens/s over the "
              "second's; busy is the share of the time that its threads had a core."]  # fmt: skip
    sides = [row[name] for row in rows for name in ("of", "against")]
    if any(side["busy"] < FREE for side in sides if side["threads"] == 1):
        lines.append(f"The cores were shared with other work: busy should be above {FREE}.")
    least = min(row["ratio"]["coverage"] for row in rows)
    if least < 0.95:
        lines.append(f"Too few pairs for 95%: the intervals cover {100 * least:.0f}%.")
    return lines


def _side(side: dict) -> tuple[str, ...]:
    """The cells of one variant."""
    speed = side["tokens_per_second"]
    words = [
        f"processes {side['processes']} × threads {side['threads']}",
        side["execution"]["precision"],
        f"chunk {side['settings']['model']['mamba_chunk_size']}",
    ]
    if side["implementation"] == "transformers":
        words.append(side["picks"].get("attention", "eager"))
    return (
        side["variant"],
        ", ".join(words),
        f"{speed['median']:,.0f}",
        f"{speed['low']:,.0f} to {speed['high']:,.0f}",
        f"{side['busy']:.2f}",
        f"{side['loss_after_warm_up']:.4f}",
    )


def _parts(steps: list[dict]) -> list[str]:
    lines: list[str] = []
    for step in steps:
        whole = step["step"]["median"]
        parts: dict[str, dict[str, float]] = {}
        for part in step["parts"]:
            parts.setdefault(part["part"], {})[part["direction"]] = part["seconds"]
        how = f"{step['configuration']}, {step['execution']['precision']}, one thread"
        table = [(how, "forward", "backward", "other", "share")]
        for name, times in sorted(parts.items(), key=lambda item: -sum(item[1].values())):
            cells = [f"{1e3 * times[way]:.3f}" if way in times else ""
                     for way in ("forward", "backward", "")]  # fmt: skip
            table.append((name, *cells, f"{sum(times.values()) / whole:.1%}"))
        table.append(("not accounted for", "", "", "", f"{1 - step['accounted']:.1%}"))
        lines += [*([""] if lines else []), *columns(table)]
        lines.append(
            f"A step takes {1e3 * whole:.2f} ms, {1e3 * step['step_with_marks']['median']:.2f} ms "
            "with the marks that measure its parts."
        )
    return lines


def _memory(variants: list[dict]) -> list[str]:
    table = [("configuration", "variant", "precision", "resident, over the imports",
              "allocated by one step")]  # fmt: skip
    for each in variants:
        sizes = (each["resident"], each["allocated"])
        cells = ["unknown" if size is None else f"{size / 1e6:,.1f}" for size in sizes]
        precision = each["execution"]["precision"]
        table.append((each["configuration"], each["variant"], precision, *cells))
    return columns(table)


def _whole(run: dict) -> str:
    return (
        f"{run['variant']}, {run['configuration']}: {run['steps']} steps in "
        f"{run['seconds']:.1f} s, {run['tokens_per_second']:,.0f} tokens/s with everything; "
        f"probes {run['probe_fraction']:.1%} of the time"
    )
