"""What the report says, gathered from the ledger, the figures, the READMEs and the runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from analysis.claims.judging import BELOW, HOLDS, OPEN, PARTLY, REFUTED, TESTED, UNJUDGED
from analysis.claims.ledger import judge_and_write
from analysis.claims.stored import claims_file, read_ledger
from analysis.drawing.pictures import in_palette
from analysis.drawing.stamp import drawn_files, read_drawn, stamp_of
from analysis.figures.__main__ import drawn_of
from analysis.needs import figures, read_by
from analysis.report.archive import packed
from analysis.report.gains import Gains, gains_of
from analysis.report.intervals import Strip, strip
from analysis.report.readme import Readme, read
from analysis.tables.asked import find_asked
from analysis.tables.context import published_beside
from analysis.tables.criteria import every_criterion
from analysis.tables.find import EXPERIMENTS, RESULTS, ROOT, NothingFound
from lrm.errors import UserError
from lrm.plan.experiment import load
from lrm.plan.yaml import read_yaml
from lrm.store.digests import is_listed, restore

# The scale whose published runs are summed up.
SCALE = "tiny"
ABSTRACT = Path(__file__).with_name("abstract.yaml")
# Where claims that no experiment decides are shown.
LIBRARY = "library"
PAPER, OURS = "the paper", "ours"
# Claims that neither experiment nor statement places: the library's benchmark of the second paper,
# the main paper's advice in the second paper's model, and a limit on the cost that the paper lacks.
_WHOSE = {"SV22": "second paper", "X1": OURS, "I1.3": OURS}
VERDICTS = (HOLDS, PARTLY, BELOW, REFUTED, OPEN, UNJUDGED, TESTED)
# Of a drawing. Its lines as PDF and SVG stay in ``results``: the report is to be sent.
FORMATS = ("png", "csv")
# Of a small picture, in pixels: 1.4 times what the front page shows.
SMALL = (448, 224)


@dataclass(frozen=True)
class Claim:
    """A claim's record of the ledger, the experiment that decides it, and its strips.

    ``text`` is whose claim it is: ``PAPER``, a text that it names, or ``OURS``. ``published`` is
    the published verdict, where the record is of somebody's own runs. ``earlier`` are the other
    entries of its number in the same experiment, oldest last.
    """

    record: dict[str, Any]
    experiment: str
    text: str
    strips: list[tuple[dict[str, Any], Strip | None]]
    contrast: list[tuple[dict[str, Any], Strip | None]]
    published: str | None = None
    earlier: list[Claim] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.record["id"]

    @property
    def statement(self) -> str:
        text = self.record["statement"]
        return text[0].upper() + text[1:]

    @property
    def main(self) -> dict[str, Any] | None:
        """The first of its parts that was measured."""
        measured = (part for part in self.record["parts"] if part["value"] is not None)
        return next(measured, None)

    @property
    def is_refuted_in_part(self) -> bool:
        """Whether a group of its parts is refuted, tests stricter than the statement aside."""
        return bool(self._groups(REFUTED))

    @property
    def open_groups(self) -> list[str]:
        """The groups of its parts that are open, tests stricter than the statement aside."""
        return self._groups(OPEN)

    def _groups(self, verdict: str) -> list[str]:
        own = {part["group"] for part in self.record["parts"] if part["ours"]}
        groups = self.record["groups"].items()
        return [group for group, word in groups if word == verdict and group not in own]

    @property
    def decider(self) -> str:
        """What would decide it while it is open, by the newest of its entries, judged or not."""
        newest = max((self, *self.earlier), key=lambda claim: _entry(claim.id))
        return newest.record["if_open"] or ""

    @property
    def page(self) -> str:
        return f"{self.experiment}.html#{self.id}"


@dataclass(frozen=True)
class Figure:
    """A drawing: its one-line description, and the content of its files by ending.

    Numbers come as ``csv.zip``, which pandas and file managers open; plain they would be most of
    the report.

    ``small`` is the drawing as a small PNG, ``published`` the published one as a PNG, and
    ``caption`` HTML of the experiment's README about the latter.
    """

    name: str
    title: str
    files: dict[str, bytes]
    small: bytes
    caption: str | None = None
    published: bytes | None = None


@dataclass(frozen=True)
class Page:
    """An experiment; ``claims`` has the newest of its entries of each claim."""

    name: str
    title: str
    readme: Readme | None
    claims: list[Claim]
    figures: list[Figure]
    runs: list[dict[str, Any]]
    facts: dict[str, str | None]

    @property
    def waits(self) -> bool:
        """Whether it has no verdict so far, and if it asks for none, nothing to see either."""
        return none_judged(self.claims) and not (self.figures and not self.claims)

    @property
    def counts(self) -> dict[str, int]:
        """How many of its claims have each verdict that there is."""
        return counts_of(self.claims)

    @property
    def seeds(self) -> list[int]:
        return sorted({run["seed"] for run in self.runs if run["kind"] != "brownian"})


@dataclass(frozen=True)
class Sentence:
    """A sentence of the abstract, and the claims that bear on it."""

    text: str
    claims: list[Claim]
    without: str | None


@dataclass(frozen=True)
class Site:
    """All that the report shows. ``counts``: how many claims have each verdict
    that there is."""

    scale: str
    source: str
    bottom_line: list[str]
    gains: Gains | None
    abstract: list[Sentence]
    pages: list[Page]
    multiplicity: dict[str, Any]
    # Whether these are the runs of which the pages of the experiments tell.
    written: bool

    @property
    def claims(self) -> list[Claim]:
        return [claim for page in self.pages for claim in page.claims]

    @property
    def texts(self) -> list[str]:
        """Whose claims there are, in the order in which they come."""
        return list(dict.fromkeys(claim.text for claim in self.claims))

    @property
    def counts(self) -> dict[str, int]:
        return counts_of(self.claims)


def none_judged(claims: Iterable[Claim]) -> bool:
    """Whether none of these claims, if there are any, is judged so far."""
    return all(claim.record["verdict"] == UNJUDGED for claim in claims)


def counts_of(claims: Iterable[Claim]) -> dict[str, int]:
    """How many claims have each verdict, of those that there are."""
    verdicts = [claim.record["verdict"] for claim in claims]
    return {word: verdicts.count(word) for word in VERDICTS if word in verdicts}


def gather(scale: str, source: str, results: Path) -> Site:
    """The report's content, from the published runs or from somebody's own, which are judged.

    Raises UserError where the ledger of that source is missing or damaged, and where a README or
    the list of the abstract's sentences does not fit.
    """
    if source == "runs":
        ledger, _ = judge_and_write(scale, source, results)
    else:
        file = claims_file(scale, source, results)
        if not file.exists() and not is_listed(file):
            raise UserError(f"there are no verdicts in {file}; make publish writes them, and make "
                            "report FROM=runs shows your own runs")  # fmt: skip
        ledger = read_ledger(file)
    published: dict[str, str] = {}
    beside = claims_file(scale, "reference", published_beside(scale, results))
    if source == "runs" and (beside.exists() or is_listed(beside)):
        stored = read_ledger(beside)
        published = {record["id"]: record["verdict"] for record in stored["claims"]}
    claims = newest(ledger["claims"], published)
    pages = []
    stale = _of_other_runs(scale, source, results)
    for name in ordered():
        own = [claim for claim in claims if claim.experiment == name]
        pages.append(_page(name, own, scale, source, results, stale))
    pages.append(_library([claim for claim in claims if claim.experiment == LIBRARY]))
    written = (scale, source) == (SCALE, "reference") and results.resolve() == RESULTS.resolve()
    said, table = (bottom_line(), gains()) if written else ([], None)
    multiplicity = ledger["multiplicity"]
    return Site(scale, source, said, table, _abstract(claims), pages, multiplicity, written)


def _of_other_runs(scale: str, source: str, results: Path) -> frozenset[str]:
    """Own drawings that are not of the runs and searches of now; each is told once."""
    if source == "reference":
        return frozenset()
    folder = results / "figures" / scale
    drawn = [name for name in figures() if stamp_of(folder, name).exists()]
    found = [name for name in drawn if not drawn_of(name, scale, source, results, folder)]
    for name in found:
        print(f"left out: {name} was drawn of other runs, or another search; make {name}")
    return frozenset(found)


def newest(records: Iterable[dict[str, Any]], published: dict[str, str]) -> list[Claim]:
    """One claim for each number, experiment and text: of its entries the newest that was judged.

    One whose seeds are not all there yet is open whatever they say, and does not count as judged.
    An entry replaces those of its own experiment, and of the one that this ``replaces``. Another
    experiment asks something else (S6.2 is about bfloat16, S6.3 about float16), so that its entry
    stands beside them.
    """
    criteria = every_criterion()
    configs = {name: load(EXPERIMENTS / name / "config.yaml") for name in ordered()}
    replaced = {name: config.header.replaces or name for name, config in configs.items()}
    texts = {name: facts_of(EXPERIMENTS / name / "config.yaml")["text"] for name in ordered()}
    entries: dict[tuple[str, str, str], list[Claim]] = {}
    for record in records:
        experiment = criteria.get(record["id"], {}).get("experiment", LIBRARY)
        text = _WHOSE.get(record["id"]) or _text(record["statement"], texts.get(experiment))
        parts = [(part, strip(part)) for part in record["parts"]]
        needed = [(part, strip(part)) for part in record["contrast"]]
        claim = Claim(record, experiment, text, parts, needed, published.get(record["id"]))
        asked = _number(claim.id), replaced.get(experiment, experiment), text
        entries.setdefault(asked, []).append(claim)
    found = []
    for of_claim in entries.values():
        # Those that wait for their seeds come last; they say so on the page.
        of_claim.sort(key=lambda c: (waits(c.record), -_entry(c.id)))
        first, *others = of_claim
        first.earlier.extend(others)
        found.append(first)
    return found


def still_open(claim: Claim, claims: Iterable[Claim]) -> list[str]:
    """Its open groups, but for those that a later entry of its number decides elsewhere."""
    later = (
        other
        for other in claims
        if _number(other.id) == _number(claim.id) and _entry(other.id) > _entry(claim.id)
    )
    decided = {
        group for other in later for group, word in other.record["groups"].items() if word != OPEN
    }
    return [group for group in claim.open_groups if group not in decided]


def waits(record: dict[str, Any]) -> bool:
    """Whether seeds are missing of those that an entry has planned, or all."""
    n, planned = record["n"] or 0, record["planned"] or 0
    return record["verdict"] == UNJUDGED or n < planned


def _text(statement: str, named: str | None) -> str:
    """Whose claim it is; a statement of ours says so in front or at its end."""
    return OURS if re.search(r"^\(?ours\b|\(ours\)$", statement) else named or PAPER


def _number(claim: str) -> str:
    """S6 of S6.2."""
    return claim.partition(".")[0]


def _entry(claim: str) -> int:
    return int(claim.partition(".")[2] or 1)


def ordered() -> list[str]:
    """The names of all experiments, in the order of their claims."""
    headers = {path.parent.name: load(path).header for path in EXPERIMENTS.glob("*/config.yaml")}
    # As the ledger has them (``analysis.tables.criteria``): those without a number come last.
    return sorted(headers, key=lambda n: (headers[n].order is None, headers[n].order, n))


def _page(
    name: str,
    claims: list[Claim],
    scale: str,
    source: str,
    results: Path,
    stale: Collection[str],
) -> Page:
    folder = EXPERIMENTS / name
    readme = None
    if (folder / "README.md").exists():
        readme = read(folder / "README.md", partial(_link, folder))
    try:
        runs = [description for description, _ in find_asked(name, scale, source, results)]
    except NothingFound:
        runs = []
    facts = facts_of(folder / "config.yaml")
    drawings = [f for f in _drawings(name, facts["figures"] or "") if f not in stale]
    title = readme.title if readme else load(folder / "config.yaml").header.title
    captions = readme.captions if readme else {}
    return Page(
        name,
        title,
        readme,
        claims,
        [f for name in drawings if (f := _figure(name, captions, scale, source, results))],
        sorted(runs, key=lambda run: (run["kind"], run["label"])),
        facts,
    )


def _library(claims: list[Claim]) -> Page:
    """What the benchmark and the tests decide."""
    title = "The library: what multipliers cost"
    return Page(
        LIBRARY,
        title,
        None,
        claims,
        [],
        [],
        {
            "question": "What do multipliers cost, and do both implementations train alike?",
            "run": "make bench, make test",
            "cost": None,
            "figures": None,
        },
    )


def _drawings(experiment: str, named: str) -> list[str]:
    """The figures that read an experiment: those that its YAML names first, in its order."""
    those = [f for f in figures() if experiment in read_by(f)]
    order = re.findall(r"\w+", named)
    return sorted(those, key=lambda f: (order.index(f) if f in order else len(order), f))


def _figure(
    name: str, captions: dict[str, str], scale: str, source: str, results: Path
) -> Figure | None:
    """A drawing of that source; None where it has not been drawn. UserError for a damaged one."""
    kept = results if source == "reference" else published_beside(scale, results)
    there = _drawn(name, kept / "reference" / scale / "figures", restore)
    told = captions.get(f"{scale}/{name}") if kept.resolve() == RESULTS.resolve() else None
    if source == "reference":
        return there and Figure(name, _first_line(name), *there, told)
    folder = results / "figures" / scale
    own = _drawn(name, folder, lambda _: f"draw it by make {name}")
    if own is None:
        return None
    beside = there[0]["png"] if there else None
    caption = told if beside else None
    return Figure(name, _first_line(name), *own, caption, beside)


def _drawn(
    name: str, folder: Path, remedy: Callable[[Path], str]
) -> tuple[dict[str, bytes], bytes] | None:
    """A drawing's files by ending, and it small; None where it was not drawn in all formats."""
    paths = {kind: folder / f"{name}.{kind}" for kind in FORMATS}
    stamp = stamp_of(folder, name)
    if not any(path.exists() for path in (stamp, *paths.values())):
        return None
    there = drawn_files(stamp, remedy(folder))
    if any(path.name not in there and not path.exists() for path in paths.values()):
        return None
    found = {kind: read_drawn(path, remedy(folder)) for kind, path in paths.items()}
    found["csv.zip"] = packed({f"{name}.csv": found.pop("csv")})
    return found, in_palette(found["png"], SMALL)


