"""The report: pages that hold together, and what a browser makes of them."""

import json
import re
import shutil
import subprocess
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import matplotlib.pyplot as plt
import pytest

from analysis.claims.judging import HOLDS, OPEN, UNJUDGED
from analysis.drawing.stamp import stamp_of
from analysis.figures.__main__ import drawn_of
from analysis.report import idea
from analysis.report.__main__ import pack, write
from analysis.report.content import LIBRARY, Site, _figure, facts_of, gains, gather, newest
from analysis.report.gains import gains_of
from analysis.report.intervals import WIDTH, strip
from analysis.report.overview import (
    Row,
    current,
    elsewhere,
    listing,
    renewed,
    rows,
    table,
    tally,
    undecided,
)
from analysis.report.overview import pages as overviews
from analysis.report.readme import read
from analysis.tables.find import EXPERIMENTS, RESULTS
from lrm.errors import UserError
from lrm.store.files import as_json, write_listed

REMEDY = "make readme"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Parsed(HTMLParser):
    """Targets, anchors and images of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.targets, self.loaded, self.ids, self.images = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        if tag == "a":
            self.targets.append(found["href"])
        elif tag in ("script", "img", "link"):
            self.loaded.append(found.get("src") or found["href"])
        if tag == "img":
            self.images.append(found)


@pytest.fixture(scope="module")
def site() -> Site:
    return gather("tiny", "reference", RESULTS)


@pytest.fixture(scope="module")
def report(site, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "tiny"
    write(site, folder)
    return folder


@pytest.fixture(scope="module")
def pages(report) -> dict[str, Parsed]:
    return {path.name: Parsed(path.read_text("utf-8")) for path in report.glob("*.html")}


def test_every_link_leads_somewhere(report, pages):
    for name, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), f"{name} has an id twice"
        for target in page.targets + page.loaded:
            if target.startswith(("https://", "data:")):
                continue
            path, _, anchor = target.partition("#")
            path = path.partition("?")[0] or name
            assert (report / path).exists(), f"{name}: {target}"
            if anchor:
                assert unquote(anchor) in pages[path].ids, f"{name}: {target}"


def test_the_folder_needs_no_network_and_is_small(report, pages):
    for page in pages.values():
        assert not [target for target in page.loaded if re.match(r"(https?:)?//", target)]
    style = (report / "report.css").read_text() + (report / "report.js").read_text()
    assert "//" not in re.sub(r"^\s*//.*$", "", style, flags=re.MULTILINE)
    assert sum(path.stat().st_size for path in report.rglob("*") if path.is_file()) < 10e6


def test_the_front_page_has_the_table_of_gains(report):
    front = (report / "index.html").read_text(encoding="utf-8")
    for row in gains().rows:
        assert all(f"<td>{cell}</td>" in front for cell in row if "*" not in cell)
        assert all(f"<strong>{cell.strip('*')}</strong>" in front for cell in row if "*" in cell)


def test_the_results_in_the_repository_s_pages_are_current():
    for path, text in overviews().items():
        assert path.read_text(encoding="utf-8") == text, REMEDY


def test_every_experiment_is_in_one_of_the_overviews():
    text = "".join(overviews().values())
    for config in EXPERIMENTS.glob("*/config.yaml"):
        name = config.parent.name
        linked = sum(map(text.count, (f'"experiments/{name}"', f'href="{name}"', f"]({name})")))
        assert linked == 1, name
        assert "\n#   question: " in config.read_text(encoding="utf-8"), f"{name}: no question"


def test_the_rows_of_the_overview_and_the_library_have_all_claims():
    """A claim counts once, in the row of the experiment that decides it: the paper's, and ours."""
    claims = current()
    numbers = [(claim.id.partition(".")[0], claim.experiment, claim.text) for claim in claims]
    assert len(set(numbers)) == len(numbers)
    shown = [claim.id for row in rows() for claim in row.claims]
    shown += [claim.id for claim in claims if claim.experiment == LIBRARY]
    assert sorted(shown) == sorted(claim.id for claim in claims)


