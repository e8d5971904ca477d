"""One version of everything: jars, containers and Python packages agree, and what the files name exists."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((PROJECT / "docker/compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def pinned(package: str) -> str:
    found = re.search(rf"^{re.escape(package)}==(\S+)", (PROJECT / "constraints.txt").read_text(), re.MULTILINE)
    assert found, f"constraints.txt does not pin {package}"
    return found[1]


def jar(name: str) -> str:
    dependencies = xml.parse(PROJECT / "docker/local/ivy.xml").getroot().iter("dependency")
    return next(dependency.attrib["rev"] for dependency in dependencies if dependency.attrib["name"] == name)


def dockerfile(name: str) -> str:
    return (PROJECT / f"docker/{name}.Dockerfile").read_text()


def test_the_broker_is_the_same_in_containers_and_in_the_local_stack() -> None:
    kafka = [service["image"] for service in SERVICES.values() if service["image"].startswith("apache/kafka:")]
    assert set(kafka) == {f"apache/kafka:{jar('kafka_2.13')}"}


def test_the_airflow_image_is_the_pinned_airflow() -> None:
    assert f"FROM apache/airflow:{pinned('apache-airflow')}-python" in dockerfile("airflow")


def test_spark_its_client_and_its_jars_have_one_version() -> None:
    assert pinned("pyspark") == pinned("pyspark-client") == jar("spark-sql-kafka-0-10_2.13") == jar("spark-avro_2.13")


def test_the_readme_names_the_versions_that_are_tested() -> None:
    [python] = re.findall(r"python:(\d+\.\d+)", dockerfile("spark"))
    tested = (
        f"Tested with Python {python}, Airflow {pinned('apache-airflow')}, Spark {pinned('pyspark')} (Connect and "
        f"submit), Delta {jar('delta-spark_4.2_2.13')}, brokers of Kafka {jar('kafka_2.13')}"
    )
    assert tested in " ".join((PROJECT / "README.md").read_text().split())


def test_the_packages_for_spark_submit_in_the_docs_are_those_that_are_tested() -> None:
    page = (PROJECT / "docs/spark.md").read_text()
    found = re.findall(r"(?:io\.delta|org\.apache\.spark):([\w.-]+):([\d.]+)", page)
    assert len(found) == 2
    for name, version in found:
        assert version == jar(name)


def test_the_containers_of_airflow_and_of_spark_run_the_same_python() -> None:
    versions = [re.search(r"python:?(\d+\.\d+)", dockerfile(name)) for name in ("airflow", "spark")]
    first, second = (version and version[1] for version in versions)
    assert first == second is not None


def test_the_s3_jars_fit_the_hadoop_that_pyspark_ships() -> None:
    from stack.jars import pyspark_home

    assert (pyspark_home() / "jars" / f"hadoop-client-api-{jar('hadoop-aws')}.jar").exists()


def test_constraints_name_no_registry() -> None:
    assert not re.search(r"://|^-", (PROJECT / "constraints.txt").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_of_the_compose_file_depends_on_services_that_exist_and_can_be_waited_for(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert other in SERVICES
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_of_the_compose_file_mounts_and_builds_what_exists(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source = volume.split(":")[0]
        assert source in COMPOSE["volumes"] or (PROJECT / "docker" / source).is_dir()
    if build := SERVICES[name].get("build"):
        assert (PROJECT / "docker" / build["context"] / build["dockerfile"]).is_file()


def test_the_containers_publish_ports_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
