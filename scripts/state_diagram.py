"""Writes the protocol's diagrams into docs/protocol.md, from the tables in ``airflow_epochs.protocol``.

``python scripts/state_diagram.py`` rewrites what stands between the markers; ``--check`` only says whether it is
up to date. A test runs the check, so that picture and code cannot drift apart.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from airflow_epochs.protocol import RECOVERY, TRANSITIONS, Message, State

PAGE = Path(__file__).parents[1] / "docs" / "protocol.md"


def message_name(kind: type[Message]) -> str:
    """``VoteRequest`` as the literature writes it: ``VOTE_REQUEST``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).upper()


def identifier(state: State) -> str:
    return state.value.replace(" ", "_")


def diagram() -> str:
    """The transition table as a mermaid diagram."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{state.value}" as {identifier(state)}' for state in State if " " in state.value]
    lines.append(f"    [*] --> {identifier(State.NEW)}")
    for state, accepted in TRANSITIONS.items():
        per_target: dict[State, list[str]] = {}
        for kind, target in accepted.items():
            per_target.setdefault(target, []).append(message_name(kind))
        lines += [
            f"    {identifier(state)} --> {identifier(target)}: {' / '.join(kinds)}"
            for target, kinds in per_target.items()
        ]
    lines += [f"    {identifier(state)} --> [*]" for state in State if state.is_final]
    return "\n".join([*lines, "```"])


def recovery() -> str:
    """The recovery table: what ``open`` does with an epoch that it finds."""
    lines = ["| the newest epoch is | `open` does |", "|---|---|"]
    return "\n".join([*lines, *(f"| {state.value} | {step.value} |" for state, step in RECOVERY.items())])


def updated(page: str) -> str:
    """The page with both parts written anew. Raises ValueError if a marker is missing."""
    for name, content in (("states", diagram()), ("recovery", recovery())):
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not between.search(page):
            raise ValueError(f"docs/protocol.md has no <!-- {name} --> … <!-- /{name} -->")
        page = between.sub(rf"\g<1>{content}\n\g<2>", page)
    return page


def main(arguments: list[str]) -> int:
    page = PAGE.read_text()
    if updated(page) == page:
        return 0
    if "--check" in arguments:
        print("docs/protocol.md is out of date: run python scripts/state_diagram.py", file=sys.stderr)
        return 1
    PAGE.write_text(updated(page))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
