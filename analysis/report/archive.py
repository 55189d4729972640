"""Zip archives whose bytes depend on nothing but their content."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping


def packed(files: Mapping[str, bytes]) -> bytes:
    """An archive of ``files``, content by name, in their order and without times."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return target.getvalue()
