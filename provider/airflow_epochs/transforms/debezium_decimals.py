"""Decimals as Debezium's connectors write them by default, with ``decimal.handling.mode=precise``.

Kafka Connect's type Decimal is the base64 of a number without its point: big-endian bytes, in two's complement. The
database's column has the scale. Debezium's VariableScaleDecimal has each value's own scale beside it.

See https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-decimal-types
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_epochs.transforms.checks import Checks

if TYPE_CHECKING:
    from pyspark.sql import Column

DIGITS_MAX = 38
"""The most digits of a decimal in Spark. Such a number has at most 16 bytes: 2^127 has 39 digits."""
SCALE_MAX = 20_000
"""The largest scale that is accepted: PostgreSQL has up to 16,383. To round a number to billions would take hours."""
_HEX_MAX = 32
_CHECKS = Checks("debezium_decimal")


def debezium_decimal(
    column: str | Column, precision: int, scale: int, *, value_scale: str | Column | None = None
) -> Column:
    """The number of a decimal that Debezium has written with ``decimal.handling.mode=precise``.

    Declare the column as ``string`` for ``parse_debezium``, and replace it in its ``rows``. A ``numeric`` without a
    precision is an object in the JSON: declare ``struct<scale: int, value: string>``.

    Args:
        column: The base64.
        precision: How many digits the result has, of the type ``decimal(precision, scale)``. At most 38.
        scale: How many of them are behind the point. Without ``value_scale``: as many as the database's column has.
        value_scale: Where each value's own scale is, for a ``numeric`` without a precision. A value with more digits
            behind the point than ``scale`` is rounded half up, as in a cast.

    Returns:
        The number; NULL for NULL, for a number with too many digits, and for a text that is not base64.

    Raises:
        Refused: An argument is not valid.
    """
    from pyspark.sql import functions as F

    if not 1 <= precision <= DIGITS_MAX:
        raise _CHECKS.argument("precision", precision, f"a number from 1 to {DIGITS_MAX}")
    if not 0 <= scale <= precision:
        raise _CHECKS.argument("scale", scale, "a number from 0 to the precision")
    own = F.lit(scale) if value_scale is None else _column(value_scale).cast("int")
    exponent = F.when(F.abs(own.cast("bigint")) <= SCALE_MAX, (-own).cast("string"))
    text = F.concat(_whole(_digits(_column(column))).cast("string"), F.lit("E"), exponent)
    return text.try_cast(f"decimal({precision}, {scale})")


def _column(column: str | Column) -> Column:
    from pyspark.sql import functions as F

    return F.col(column) if isinstance(column, str) else column


def _digits(text: Column) -> Column:
    """The bytes in hexadecimal digits; NULL for what only resembles base64, such as NaN: its padding is missing."""
    from pyspark.sql import functions as F

    told = F.try_to_binary(text, F.lit("base64"))
    return F.when(F.base64(told) == text, F.hex(told))


def _whole(digits: Column) -> Column:
    """The number of at most 16 bytes in hexadecimal digits: in two's complement, -n is the complement of n - 1."""
    from pyspark.sql import functions as F

    positive = digits < F.lit("8")  # by its first digit, since the shorter one of two texts goes first
    complement = F.translate(digits, "0123456789ABCDEF", "FEDCBA9876543210")
    return F.when(positive, _unsigned(digits)).otherwise(F.try_subtract(F.lit(-1), _unsigned(complement)))


def _unsigned(digits: Column) -> Column:
    """Hexadecimal digits as a decimal; NULL for no digits, or over 38 in the result. ``conv`` takes 64 bits at once."""
    from pyspark.sql import functions as F

    padded = F.when(F.length(digits).between(1, _HEX_MAX), F.lpad(digits, _HEX_MAX, "0"))
    upper, lower = (F.conv(F.substr(padded, F.lit(at), F.lit(16)), 16, 10).cast("decimal(20, 0)") for at in (1, 17))
    return F.try_add(F.try_multiply(upper, F.lit(str(2**64)).cast("decimal(20, 0)")), lower)
