"""A file in which Airflow's OpenLineage provider writes its events, a line each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LineageFile:
    """``env``: the settings with which Airflow writes the events of one DAG there."""

    path: Path
    dag_id: str

    @property
    def env(self) -> dict[str, str]:
        transport = {"type": "file", "log_file_path": str(self.path), "append": True}
        policy = [
            {"scope": {}, "controls": {"emit": False}},
            {"scope": {"dag_id": self.dag_id}, "controls": {"emit": True}},
        ]
        return {
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
            "AIRFLOW__OPENLINEAGE__EMISSION_POLICY": json.dumps(policy),
        }

    def completed(self, task_id: str) -> dict[int, Any]:
        """Epoch -> the newest event of a task that succeeded and names this one epoch."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        found = {}
        for event in map(json.loads, lines):
            if event["eventType"] == "COMPLETE" and event["job"]["name"] == f"{self.dag_id}.{task_id}":
                if (ours := event["run"]["facets"].get("epochs_run")) and len(ours["epochs"]) == 1:
                    found[ours["epochs"][0]["epoch"]] = event
        return found
