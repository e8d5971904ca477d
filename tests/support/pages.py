"""The commands of the docs, as they stand there: a test that runs one keeps the page true."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from textwrap import dedent
from typing import Any

PAGES = Path(__file__).parents[2] / "docs"


def chapter(page: str, title: str) -> str:
    """What stands below this title, up to the next one."""
    text = (PAGES / page).read_text()
    found = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"docs/{page} has no chapter {title!r}"
    return found[1]


def blocks(page: str, title: str, language: str) -> list[str]:
    """The blocks of code in this language in a chapter."""
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", chapter(page, title), re.MULTILINE | re.DOTALL)
    assert found, f"docs/{page}, {title!r}, has no block of {language}"
    return [dedent(block) for block in found]


def filled(block: str, names: Mapping[str, str]) -> str:
    """A block with a test's names in place of the example's, each of which must be there."""
    for example, name in names.items():
        assert example in block, f"{example} is not in {block}"
        block = block.replace(example, name)
    return block


def printed(block: str, **known: Any) -> str:
    """What a block of Python prints, if these names are known to it."""
    output = io.StringIO()
    with redirect_stdout(output):
        exec(block, known)
    return output.getvalue()


def anchor(title: str) -> str:
    """What a link to a chapter ends with."""
    return title.lower().replace(" ", "-")
