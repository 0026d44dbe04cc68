"""The page's own files, read once; kept by browsers under an address that changes with them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "files"
INDEX = "index.html"
BASE = "{{base}}"
"""Stands in the index for the folder of the others' addresses."""
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
ASSETS = "/dashboard/assets/"


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is sent."""

    content: bytes
    media_type: str
    etag: str


@dataclass(frozen=True, slots=True)
class PageFiles:
    """`digest` is that of all files together, and a part of the addresses of `assets`."""

    index: PageFile
    assets: Mapping[str, PageFile]
    digest: str


def load_page(folder: Path = FOLDER) -> PageFiles:
    """The page as it lies there."""
    contents = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    whole = hashlib.sha256()
    for name, content in contents.items():
        whole.update(f"{name} {len(content)} ".encode() + content)
    digest = whole.hexdigest()[:16]
    base = f"{ASSETS}{digest}".encode()
    index = contents.pop(INDEX).replace(BASE.encode(), base)
    return PageFiles(
        _file(INDEX, index),
        {name: _file(name, content) for name, content in contents.items()},
        digest,
    )


def _file(name: str, content: bytes) -> PageFile:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return PageFile(content, MEDIA_TYPES[Path(name).suffix], etag)