def test_an_experiment_that_replaces_another_takes_its_claims_once_they_are_judged():
    ledger = json.loads((RESULTS / "reference/tiny/claims.json").read_text())["claims"]
    records = {record["id"]: record for record in ledger if record["id"] in ("T1", "T1.2")}
    for verdict, n, counts, other in (
        (UNJUDGED, 0, "T1", "T1.2"),
        (OPEN, 3, "T1", "T1.2"),  # of eight seeds
        (OPEN, 8, "T1.2", "T1"),
        (HOLDS, 8, "T1.2", "T1"),
    ):
        of_both = [records["T1"], records["T1.2"] | {"verdict": verdict, "n": n}]
        [claim] = newest(of_both, {})
        assert (claim.id, [each.id for each in claim.earlier]) == (counts, [other])
    assert claim.experiment == "tuning_apart"


def test_a_figure_of_an_earlier_version_is_not_drawn_yet(tmp_path):
    folder = tmp_path / "figures" / "tiny"
    folder.mkdir(parents=True)
    for name in ("fig1.svg", "fig1.pdf", "fig1.csv"):
        (folder / name).write_text("as it was")
    for stamp in ({"code": "1", "runs": "2"}, {"inputs": {}, "outputs": {"fig1.csv": "3"}}):
        (folder / ".fig1.json").write_text(json.dumps(stamp))
        assert _figure("fig1", {}, "tiny", "runs", tmp_path) is None
    (folder / "fig1.png").write_text("no stamp tells of it")
    with pytest.raises(UserError, match="draw it by make fig1"):
        _figure("fig1", {}, "tiny", "runs", tmp_path)


def test_an_overview_counts_and_breaks_lines(site):
    claims = site.claims
    counts = {w: sum(c.record["verdict"] == w for c in claims) for w in ("holds", "open")}
    told = tally(claims)
    assert f"{counts['holds']} hold, " in told and f", {counts['open']} open" in told
    assert tally(c for c in claims if c.id == "P0") == "1 holds" and tally([]) == ""
    words = Row("some_name", ["fig8", "table1"], "Why < so?", "word " * 60 + "end.", claims)
    text = table([words, replace(words, name="another", text="second paper")])
    assert "another" not in text
    assert max(map(len, text.splitlines())) <= 120 and "<td>8, table 1<td>" in text
    assert '<a href="experiments/some_name">Why &lt; so?</a>' in " ".join(text.split())
    assert "some_name" not in listing([words])
    assert '<a href="another">' in listing([replace(words, name="another", text="second paper")])
    assert "](some_name) word" in listing([replace(words, claims=[])])


def test_gains_are_those_of_the_ledger(tmp_path):
    """A cell without runs says so, and one whose interval lies above 0 is bold."""

    def part(name, value, interval, n):
        return {"name": name, "value": value, "interval": interval, "n": n}

    parts = [part("Adam: gain", 0.0126, [0.004, 0.02], 8), part("Muon: gain", None, None, 0)]
    more = [part("Adam: gain", -0.02, [-0.03, 0.01], 6), part("Muon: gain", 0.0, None, 6)]
    for scale, of_claim in (("tiny", parts), ("mini", more)):
        folder = tmp_path / "reference" / scale
        folder.mkdir(parents=True)
        ledger = {"claims": [{"id": "T1", "parts": of_claim}], "multiplicity": {}}
        write_listed(folder, {"claims.json": as_json(ledger)})
    entries = [
        {"row": "both", "part": "{optimizer}: gain", "claims": {"tiny": "T1", "mini": "T1"}},
        {"row": "one", "part": "{optimizer}: gain", "claims": {"mini": "T1"}},
    ]
    found = gains_of(entries, tmp_path)
    assert found.head[1:] == ["`tiny`, AdamW, n = 8", "`tiny`, Muon", "`mini`, AdamW, n = 6",
                              "`mini`, Muon, n = 6"]  # fmt: skip
    late = ["−0.020 [−0.030, 0.010]", "0.000"]
    assert found.rows == [
        ["both", "**0.013 [0.004, 0.020]**", "not run", *late],
        ["one", "not run", "not run", *late],
    ]
    for wrong in ({"part": "{optimizer}: loss"}, {"claims": {"tiny": "T7"}}):
        with pytest.raises(UserError, match="there is no claim T. .*; correct the gains in"):
            gains_of([entries[0] | wrong], tmp_path)


