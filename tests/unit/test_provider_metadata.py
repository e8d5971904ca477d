from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import airflow
import jsonschema
import pytest

from airflow_epochs.get_provider_info import get_provider_info

ROOT = Path(__file__).parents[2]
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""Of https://www.apache.org/licenses/LICENSE-2.0.txt."""
HEAVY = ("pyspark", "deltalake", "obstore", "kafka", "pyarrow", "pandas", "confluent_kafka")
PARSE = """
import json
import sys
from airflow.sdk import DAG
from airflow_epochs import DeltaSink, EpochPipeline, KafkaSink, KafkaSource, SparkConnect, SparkSubmit

with DAG("orders", schedule="@continuous", max_active_runs=1, catchup=False):
    EpochPipeline("orders", source=KafkaSource(topics=["orders"]), transform="spark_apps/orders.py:orders",
        sinks=[DeltaSink("orders", "/lake/orders", partition_by=["day"])], spark=SparkConnect("spark_connect_default"))
    EpochPipeline("others", source=KafkaSource(topics=["others"]), transform="spark_apps/orders.py:orders",
        sinks=[DeltaSink("others", "s3://lake/others"), KafkaSink("events", "others-seen", staging="s3://lake/staging")],
        spark=SparkSubmit("spark_default"))
print(json.dumps(sorted(sys.modules)))
"""


def test_the_provider_metadata_is_valid_for_airflow() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


@pytest.mark.filterwarnings("ignore::airflow.utils.deprecation_tools.DeprecatedImportWarning")
def test_airflow_finds_the_provider_and_its_connection_type_with_form_fields() -> None:
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    assert "airflow-provider-epochs" in manager.providers
    hook = manager.hooks["epochs"]
    assert hook and hook.connection_testable
    fields = {name for name in manager.connection_form_widgets if name.startswith("extra__epochs__")}
    names = ("ledger_root", "storage_conn_id", "storage_options", "require_signed", "create")
    assert fields == {f"extra__epochs__{name}" for name in names}


def test_the_licence_is_the_published_text_of_the_one_that_the_metadata_names() -> None:
    """The build puts a file of this name into the wheel by itself; the image is built from what it copies."""
    named = re.search('^license = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert named and named[1] == "Apache-2.0"
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    copied = re.search("^COPY .*pyproject.toml.*$", (ROOT / "docker" / "airflow.Dockerfile").read_text(), re.MULTILINE)
    assert copied and "LICENSE" in copied[0].split()


@pytest.mark.proof
def test_parsing_a_dag_imports_no_heavy_library() -> None:
    assert loaded_by_parsing() & {*HEAVY} == set()


@pytest.mark.proof
def test_parsing_a_dag_does_not_import_what_only_a_running_step_needs() -> None:
    inner = (
        "coordinator",
        "ledger.ledger",
        "model",
        "sinks.delta.participant",
        "sinks.kafka.participant",
        "sources.kafka.reader",
        "spark.connect",
    )
    assert loaded_by_parsing() & {f"airflow_epochs.{name}" for name in inner} == set()


@cache
def loaded_by_parsing() -> frozenset[str]:
    """All modules of a process of its own that has parsed a DAG."""
    done = subprocess.run([sys.executable, "-c", PARSE], capture_output=True, text=True, check=True)
    return frozenset(json.loads(done.stdout.splitlines()[-1]))
