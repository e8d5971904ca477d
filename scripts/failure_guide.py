"""Writes the guide in docs/failures.md: a section for each code of ``airflow_epochs.codes``.

``python scripts/failure_guide.py`` rewrites what stands below the marker; ``--check`` only says whether it is up to
date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from airflow_epochs.codes import CHAPTERS, Chapter
from airflow_epochs.errors import Code

PAGE = Path(__file__).parents[1] / "docs" / "failures.md"
MARKER = "<!-- Below: written by scripts/failure_guide.py from codes.py. Change that, not this. -->\n"


def guide() -> str:
    """All that stands below the marker."""
    return "".join(map(_chapter, CHAPTERS))


def _chapter(chapter: Chapter) -> str:
    return f"\n## {chapter.title}\n" + "".join(map(_section, chapter.codes))


def _section(code: Code) -> str:
    return (
        f"\n### {code.name}\n\n"
        f"`{code.kind.__name__}`: {_markdown(code.happened)}\n\n"
        f"**What to do:** {_markdown(code.remedy)}\n"
    )


def _markdown(text: str) -> str:
    """Text with Markdown's signs escaped; what stands between backquotes is code, and stays."""
    parts = text.split("`")
    return "`".join(part if odd % 2 else re.sub(r"([<*_\[\]])", r"\\\1", part) for odd, part in enumerate(parts))


def updated(page: str) -> str:
    """The page as it should be."""
    head, marker, _ = page.partition(MARKER)
    if not marker:
        raise ValueError(f"the page has no line {MARKER.strip()}")
    return head + marker + guide()


def main(argv: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    wanted = updated(page)
    if argv == ["--check"]:
        return 0 if page == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