def test_an_overview_tells_of_other_scales(tmp_path):
    """Of claims all of whose seeds are there and that have a number; not of this scale's own."""
    ledger = json.loads((RESULTS / "reference/tiny/claims.json").read_text())
    assert elsewhere(tmp_path) == {}
    records = {record["id"]: record for record in ledger["claims"]}
    empty = [part | {"value": None} for part in records["P3"]["parts"]]
    of_mini = [records["P1"], records["P2"] | {"n": 1}, records["P3"] | {"parts": empty}]
    folder = tmp_path / "reference" / "mini"
    folder.mkdir(parents=True)
    write_listed(folder, {"claims.json": as_json(ledger | {"claims": of_mini})})
    found = elsewhere(tmp_path)
    assert {scale: [claim.id for claim in claims] for scale, claims in found.items()} == {
        "mini": ["P1"]
    }
    row = Row("some_name", ["fig8"], "Why?", "So.", [], elsewhere=found)
    assert not row.unjudged and "<td>at mini: 1 holds" in " ".join(table([row]).split())


def test_an_overview_lists_what_is_open():
    """Groups of the paper's own that are open, and what the newest entry says of them."""
    ledger = json.loads((RESULTS / "reference/tiny/claims.json").read_text())
    records = {record["id"]: record for record in ledger["claims"]}
    first = records["P1"]["parts"][0]
    parts = [first | {"group": name, "ours": name == "stricter"} for name in ("one", "stricter")]
    groups = {"one": "open", "two": "holds", "stricter": "open"}
    judged = records["P1"] | {"verdict": "partly", "groups": groups, "parts": parts}
    later = records["P1.2"] | {"verdict": "not judged", "n": 0, "if_open": "more seeds"}
    whole = records["P2"] | {"groups": {"": "open"}, "if_open": "a longer run"}
    stricter = records["P3"] | {"groups": {"stricter": "open"}, "parts": parts}
    of_a_layer = {"‖y‖ of a layer": "open", "‖W‖": "open"}
    layer = records["WS5"] | {"groups": of_a_layer, "parts": [], "if_open": "wider"}
    apart = records["WS5.2"] | {"groups": {"‖y‖ of a layer": "holds"}, "parts": []}
    rows = undecided(newest([judged, later, whole, stricter, layer, apart], {}))[2:]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert [(cell[0], *cell[2:]) for cell in cells] == [
        ("P1", "one", "more seeds"), ("P2", "all of it", "a longer run"), ("WS5", "‖W‖", "wider"),
    ]  # fmt: skip


def test_a_field_of_a_head_may_have_several_lines(tmp_path):
    head = (
        "# A title\n#   cost:   an hour\n#           of one core\n#   run:    make it\n#\n#   none"
    )
    (tmp_path / "config.yaml").write_text(f"{head}\ntitle: a\n")
    found = facts_of(tmp_path / "config.yaml")
    assert (found["cost"], found["run"]) == ("an hour of one core", "make it")


def test_the_picture_of_the_idea_shows_the_equilibrium():
    for lr, weight_decay in ((8e-3, 0.5), (8e-3, 1.0)):
        late = [idea.walk(start, lr, weight_decay, 2000)[1500:].mean() for start in (0.0, 0.3)]
        assert late == pytest.approx([(lr / (2 * weight_decay)) ** 0.5] * 2, rel=0.03)
    with plt.style.context(idea.STYLE_FILE):
        figure = idea.draw(idea.published())
    raw, freed = (line.get_ydata() for line in figure.axes[2].lines)
    assert max(raw) > 500 * min(raw) and max(freed) < 1.5 * min(freed)


def test_a_page_without_marks_says_so(tmp_path):
    (tmp_path / "README.md").write_text("# A page\n")
    with pytest.raises(UserError, match="put the lines <!-- results"):
        renewed(tmp_path / "README.md", "")


