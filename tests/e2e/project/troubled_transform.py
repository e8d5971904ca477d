"""The orders' transform, which raises as long as there is a file $TROUBLES/stage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import orders as good

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def orders(batch: DataFrame, epoch: object) -> dict[str, DataFrame]:
    if Path(os.environ["TROUBLES"], "stage").exists():
        raise RuntimeError("there is trouble")
    frames: dict[str, DataFrame] = good.orders(batch, epoch)
    return frames
