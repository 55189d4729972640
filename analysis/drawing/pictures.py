"""Files of drawings: the same numbers give the same bytes, and not more of them than needed."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from matplotlib.figure import Figure
from PIL import Image

# What would date a file.
_UNDATED = {
    "pdf": {"CreationDate": None},
    "png": {"Software": None},
    "svg": {"Creator": None, "Date": None},
}

# A hundredth of a point is a four-hundredth of a millimetre.
_COORDINATES = re.compile(r' (?:d|x|y)="[^"]*"|translate\([^)]*\)')


def picture(drawing: Figure, kind: str) -> bytes:
    """A drawing as the file ``kind``, pdf, png or svg, without dates and versions."""
    buffer = io.BytesIO()
    drawing.savefig(buffer, format=kind, metadata=_UNDATED[kind])
    shorter = {"png": in_palette, "svg": lighter}.get(kind, bytes)
    return shorter(buffer.getvalue())


def pictures(drawing: Figure, kinds: Iterable[str]) -> dict[str, bytes]:
    """A drawing as files of several kinds. Its panels are laid out once, for the first of them."""
    files = {}
    for kind in kinds:
        files[kind] = picture(drawing, kind)
        drawing.set_layout_engine("none")
    return files


def in_palette(png: bytes, box: tuple[int, int] | None = None) -> bytes:
    """The PNG in 256 colours, which drawings hardly exceed: a third of the bytes.

    With ``box``, its width and height in pixels at most, it is scaled down to fit.
    """
    smaller = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        few = image.convert("RGB")
        if box:
            few.thumbnail(box, Image.Resampling.LANCZOS)
        few = few.quantize(256, dither=Image.Dither.NONE)
        few.save(smaller, "png", optimize=True, dpi=image.info.get("dpi"))
    return smaller.getvalue()


def lighter(svg: bytes) -> bytes:
    """The SVG of matplotlib with coordinates to a hundredth of a point and no idle spaces.

    Marks do not repeat the style of the path that they use.
    """
    text = _COORDINATES.sub(lambda found: _short(found[0]), svg.decode())
    text = re.sub(r"\n\s+", "\n", text)
    styles = dict(re.findall(r'<path id="([^"]+)" d="[^"]*"( style="[^"]*")/>', text))

    def bare(mark: re.Match[str]) -> str:
        return mark[0].replace(mark[2], "") if styles.get(mark[1]) == mark[2] else mark[0]

    return re.sub(r'<use xlink:href="#([^"]+)"[^>]*?( style="[^"]*")/>', bare, text).encode()


def _short(coordinates: str) -> str:
    rounded = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", coordinates)
    return re.sub(r"\s*([A-Za-z])\s+", r"\1", rounded) if coordinates[1] == "d" else rounded