def test_every_experiment_has_a_page_and_a_conclusion(report, pages):
    for config in EXPERIMENTS.glob("*/config.yaml"):
        name = config.parent.name
        found = read(config.with_name("README.md"), lambda target: None)
        assert found.conclusion.endswith("."), f"{name}: the conclusion is no sentence"
        assert found.conclusion in (report / f"{name}.html").read_text("utf-8")
    assert {f"{c.parent.name}.html" for c in EXPERIMENTS.glob("*/config.yaml")} <= set(pages)
    for page in pages.values():
        assert all(image["alt"] for image in page.images)


def test_from_a_sentence_of_the_abstract_to_its_runs_in_two_clicks(report, pages):
    front = (report / "index.html").read_text("utf-8")
    abstract = front[front.index('class="abstract"') : front.index('id="figures"')]
    chips = Parsed(abstract).targets
    assert len(chips) > 20
    for target in chips:
        page = (report / target.partition("#")[0]).read_text("utf-8")
        judged = "not judged" not in abstract.split(f'href="{target}"')[1].split("</a>")[0]
        assert ("Every run, with its id" in page) or not judged


def test_a_folder_that_is_no_report_is_left_alone(site, tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="is no report; move it away"):
        write(site, tmp_path / "tiny")
    assert (tmp_path / "tiny" / "thesis.tex").read_text() == "mine"


def test_a_report_replaces_its_predecessor_and_packs_to_the_same_bytes(site, tmp_path):
    write(site, tmp_path / "tiny")
    (tmp_path / "tiny" / "old.html").write_text("of a page that is gone")
    first = pack(tmp_path / "tiny").read_bytes()
    write(site, tmp_path / "tiny")
    assert not (tmp_path / "tiny" / "old.html").exists()
    assert pack(tmp_path / "tiny").read_bytes() != first
    assert pack(tmp_path / "tiny").read_bytes() == pack(tmp_path / "tiny").read_bytes()


def test_own_runs_stand_beside_what_is_published(tmp_path):
    """Nothing trained yet: every claim is open to judge, and its published verdict is shown."""
    shutil.copytree(RESULTS / "reference" / "tiny", tmp_path / "reference" / "tiny")
    shutil.copytree(RESULTS / "reference" / "bench", tmp_path / "reference" / "bench")
    site = gather("tiny", "runs", tmp_path)
    write(site, tmp_path / "report")
    assert site.counts.keys() <= {"not judged", "decided by tests"}
    text = (tmp_path / "report" / "index.html").read_text("utf-8")
    assert "published: holds" in text and "your own runs" in text


def record(claim: str, verdict: str) -> dict:
    said = {"id": claim, "verdict": verdict, "statement": "it is so", "n": 8, "planned": 8}
    return said | {"parts": [], "contrast": []}


def test_the_newest_entry_that_was_judged_comes_first():
    records = [record("P1", "holds"), record("P1.2", "open")]
    records += [record("M8", "holds"), record("M8.2", "not judged")]
    found = newest(records, {})
    entries = [[claim.id, *(other.id for other in claim.earlier)] for claim in found]
    assert entries == [["P1.2", "P1"], ["M8", "M8.2"]]


def test_an_entry_of_another_experiment_hides_no_verdict():
    """The refuted S6.2 is about bfloat16; S6.3, of symmetry_float16, has a higher number."""
    verdicts = {"S6": "open", "S6.2": "refuted", "S6.3": "holds"}
    found = newest([record(*each) for each in verdicts.items()], {})
    assert {c.experiment: (c.id, [e.id for e in c.earlier]) for c in found} == {
        "symmetry_stress": ("S6.2", ["S6"]),
        "symmetry_float16": ("S6.3", []),
    }
    shown = {row.name: tally(row.claims) for row in rows()}
    assert "refuted" in shown["symmetry_stress"] and "partly" in shown["table1"]


def part(value, low, high, region, matters=None) -> dict:
    return {"value": value, "interval": [low, high], "region": region, "matters": matters}