def _first_line(figure: str) -> str:
    source = (Path(__file__).parents[1] / "figures" / f"{figure}.py").read_text(encoding="utf-8")
    text = (ast.get_docstring(ast.parse(source)) or figure).partition("\n")[0]
    return text.rstrip(".")


def facts_of(config: Path) -> dict[str, str | None]:
    """The fields of the comment that opens a YAML: run, cost and others."""
    found: dict[str, str | None] = dict.fromkeys(("question", "run", "cost", "figures", "text"))
    field = None
    for line in config.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if match := re.fullmatch(r"#   (\w+): +(.*)", line):
            field, found[match[1]] = match[1], match[2]
        elif field and (match := re.fullmatch(r"# {5,}(.*)", line)):
            found[field] = f"{found[field]} {match[1]}"
        else:
            field = None
    return found


def _link(folder: Path, target: str) -> str | None:
    """A README's target in the report: a page for an experiment, a drawing for a picture."""
    if re.match(r"https?://", target):
        return target
    if target.startswith("#"):
        return None
    path = (folder / target.partition("#")[0]).resolve()
    path = path.parent if path.name in ("README.md", "config.yaml", "criteria.yaml") else path
    if path.parent == EXPERIMENTS and (path / "config.yaml").exists():
        return f"{path.name}.html"
    if path.suffix == ".png" and path.stem in figures():
        return f"figures/{path.name}"
    return None


def bottom_line() -> list[str]:
    """What the published runs come to: Markdown in paragraphs."""
    return [" ".join(text.split()) for text in read_yaml(ABSTRACT)["bottom_line"]]


def gains() -> Gains:
    """The table after the first paragraph of ``bottom_line``; UserError as ``gains_of``."""
    return gains_of(read_yaml(ABSTRACT)["gains"])


def headline() -> str:
    """The experiment of the paper's main result."""
    return read_yaml(ABSTRACT)["headline"]


def _abstract(claims: list[Claim]) -> list[Sentence]:
    """The sentences of ``abstract.yaml``. Raises UserError for a claim that there is not."""
    known: dict[str, list[Claim]] = {}
    for claim in claims:
        known.setdefault(_number(claim.id), []).append(claim)
    found = []
    for entry in read_yaml(ABSTRACT)["sentences"]:
        named = entry.get("claims", [])
        if unknown := [name for name in named if name not in known]:
            raise UserError(f"{ABSTRACT.relative_to(ROOT)}: no claim {', '.join(unknown)}")
        of_them = [claim for name in named for claim in known[name]]
        found.append(Sentence(entry["text"], of_them, entry.get("without")))
    return found
