"""What a dry run prints: every run with its rules, costs and dimensionless products."""

from __future__ import annotations

from pathlib import Path

from lrm.cli import columns, counted, size
from lrm.plan import memory
from lrm.plan.config import Settings
from lrm.plan.cost import price
from lrm.plan.experiment import Experiment
from lrm.plan.rules import table
from lrm.plan.run import Run
from lrm.plan.timescales import products
from lrm.store.rundir import damage
from lrm.sweep import speed, together, twins
from lrm.sweep.cluster import shares
from lrm.sweep.cluster.settings import Cluster


def text(experiment: Experiment, runs: list[Run], results: Path) -> str:
    """The dry run's text."""
    lines = [f"{experiment.name}: {experiment.header.title}", ""]
    ratio = speed.measured(results, runs)
    seconds = left = dollars = disk = 0.0
    damaged = 0
    first: list[str] = []
    known: dict[Settings, list[str]] = {}  # seeds share a table, which may have many layers
    copies = _copies(runs, results)
    for run in runs:
        estimate = run.estimate()
        state = _state(run, results)
        copied = run.has_id and run.path(results) in copies
        own = 0.0 if copied else speed.seconds(run, ratio)
        state += ", a copy of another" if copied else ""
        seconds += own
        left += 0.0 if " finished" in state else own
        damaged += " damaged" in state
        dollars += own / 3600 * estimate.devices * run.cost.price_per_hour
        disk += estimate.disk
        lines.append(f"{run.label}  [{state}]")
        lines.append(f"  {run.summary()}, about {duration(own)}{_passes(run, estimate.tokens)}")
        if run.settings not in known:
            known[run.settings] = _tables(run)
        tables = known[run.settings]
        lines += _changed(first, tables) if first and tables else tables
        lines.append("")
        first = first or tables
    lines += _memory(runs)
    lines += together.told(runs)
    cost = runs[0].cost
    source = "measured on finished runs" if ratio else "by estimate"
    source += f"; {duration(left)} of them left" if left < seconds else ""
    lines.append(
        f"{counted(len(runs), 'run')}, {duration(seconds)} of {cost.machine} ({source})"
        f"{price(dollars)}; {size(disk)} of weights on disk"
    )
    if damaged:
        lines.append(f"{counted(damaged, 'finished run')} damaged: a sweep tells what to do, "
                     "and trains the others")  # fmt: skip
    return "\n".join(lines)


def _copies(runs: list[Run], results: Path) -> set[Path]:
    """The directories of runs that another one of ``runs`` stands for.

    That is the first finished one of those that compute the same, or where none is finished the one
    that is trained. Without a corpus a run has no id by which its twins could be told.
    """
    named = [(run, run.path(results)) for run in runs if run.has_id]
    named = [job for job in named if damage(job[1]) is None]
    finished: dict[tuple[str, str], Path] = {}
    for run, path in named:
        if run.is_finished(results):
            finished.setdefault(twins.kind(run), path)
    waiting = [(run, path) for run, path in named if twins.kind(run) not in finished]
    kept = {*finished.values(), *(path for _, path in twins.firsts(waiting))}
    # What was begun goes on by itself.
    kept |= {path for run, path in named if path.exists() and not run.is_finished(results)}
    return {path for _, path in named} - kept


def _passes(run: Run, tokens: float) -> str:
    """How often a run reads its text, where that is said and is more than once."""
    there = run.settings.data.tokens if run.reads_corpus else None
    times = tokens / there if there else 0.0
    return f"; reads its text {times:.1f} times" if times > 1.05 else ""


def _memory(runs: list[Run]) -> list[str]:
    """Of the run that needs most, where several processes share one."""
    shared = [run for run in runs if run.trains and run.execution.parallel is not None]
    if not shared:
        return []
    found = max((memory.of_process(run) for run in shared), key=lambda need: need.total)
    parallel = shared[0].execution.parallel
    return [
        f"memory of each of {parallel.replicate} × {parallel.shard} processes: about "
        f"{found.total / 1e9:,.1f} GB (weights, gradients and optimizer {found.state / 1e9:,.1f}, "
        f"gathered {found.gathered / 1e9:,.1f}, activations "
        f"{(found.entering + found.within) / 1e9:,.1f}); the first needs {found.copy / 1e9:,.1f} "
        "GB more, for a whole copy that is measured"
    ]