def test_a_strip_shows_the_interval_against_what_is_asked():
    found = strip(part(0.2, 0.1, 0.3, [0.05, None], 0.05))
    start, length = found.region
    assert start + length == pytest.approx(WIDTH)  # open to the right
    assert start < found.interval[0] < found.estimate < sum(found.interval) < WIDTH
    assert found.matters[0] < start and sum(found.matters) == pytest.approx(start)
    assert [label for _, label in found.marks][0] == "0.05"

    outside = strip(part(0.2, 0.1, 0.3, [None, 0.05]))
    assert outside.region[0] == 0 and sum(outside.region) < outside.interval[0]
    point = strip(part(0.0, 0.0, 0.0, [None, 0.0]))
    assert 0 < point.estimate < WIDTH
    assert strip(part(None, 0, 0, [0, None])) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("What came out", "the first line has to be its title"),
        ("# Title\n\n## What came out\n\nIt held.", "with a sentence in bold"),
        ("# Title\n\n## Results\n\n**It held.**", "with a sentence in bold"),
        ("# Title\n\nNothing has run.", "with a sentence in bold"),
    ],
)
def test_a_readme_without_title_or_conclusion_is_named(tmp_path, text, message):
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read(path, lambda target: None)


def test_a_readme_in_parts(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(
        "# A title\n\nThe [question](../x).\n\n## What came out\n\n"
        "**It held <b>.** At [a](a.png) scale.\n\n![a](../r/tiny/figures/a.png)\n\n"
        "*A <b> [line](../x)\nrises.*\n\n![a](../r/mini/figures/a.png)\n\n*Another.*\n\n"
        "## What differs\n\n*Nothing.* Or so.\n"
    )
    found = read(path, {"a.png": "figures/a.png"}.get)
    assert (found.title, found.conclusion) == ("A title", "It held &lt;b&gt;.")
    names, bodies = zip(*found.sections, strict=True)
    assert names == ("", "What came out", "What differs")
    assert bodies[0].strip() == "<p>The question.</p>"
    assert '<a href="figures/a.png">a</a> scale.' in bodies[1] and "<img" not in bodies[1]
    captions = {"tiny/a": "A &lt;b&gt; line\nrises.", "mini/a": "Another."}
    assert found.captions == captions and "rises" not in "".join(bodies)
    assert "<em>Nothing.</em> Or so." in bodies[2]


def test_a_browser_sorts_and_filters_without_an_error(report, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        message = "no browser: sorting and filtering are NOT tested; apt install chromium"
        warnings.warn(message, stacklevel=1)
        pytest.skip(message)

    def seen(query: str) -> tuple[str, str]:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        address = f"{(report / 'index.html').as_uri()}{query}"
        run = [browser, *flags, profile, "--virtual-time-budget=3000", "--dump-dom", address]
        done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=True)
        errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return done.stdout, "\n".join(errors)

    text, errors = seen("?verdict=holds&sort=n")
    assert not errors
    total, shown = len(re.findall("<tr data-verdict=", text)), text.count('data-verdict="holds"')
    assert f"{shown} of {total} claims" in text and 0 < shown < total
    assert text.count("hidden") >= total - shown
    numbers = [int(n) for n in re.findall(r'data-label="n" data-value="(\d+)"', text)]
    assert numbers == sorted(numbers) and len(numbers) == total
    assert 'aria-sort="ascending"' in text


def test_a_drawing_of_other_runs_is_known_by_its_stamp(tmp_path):
    """Other code draws the same runs; other tables are other runs."""
    asked = ("gdn_draws", "tiny", "reference", RESULTS)
    stamp = stamp_of(tmp_path, "gdn_draws")
    assert not drawn_of(*asked, tmp_path)  # there is none
    said = json.loads(stamp_of(RESULTS / "reference" / "tiny" / "figures", "gdn_draws").read_text())
    stamp.write_text(json.dumps(said | {"inputs": said["inputs"] | {"code": "another"}}))
    assert drawn_of(*asked, tmp_path)
    stamp.write_text(json.dumps(said | {"inputs": dict.fromkeys(said["inputs"], "another")}))
    assert not drawn_of(*asked, tmp_path)
