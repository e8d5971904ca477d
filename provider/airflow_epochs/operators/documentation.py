"""What Airflow shows of a DAG and of its tasks: texts in Markdown, and a tag.

Each parse must make the same text: another one is another version of the DAG.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow_epochs.names import PAGE

if TYPE_CHECKING:
    from airflow.sdk import DAG

TAG = "epochs"
"""The tag of every DAG with a pipeline, so that Airflow's list of DAGs can be narrowed to them."""
HEADING = "# Exactly-once pipelines\n\nAn epoch of the input shows in all sinks exactly once, or in none.\n"
"""How the text of a DAG begins if this module has written it."""


def of_task(kind: type, pipeline: str, parts: Sequence[str]) -> str:
    """What a task does, in which pipeline. ``kind``: its operator; ``parts``: see ``parts_of``."""
    what = (kind.__doc__ or "").partition("\n")[0]
    return "\n".join([f"{what}\n\nPipeline **{pipeline}**:\n", *parts])


def parts_of(source: object, transform: str, sinks: Sequence[object], spark: object) -> list[str]:
    """A line for each part of a pipeline."""
    lines = (_shown(source), f"transform `{transform}`", *map(_shown, sinks), _shown(spark))
    return [f"- {line}" for line in lines]


def document(dag: DAG, pipeline: str, ledger_conn_id: str, parts: Sequence[str]) -> None:
    """Enter the pipeline in the DAG's tags, and in its text unless the user has written one."""
    dag.tags.add(TAG)
    written = dag.doc_md or HEADING
    if written.startswith(HEADING):
        there = page_of(pipeline, ledger_conn_id, dag.dag_id).lstrip("/")
        links = f"[Its epochs]({there}) · [Documentation]({PAGE[1:]}/docs/)\n"
        dag.doc_md = "\n".join([written, f"## {pipeline}\n", links, *parts, ""])


def page_of(pipeline: str, ledger_conn_id: str, dag_id: str) -> str:
    """The path of the pipeline's page. A connection that only a run knows leads to the page of its DAG."""
    if "{{" in ledger_conn_id:
        return f"{PAGE}/dags/{quote(dag_id, safe='')}"
    return f"{PAGE}/pipelines/{quote(ledger_conn_id, safe='')}/{quote(pipeline, safe='')}"


def _shown(part: object) -> str:
    """A part of the pipeline. An address in memory would make another DAG version of every parse."""
    return f"`{type(part).__name__ if type(part).__repr__ is object.__repr__ else repr(part)}`"
