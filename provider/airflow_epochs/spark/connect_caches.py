"""The plans that one job caches on a Spark Connect server. The cache is cleared when the job ends.

Spark's cache belongs to the server. It outlives the session that filled it, and Spark takes rows from it in every
session whose plan reads the same table or files, whatever has been written there since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Caches:
    """The plans that clients of one session have cached and not yet let go."""

    def __init__(self) -> None:
        self._plans: list[Any] = []

    def watch(self, spark: SparkSession) -> None:
        """Note each ``cache``, ``persist`` and ``unpersist`` of a DataFrame of this client, from now on."""
        client = spark.client
        ask = client._analyze

        def noting(method: str, **given: Any) -> Any:
            if method == "persist":  # before the request: the server may have heard it though its answer is lost
                self._plans.append(given["relation"])
            answer = ask(method, **given)
            if method == "unpersist" and given["relation"] in self._plans:
                self._plans.remove(given["relation"])
            return answer

        client._analyze = noting

    def let_go(self, spark: SparkSession) -> None:
        """Let the server forget the plans, the last one first, as it may be made of earlier ones.

        Raises:
            Exception: The server cannot forget a plan, such as one whose file is gone. It was asked to forget all.
        """
        failed = None
        for plan in reversed([*self._plans]):
            try:
                spark.client._analyze("unpersist", relation=plan)
            except Exception as error:
                failed = error
        if failed:
            raise failed
