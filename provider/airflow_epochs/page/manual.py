"""The project's documentation, which lies in the package: each page as HTML, and the files that belong to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import APIRouter, HTTPException, Request, Response, status
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from airflow_epochs.page.access import GetUserDep
from airflow_epochs.page.render import page

router = APIRouter()

FOLDER = Path(str(files("airflow_epochs.page"))) / "docs"
_INDEX, _PAGE = "index", ".md"
_PICTURES = {".png": "image/png"}
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")  # no HTML of a page reaches the reader as HTML


@dataclass(frozen=True)
class Rendered:
    """A page of the documentation: its first heading, and all of it as HTML."""

    title: str
    html: Markup


@router.get("/docs/{name:path}")
def documentation(request: Request, user: GetUserDep, name: str) -> Response:
    """A page by its name without ``.md``, or another file by its name. Without a name: the index."""
    known = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.is_file()}
    if found := known.get(f"{name or _INDEX}{_PAGE}"):
        return page(request, "manual.html", shown=rendered(found.read_text(encoding="utf-8")))
    if found := known.get(name):
        return Response(found.read_bytes(), media_type=_PICTURES.get(found.suffix, "text/plain"))
    raise HTTPException(status.HTTP_404_NOT_FOUND, f"The documentation has no page {name}.")


def rendered(markdown: str) -> Rendered:
    """The page, with an anchor at each heading, and links that lead to pages here."""
    tokens = _MARKDOWN.parse(_COMMENT.sub("", markdown))
    headings = list(_headings(tokens))
    for opening, text in headings:
        opening.attrSet("id", anchor(text))
    for token in tokens:
        token.children = _with_links(token.children) if token.children else token.children
    title = headings[0][1] if headings else ""
    return Rendered(title, Markup(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})))


def anchor(heading: str) -> str:
    """The anchor that GitHub makes of a heading's text."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _headings(tokens: list[Token]) -> Iterator[tuple[Token, str]]:
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            yield opening, "".join(part.content for part in inline.children or ())


def _with_links(parts: list[Token]) -> list[Token]:
    """The parts of a text. What leads out of the documentation, into the repository, is no link here."""
    kept: list[Token] = []
    left_out = False
    for part in parts:
        if part.type == "link_open":
            there = _here(str(part.attrGet("href")))
            left_out = there is None
            part.attrSet("href", there or "")
        if not (left_out and part.type in ("link_open", "link_close")):
            kept.append(part)
    return kept


def _here(link: str) -> str | None:
    """Where a link of a page leads on this site; None if only the repository has it."""
    path, sharp, fragment = link.partition("#")
    if urlsplit(link).scheme or not path:
        return link
    if path.startswith("../"):
        return None
    name = path.removesuffix(_PAGE)
    return f"{'./' if name == _INDEX else name}{sharp}{fragment}"
