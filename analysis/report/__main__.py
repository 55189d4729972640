"""``python -m analysis.report --scale tiny``: one folder of pages with all that was found.

The folder is self-contained: no server, no network. Its front page is ``index.html``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from analysis.report.archive import packed
from analysis.report.content import LIBRARY, Site, gather
from analysis.report.intervals import WIDTH
from analysis.report.readme import OUTCOME
from analysis.tables.find import RESULTS, SOURCES, relative
from lrm.cli import Parser, a_folder, guarded
from lrm.errors import UserError
from lrm.plan.scales import SCALES
from lrm.store.files import make_folder, write_atomic

STATIC = ("report.css", "report.js")
_MARK = "report.json"  # a folder with this file is a report, and may be made anew


def main() -> None:
    """Parse the command line and write the pages."""
    parser = Parser(prog="python -m analysis.report")
    parser.add_argument("--scale", default="tiny", choices=SCALES)
    parser.add_argument(
        "--source", default="reference", choices=SOURCES, help="what is published, or your runs"
    )
    parser.add_argument("--results", type=a_folder, default=RESULTS)
    parser.add_argument("--zip", action="store_true", help="pack the folder into a file beside it")
    options = parser.parse_args()
    guarded(lambda: _main(options))


def _main(options: argparse.Namespace) -> None:
    site = gather(options.scale, options.source, options.results)
    folder = options.results / "report" / options.scale
    if options.source == "runs":
        folder = folder.with_name(f"{options.scale}-runs")
    write(site, folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(
        f"wrote {relative(folder / 'index.html')} and {len(site.pages)} pages, {size / 1e6:.1f} MB"
    )
    if options.zip:
        print(f"packed it as {relative(pack(folder))}")


def write(site: Site, folder: Path) -> None:
    """Write all pages, figures and downloads into ``folder``, which must be new or a report.

    Raises UserError where ``folder`` holds anything else.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).exists():
        raise UserError(f"{relative(folder)} is no report; move it away, or use other --results")
    # Of this process: another may write the same report.
    beside = make_folder(folder.parent)
    with tempfile.TemporaryDirectory(dir=beside, prefix=f".{folder.name}.") as own:
        fresh = Path(own) / "report"
        _write_pages(site, fresh)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)


def _write_pages(site: Site, fresh: Path) -> None:
    make_folder(fresh / "figures")
    environment = Environment(
        loader=PackageLoader("analysis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, "inline": _inline, "shortened": _shortened}
    environment.globals |= {"site": site, "width": WIDTH, "library": LIBRARY, "outcome": OUTCOME}
    for name in STATIC:
        write_atomic(fresh / name, (Path(__file__).with_name("templates") / name).read_bytes())
    front = environment.get_template("front.html").render()
    write_atomic(fresh / "index.html", front.encode())
    for page in site.pages:
        text = environment.get_template("experiment.html").render(page=page)
        write_atomic(fresh / f"{page.name}.html", text.encode())
        for figure in page.figures[:1]:  # what the front page shows
            write_atomic(fresh / "figures" / f"{figure.name}-small.png", figure.small)
        for figure in page.figures:
            for kind, content in figure.files.items():
                write_atomic(fresh / "figures" / f"{figure.name}.{kind}", content)
            if figure.published:
                target = fresh / "figures" / f"published-{figure.name}.png"
                write_atomic(target, figure.published)
    mark = {"scale": site.scale, "source": site.source}
    write_atomic(fresh / _MARK, json.dumps(mark).encode())


def pack(folder: Path) -> Path:
    """The report as a zip beside its folder; the same pages give the same bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path: f"{folder.name}/{path.relative_to(folder).as_posix()}" for path in files}
    target = folder.with_name(f"{folder.name}.zip")
    write_atomic(target, packed({name: path.read_bytes() for path, name in names.items()}))
    return target


def _number(value: float) -> str:
    """Three digits, and a minus sign that is one."""
    return f"{value:.3g}".replace("-", "−")


def _inline(text: str) -> Markup:
    """A paragraph of Markdown without its tags."""
    return Markup(MarkdownIt().renderInline(text))


def _shortened(statement: str) -> str:
    """A statement for a small button: without what stands in brackets, in at most nine words."""
    words = re.sub(r"\([^)]*\)", "", statement).split()
    text = " ".join(words) if len(words) <= 9 else f"{' '.join(words[:8])} …"
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    main()
