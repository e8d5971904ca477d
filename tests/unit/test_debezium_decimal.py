"""Which arguments ``debezium_decimal`` takes."""

from __future__ import annotations

import pytest

from airflow_epochs.errors import Refused
from airflow_epochs.transforms import debezium_decimal


@pytest.mark.parametrize(
    ("precision", "scale", "wanted"),
    [
        (39, 2, "precision must be a number from 1 to 38"),
        (0, 0, "precision must be a number from 1 to 38"),
        (12, 13, "scale must be a number from 0 to the precision"),
        (12, -1, "scale must be a number from 0 to the precision"),
    ],
)
def test_a_type_that_spark_does_not_have_is_refused(precision: int, scale: int, wanted: str) -> None:
    with pytest.raises(Refused, match=wanted) as refused:
        debezium_decimal("price", precision, scale)
    assert refused.value.code and refused.value.code.name == "EPOCHS-OPERATOR-ARGUMENT"
