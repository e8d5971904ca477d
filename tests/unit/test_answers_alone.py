"""A command that looks for its pipeline in the DAGs prints its own answer to stdout, and nothing else."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import pytest

from airflow_epochs.operators import definitions
from tests.support.airflow_harness import initialised
from tests.support.remedies import parser


@pytest.mark.proof
@pytest.mark.parametrize(
    "command",
    [
        "rebuild orders --why lost",
        "acknowledge-code orders --why reviewed",
        "adopt-group orders --group shop --why moved",
        "adopt-checkpoint orders /lake/checkpoint --why moved",
        "verify orders",
    ],
)
def test_what_airflow_logs_of_its_bundles_is_not_in_the_answer(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    def bags() -> Iterator[object]:
        os.write(1, b"[info] DAG bundles loaded\n")  # Airflow's log holds on to the first stdout
        return iter(())

    initialised()
    monkeypatch.setattr(definitions, "_bags", bags)
    parsed = parser().parse_args(["epochs", *shlex.split(command)])
    with pytest.raises(SystemExit):
        parsed.func(parsed)
    out, err = capfd.readouterr()
    assert out == ""
    assert "DAG bundles loaded" in err