def of_cluster(runs: list[Run], results: Path, cluster: Cluster) -> str:
    """What the runs that have not finished need of a cluster."""
    missing = [run for run in runs if not run.is_finished(results)]
    # Without a corpus a run has no id by which its twins could be told.
    jobs = twins.firsts((run, run.path(results)) for run in missing if run.has_id)
    jobs += [(run, results / "runs" / run.experiment) for run in missing if not run.has_id]
    return "\n".join(shares.text(shares.shares(jobs, cluster, results), cluster))


def _state(run: Run, results: Path) -> str:
    if not run.has_id:
        return "id once the corpus is built"
    path = run.path(results)
    if damage(path) is not None:
        return f"{run.id} damaged"
    begun = "unfinished" if path.exists() else "missing"
    state = "finished" if run.is_finished(results) else begun
    return f"{run.id} {state}"


def duration(seconds: float) -> str:
    """For people: in the largest unit of which there are at least two."""
    for length, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _tables(run: Run) -> list[str]:
    """What the rules make of the run's tensors, and their dimensionless products."""
    if not run.plans:
        return []
    rules = _rules(table(run.plans, run.settings))
    return ["  " + line for line in [*rules, "", *_products(products(run.plans, run.settings))]]


def _changed(first: list[str], tables: list[str]) -> list[str]:
    """The lines of ``tables`` that the first run's do not have, and names that these lack."""
    there, here = ({" ".join(line.split()) for line in lines} for lines in (first, tables))
    names, own = ({line.strip().partition("  ")[0] for line in lines} for lines in (first, tables))
    new = [line for line in tables if " ".join(line.split()) not in there]
    # Rulers are as wide as their columns.
    new = [line for line in new if line.strip(" -")]
    gone = sorted(names - own - {""} - {n for n in names if not n.strip(" -")})
    if here == there or not (new or gone):
        return ["  (the first table)"]
    without = [f"  without {', '.join(gone)}"] if gone else []
    return ["  (the first table, but:)", *new, *without]


def _rules(records: list[dict]) -> list[str]:
    """Rows of equal settings in neighbouring layers are one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for record in records:
        name, _, layer = record["tensor"].partition("@")
        cells = (
            f"{name} · {record['multiplier']}" if record["multiplier"] else name,
            "×".join(map(str, record["shape"])),
            f"{record['forward']:.4g}",
            f"{record['init']:.4g}",
            _optimizer(record) if record["trainable"] else "",
            f"{record['lr']:.3g}" if record["trainable"] else "frozen",
            f"{record['weight_decay']:.3g}",
            f"{record['lr_wd']:.3g}",
            "yes" if record["in_clip_norm"] else "no",
        )
        rows.setdefault(cells, []).append(layer)
    head = ("tensor", "layers", "shape", "forward", "init", "optimizer", "lr", "wd", "lr·wd",
            "clipped")  # fmt: skip
    body = [
        (name, f"{layers[0]}-{layers[-1]}" if layers[0] else "", *cells)
        for (name, *cells), layers in rows.items()
    ]
    return columns([head, *body])


def _optimizer(record: dict) -> str:
    """Its name, with the momentum where rules may give one, and which rows it moves if not all."""
    momentum = f" {record['momentum']:g}" if "momentum" in record else ""
    return record["optimizer"] + momentum + (" seen" if record.get("rows") == "seen" else "")


def _products(records: list[dict]) -> list[str]:
    """One row for all layers of equal values."""
    formats = {"lr_wd_t": ".3g", "needed": ".2g", "travel": ".3g", "step": ".2g"}
    rows = []
    for record in records:
        name, _, rest = record["tensor"].partition("@")
        axis = rest.partition(".")[2]
        values = (format(record[key], form) if key in record else ""
                  for key, form in formats.items())  # fmt: skip
        rows.append((f"{name}.{axis}" if axis else name, *values))
    head = ("product", "Σηλ", "needed", "travel Ση", "step η/init")
    return columns([head, *dict.fromkeys(rows)])
