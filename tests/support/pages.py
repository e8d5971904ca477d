"""The commands of the docs, as they stand there: a test that runs one keeps the page true."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

PAGES = Path(__file__).parents[2] / "docs"


def blocks(page: str, title: str, language: str) -> list[str]:
    """The blocks of code in this language in the chapter of a page that has this title."""
    text = (PAGES / page).read_text()
    chapter = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^##+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert chapter, f"docs/{page} has no chapter {title!r}"
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", chapter[2], re.MULTILINE | re.DOTALL)
    assert found, f"docs/{page}, {title!r}, has no block of {language}"
    return [dedent(block) for block in found]


def filled(block: str, names: Mapping[str, str]) -> str:
    """A block with a test's names in place of the example's, each of which must be there."""
    for example, name in names.items():
        assert example in block, f"{example} is not in {block}"
        block = block.replace(example, name)
    return block


def anchor(title: str) -> str:
    """What a link to a chapter ends with."""
    return title.lower().replace(" ", "-")
