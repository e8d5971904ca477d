"""An Airflow home of this test session's own. Imported first by conftest: Airflow reads its settings on import."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from tests.support import ram_disk

ram_disk.use()  # before anything makes a temporary file
HOME = Path(tempfile.mkdtemp(prefix="epochs-airflow-home-"))
DAGS = HOME / "dags"
DAGS.mkdir()
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

os.environ.update(
    AIRFLOW_HOME=str(HOME),
    AIRFLOW__CORE__DAGS_FOLDER=str(DAGS),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL="0",  # a test may change its DAG at once
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{HOME / 'airflow.db'}",
    AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
    AIRFLOW__API_AUTH__JWT_SECRET=secrets.token_hex(64),  # the one that Airflow would draw is too short for HS512
)
