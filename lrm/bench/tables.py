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
    for title, body in (
        ("tokens per second, side by side", _rows(record["rows"], record["warm_up_steps"])),
        ("one step by parts, milliseconds", _parts(record["parts"])),
        ("peak memory, MB", _memory(record["memory"])),
        ("whole runs", _whole(record["whole"])),
    ):
        if body:
            lines += ["", f"## {title}", "", *body]
    if record["left_out"]:
        lines += ["", "## left out", ""]
        lines += [f"{o['row']}: {o['variant']}: {o['reason']}" for o in record["left_out"]]
    return "\n".join(lines)


def _load(load: list[float] | None) -> str:
    return "unknown" if load is None else f"{load[0]:g}"


def _rows(rows: list[dict], steps: int) -> list[str]:
    if not rows:
        return []
    table = [("row", "configuration", "variant", "how", "tokens/s", "95%", "busy",
              f"loss after {steps}", "ratio", "95%")]  # fmt: skip
    least = 1.0
    for row in rows:
        for name in ("of", "against"):
            side, speed = row[name], row[name]["tokens_per_second"]
            ratio = row["ratio"]
            least = min(least, ratio["coverage"])
            first = name == "of"
            table.append(
                (
                    row["row"] if first else "",
                    row["configuration"] if first else "",
                    side["variant"],
                    _how(side),
                    f"{speed['median']:,.0f}",
                    f"{speed['low']:,.0f} to {speed['high']:,.0f}",
                    f"{side['busy']:.2f}",
                    f"{side['loss_after_warm_up']:.4f}",
                    f"{ratio['median']:.3f}" if first else "",
                    f"{ratio['low']:.3f} to {ratio['high']:.3f}" if first else "",
                )
            )
    lines = columns(table)
    lines += ["", "The ratio is the median over pairs of the first variant's tokens/s over the "
              "second's; busy is the share of the time that its threads had a core."]  # fmt: skip
    alone = [row[name]["busy"] for row in rows for name in ("of", "against")
             if row[name]["threads"] == 1]  # fmt: skip
    if min(alone, default=1.0) < FREE:
        lines.append(f"The cores were shared with other work: busy should be above {FREE}.")
    if least < 0.95:
        lines.append(f"Too few pairs for 95%: the intervals cover {100 * least:.0f}%.")
    return lines


def _how(side: dict) -> str:
    chunk = side["settings"]["model"]["mamba_chunk_size"]
    words = [
        f"processes {side['processes']} × threads {side['threads']}",
        side["execution"]["precision"],
        f"chunk {chunk}",
    ]
    if side["implementation"] == "transformers":
        words.append(side["picks"].get("attention", "eager"))
    return ", ".join(words)


def _parts(found: list[dict]) -> list[str]:
    lines: list[str] = []
    for one in found:
        step = one["step"]["median"]
        parts: dict[str, dict[str, float]] = {}
        for part in one["parts"]:
            parts.setdefault(part["part"], {})[part["direction"]] = part["seconds"]
        how = f"{one['configuration']}, {one['execution']['precision']}, one thread"
        table = [(how, "forward", "backward", "other",
                  "share")]  # fmt: skip
        for name, times in sorted(parts.items(), key=lambda item: -sum(item[1].values())):
            cells = [f"{1e3 * times[d]:.3f}" if d in times else "" for d in _DIRECTIONS]
            table.append((name, *cells, f"{sum(times.values()) / step:.1%}"))
        table.append(("not accounted for", "", "", "", f"{1 - one['accounted']:.1%}"))
        lines += [*([""] if lines else []), *columns(table)]
        lines.append(
            f"A step takes {1e3 * step:.2f} ms, {1e3 * one['step_with_marks']['median']:.2f} ms "
            "with the marks that measure its parts."
        )
    return lines


_DIRECTIONS = ("forward", "backward", "")


def _memory(found: list[dict]) -> list[str]:
    if not found:
        return []
    table = [("configuration", "variant", "precision", "resident, over the imports",
              "allocated by one step")]  # fmt: skip
    for one in found:
        sizes = (one["resident"], one["allocated"])
        cells = ["unknown" if size is None else f"{size / 1e6:,.1f}" for size in sizes]
        precision = one["execution"]["precision"]
        table.append((one["configuration"], one["variant"], precision, *cells))
    return columns(table)


def _whole(found: list[dict]) -> list[str]:
    return [
        f"{one['variant']}, {one['configuration']}: {one['steps']} steps in "
        f"{one['seconds']:.1f} s, {one['tokens_per_second']:,.0f} tokens/s with everything; "
        f"probes {one['probe_fraction']:.1%} of the time"
        for one in found
    ]
