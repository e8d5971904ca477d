"""What a job caches on a Spark Connect server is let go at its end. The server is made up: it notes what it hears."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.connect.proto import AnalyzePlanRequest, AnalyzePlanResponse

from airflow_epochs.spark import connect
from airflow_epochs.spark.connect_caches import Caches


class Server:
    """Answers what is asked about plans, or fails."""

    def __init__(self) -> None:
        self.cached: list[Any] = []
        self.asked: list[str] = []
        self.lost: set[str] = set()
        """Requests that the server hears, and whose answers are lost."""

    def AnalyzePlan(self, request: AnalyzePlanRequest, metadata: Any) -> AnalyzePlanResponse:
        kind = request.WhichOneof("analyze")
        self.asked.append(kind)
        if kind == "persist":
            self.cached.append(request.persist.relation)
        if kind == "unpersist" and self.cached[-1:] == [request.unpersist.relation]:
            self.cached.pop()
        if kind in self.lost:
            raise ConnectionError(kind)
        return AnalyzePlanResponse(
            session_id=request.session_id, **{kind: getattr(AnalyzePlanResponse, kind.title())()}
        )


@contextmanager
def listening() -> Iterator[int]:
    """A port where somebody listens meanwhile, and nobody afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def spark(server: Server) -> Iterator[Any]:
    spark = connect._client("sc://127.0.0.1:9")
    spark.release_session_on_close = False
    spark.client._stub = server
    yield spark
    spark.stop()


def test_all_that_a_job_caches_is_let_go_and_what_is_made_of_another_goes_first(spark: Any, server: Server) -> None:
    caches = Caches()
    caches.watch(spark)
    one = spark.range(3).cache()
    one.where("id > 1").persist()
    assert len(server.cached) == 2
    caches.let_go(spark)
    assert (server.cached, server.asked) == ([], ["persist"] * 2 + ["unpersist"] * 2)


def test_what_the_job_has_let_go_itself_is_not_asked_for_again(spark: Any, server: Server) -> None:
    caches = Caches()
    caches.watch(spark)
    spark.range(3).cache().unpersist()
    caches.let_go(spark)
    assert server.asked == ["persist", "unpersist"]


def test_what_the_server_has_cached_without_an_answer_is_let_go_as_well(spark: Any, server: Server) -> None:
    caches = Caches()
    caches.watch(spark)
    server.lost = {"persist"}
    with pytest.raises(Exception, match="persist"):
        spark.range(3).cache()
    caches.let_go(spark)
    assert server.cached == []


def test_another_client_of_the_session_lets_go_what_the_job_has_cached(spark: Any, server: Server) -> None:
    caches = Caches()
    caches.watch(spark)
    spark.range(3).cache()
    other = connect._client("sc://127.0.0.1:9")
    other.release_session_on_close = False
    other.client._stub = server
    caches.watch(other)
    caches.let_go(other)
    other.stop()
    assert server.cached == []


def that_cannot_be_emptied(spark: Any, server: Server) -> Caches:
    caches = Caches()
    caches.watch(spark)
    spark.range(3).cache()
    server.lost = {"unpersist"}
    return caches


def test_a_cache_that_cannot_be_emptied_is_a_warning_with_its_remedy(
    spark: Any, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caches = that_cannot_be_emptied(spark, server)
    with listening() as port:
        spark.client._builder._port = port
        connect._empty(caches, spark, 5.0)
    assert "spark.catalog.clearCache()" in caplog.text


def test_a_server_that_is_gone_has_no_cache_to_warn_of(
    spark: Any, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caches = that_cannot_be_emptied(spark, server)
    with listening() as port:
        spark.client._builder._port = port
    with caplog.at_level("INFO"):
        connect._empty(caches, spark, 5.0)
    assert "is gone" in caplog.text
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_plan_that_cannot_be_let_go_keeps_no_other_one_on_the_server(spark: Any, server: Server) -> None:
    caches = Caches()
    caches.watch(spark)
    spark.range(3).cache()
    spark.range(4).cache()
    server.lost = {"unpersist"}
    with pytest.raises(Exception, match="unpersist"):
        caches.let_go(spark)
    assert server.cached == []
