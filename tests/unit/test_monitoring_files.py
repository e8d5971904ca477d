"""The mapping, the alert rules and the dashboard of docs/monitoring agree with each other and with what is sent."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
PAGE = FOLDER.parent / "monitoring.md"
MAPPINGS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "statsd-exporter.yaml").read_text())["mappings"]
RULES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "prometheus-rules.yaml").read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
SENT = {
    *("completed", "rows.gold", "commits.gold.left_out", "aborts.UDF-RAISED", "phase.duration.commit.gold"),
    *("last_complete.epoch", "last_complete.time", "last_complete.age", "in_doubt.count", "in_doubt.age"),
    *("lag.records", "lag.seconds"),
}
"""An example of every name; tests/unit/test_metrics.py sees them sent."""


def mapped(name: str) -> list[dict[str, Any]]:
    """The rules for a name. A ``*`` stands for one part of it."""
    parts = name.split(".")
    return [
        rule
        for rule in MAPPINGS
        if len(of := rule["match"].split(".")) == len(parts) and all(map(fnmatchcase, parts, of))
    ]


def parsed(expression: str) -> Any:
    for name, value in {"$__rate_interval": "5m", "$pipeline": "orders"}.items():
        expression = expression.replace(name, value)
    return promql_parser.parse(expression)


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"airflow_epochs_\w+", expression))


def known() -> set[str]:
    names = {rule["name"] for rule in MAPPINGS}
    histograms = {rule["name"] for rule in MAPPINGS if rule.get("observer_type") == "histogram"}
    return names | {f"{name}{end}" for name in histograms for end in ("_bucket", "_sum", "_count")}


@pytest.mark.parametrize("name", sorted(SENT))
def test_every_metric_has_one_rule_that_keeps_all_its_parts(name: str) -> None:
    [rule] = mapped(f"airflow.epochs.orders.{name}")
    stars = rule["match"].count("*")
    assert sorted(rule["labels"].values()) == [f"${n}" for n in range(1, stars + 1)]


def test_every_rule_of_the_mapping_is_for_a_metric_that_is_sent() -> None:
    used = [rule["match"] for name in SENT for rule in mapped(f"airflow.epochs.orders.{name}")]
    assert sorted(used) == sorted(rule["match"] for rule in MAPPINGS)


def test_every_metric_is_on_the_page() -> None:
    page = PAGE.read_text()
    for name in ("phase.duration", "commits", "aborts", "completed", "rows", "lag.records", "`.seconds`"):
        assert name in page
    for name in ("last_complete.epoch", "last_complete.time", "last_complete.age", "in_doubt.count", "in_doubt.age"):
        assert f"`epochs.{name}`" in page


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_rule_is_promql_over_known_names_and_says_what_to_do(rule: dict[str, Any]) -> None:
    parsed(rule["expr"])
    assert names_in(rule["expr"]) and names_in(rule["expr"]) <= known()
    assert rule["annotations"]["summary"].endswith(".") and rule["annotations"]["description"]
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_dashboard_is_promql_over_known_names(query: str) -> None:
    parsed(query)
    assert names_in(query) and names_in(query) <= known()


def test_the_dashboard_has_panels_with_ids_of_their_own_and_a_variable_for_each_that_queries_use() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"]))) - {"__rate_interval"}
    assert used == variables == {"datasource", "pipeline"}
    [pipeline] = [each for each in DASHBOARD["templating"]["list"] if each["name"] == "pipeline"]
    assert names_in(pipeline["query"]) <= known()
