"""The compose file has no secret of its own, and lets nobody in who has none."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

DOCKER = Path(__file__).parents[2] / "docker"
TEXT = (DOCKER / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
DRAWN = r"\$\{(\w+):\?run sh docker/new-env\.sh first\}"
"""Compose stops without it, and says what to do."""


def settings() -> Iterator[tuple[str, str]]:
    for service in SERVICES.values():
        yield from service.get("environment", {}).items()


def secrets() -> Iterator[tuple[str, str]]:
    """Every setting that is a secret or has one in it, and that secret."""
    for name, value in settings():
        if re.search(r"SECRET|PASSWORD|TOKEN|KEY", name) and not name.endswith("_FILE"):
            yield name, value
        if login := re.search(r"://[^:/@]+:(.*)@", value):
            yield name, login[1]
        if name.startswith("AIRFLOW_CONN_"):
            yield from ((name, each) for key, each in json.loads(value).items() if key == "password")


@pytest.fixture
def drawn(tmp_path: Path) -> dict[str, str]:
    """What the script draws, in a folder of its own."""
    return draw(tmp_path / "docker")


def draw(folder: Path) -> dict[str, str]:
    folder.mkdir()
    shutil.copy(DOCKER / "new-env.sh", folder)
    subprocess.run(["sh", str(folder / "new-env.sh")], check=True, capture_output=True)
    return dict(line.split("=", 1) for line in (folder / ".env").read_text().splitlines())


def test_every_secret_of_the_compose_file_is_drawn_and_none_is_written_there() -> None:
    found = list(secrets())
    assert {name for name, _ in found} >= {
        "AIRFLOW__CORE__FERNET_KEY",
        "AIRFLOW__API__SECRET_KEY",
        "AIRFLOW__API_AUTH__JWT_SECRET",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
        "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT",
        "AIRFLOW_PASSWORD",
        "POSTGRES_PASSWORD",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN",
    }
    assert [(name, value) for name, value in found if not re.fullmatch(DRAWN, value)] == []


def test_every_variable_of_the_compose_file_is_one_that_the_script_draws(drawn: dict[str, str]) -> None:
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", TEXT))
    assert used == set(re.findall(DRAWN, TEXT)) == set(drawn)


def test_drawn_secrets_are_long_never_the_same_twice_and_fit_into_a_url_and_json(
    drawn: dict[str, str], tmp_path: Path
) -> None:
    other = draw(tmp_path / "other")
    for name, secret in drawn.items():
        assert len(secret) >= 32 and re.fullmatch(r"[\w=-]+", secret)
        assert secret != other[name]
    assert len(set(drawn.values())) == len(drawn)
    assert len(drawn["JWT_SECRET"]) >= 64, "HS512 wants that"


def test_the_drawn_fernet_key_is_one(drawn: dict[str, str]) -> None:
    from cryptography.fernet import Fernet

    cipher = Fernet(drawn["FERNET_KEY"])
    assert cipher.decrypt(cipher.encrypt(b"x")) == b"x"


def test_the_script_leaves_a_file_that_nobody_else_can_read_and_does_not_draw_again(
    drawn: dict[str, str], tmp_path: Path
) -> None:
    env = tmp_path / "docker" / ".env"
    before = env.read_text()
    assert oct(env.stat().st_mode & 0o777) == "0o600"
    again = subprocess.run(["sh", str(env.with_name("new-env.sh"))], capture_output=True, text=True, check=False)
    assert again.returncode == 1 and "is there already" in again.stderr
    assert env.read_text() == before


def test_git_does_not_take_the_file_of_secrets() -> None:
    ignored = subprocess.run(["git", "-C", str(DOCKER), "check-ignore", ".env"], capture_output=True, check=False)
    assert ignored.returncode == 0


def test_only_one_user_may_log_in_and_everything_else_is_closed() -> None:
    airflow = {name: service for name, service in SERVICES.items() if service.get("image") == "epochs-airflow"}
    for service in airflow.values():
        assert service["environment"]["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == "admin:ADMIN"
    assert "ALL_ADMINS" not in TEXT
    assert [name for name in SERVICES if "ports" in SERVICES[name]] == ["kafka", "api-server"]


def test_spark_connect_listens_only_where_its_client_is_and_wants_a_token() -> None:
    assert "spark.connect.grpc.binding.address=127.0.0.1" in (DOCKER / "spark.Dockerfile").read_text()
    assert SERVICES["spark"]["network_mode"] == SERVICES["scheduler"]["network_mode"] == "service:loopback"
    token = SERVICES["spark"]["environment"]["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
    client = json.loads(SERVICES["scheduler"]["environment"]["AIRFLOW_CONN_SPARK_CONNECT_DEFAULT"])
    assert (client["host"], client["password"]) == ("localhost", token)


def test_the_topic_outlives_its_container_as_the_ledger_does() -> None:
    """To the ledger, a new topic of the same name is one that was deleted and created again."""
    kafka = SERVICES["kafka"]
    kept = dict(reversed(volume.split(":", 1)) for volume in kafka.get("volumes", []))
    assert kept.get(kafka["environment"].get("KAFKA_LOG_DIRS")) in COMPOSE["volumes"]


def test_the_user_that_runs_spark_has_a_name_in_its_image() -> None:
    uid, _ = SERVICES["spark"]["user"].split(":")
    assert re.search(rf"^RUN useradd .*--uid {uid} ", (DOCKER / "spark.Dockerfile").read_text(), re.MULTILINE)


def test_the_web_server_is_told_the_password_in_a_file_and_starts(drawn: dict[str, str], tmp_path: Path) -> None:
    """Its command, run with a program ``airflow`` that only says how it was called."""
    (tmp_path / "airflow").write_text("#!/bin/sh\necho called with $*\n")
    (tmp_path / "airflow").chmod(0o755)
    passwords = tmp_path / "passwords.json"
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "AIRFLOW_PASSWORD": drawn["AIRFLOW_PASSWORD"],
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }
    command = [part.replace("$$", "$") for part in SERVICES["api-server"]["command"]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "called with api-server --workers 1\n"
    assert json.loads(passwords.read_text()) == {"admin": drawn["AIRFLOW_PASSWORD"]}
    assert oct(passwords.stat().st_mode & 0o777) == "0o600"


def test_all_parts_of_airflow_have_the_plugin_that_checks_the_host() -> None:
    for service in SERVICES.values():
        if service.get("image") == "epochs-airflow":
            assert "./local/plugins:/project/plugins:ro" in service["volumes"]
            assert service["environment"]["AIRFLOW__CORE__PLUGINS_FOLDER"] == "/project/plugins"
