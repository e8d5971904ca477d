"""Secrets that this process has read stand in none of its texts: errors, log lines, records, pyspark's own logs."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from airflow_epochs import DeltaSink, KafkaSink, SqlSink, secrecy
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import EpochError, NotApplied, Refused, tolerated
from airflow_epochs.hooks import epochs
from airflow_epochs.kafka.connection import read_connection
from airflow_epochs.spark.connect_address import connection_url
from airflow_epochs.spark.driver import failures
from airflow_epochs.testing import MemorySpark
from tests.support.kafka_certificates import Authority
from tests.support.scenario import Scenario, run, staged

CANARY = "Canäry\"7\\'/+ %;=&x"
LINES = "\n".join(f"{part}Aa0+/Zz9" * 4 for part in "abc")
KEY = f"-----BEGIN PRIVATE KEY-----\n{LINES}\n-----END PRIVATE KEY-----\n"


def jaas(password: str) -> str:
    return f'PlainLoginModule required username="u" password="{secrecy.jaas_escaped(password)}";'


def protobuf(text: str) -> str:
    from google.protobuf.struct_pb2 import Value
    from google.protobuf.text_format import MessageToString

    return str(MessageToString(Value(string_value=text), as_one_line=True))


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "JSON": json.dumps,
    "JSON with letters beyond ASCII": lambda text: json.dumps(text, ensure_ascii=False),
    "repr": repr,
    "repr of a text with both quotes": lambda text: repr(text + "'\""),
    "URL": quote,
    "URL with slashes escaped": lambda text: quote(text, safe=""),
    "form": quote_plus,
    "JAAS": jaas,
    "JAAS in JSON": lambda text: json.dumps(jaas(text)),
    "JAAS in a plan": lambda text: protobuf(jaas(text)),
    "plan": protobuf,
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "basic authorization": lambda text: base64.b64encode(f"user:{text}".encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(f"me:{text}?".encode()).decode(),
}


@pytest.mark.parametrize("secret", [CANARY, "hunter2-Correct", KEY], ids=["odd", "plain", "key"])
@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_blotted_out_in_every_form(form: str, secret: str) -> None:
    shown = FORMS[form](secret)
    secrecy.keep([secret])
    left = secrecy.scrubbed(f"It said <{shown}>.")
    assert secrecy.BLOT in left and left.startswith("It said <") and left.endswith(">.")
    assert len(left) < 130 if form.startswith("JAAS") else len(left) < 110
    for piece in {*(FORMS[each](secret).strip("\"'")[:14] for each in ("plain", "JSON", "URL", "plan")), "Aa0+/Zz9"}:
        assert piece not in left or piece.startswith(("-----", "string_value"))


def test_a_line_of_a_key_is_blotted_out_where_a_text_was_cut() -> None:
    secrecy.keep([KEY.replace("\n", " ")])
    assert "Aa0+/Zz9" not in secrecy.scrubbed(f"cut: {KEY[60:100]}{KEY.splitlines()[2]}"[40:])


def test_a_short_secret_is_blotted_out_only_behind_its_name() -> None:
    secrecy.keep(["abc", ""])
    text = "password=abc; \"token\": 'abc', abcd, table abc, password=abcd"
    assert secrecy.scrubbed(text) == "password=******; \"token\": '******', abcd, table abc, password=abcd"


def test_of_two_secrets_the_longer_one_is_blotted_out_whole() -> None:
    secrecy.keep(["hunter2", "hunter2-long"])
    assert secrecy.scrubbed("hunter2-long hunter2") == "****** ******"


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3://me:pass@bucket/folder", "s3://bucket/folder"),
        ("https://token@host:9000/a?sig=x#y", "https://host:9000/a"),
        ("sc://host:15002/;user_id=me;token=t", "sc://host:15002/"),
        ("abfss://container@account.dfs.core.windows.net/a", "abfss://container@account.dfs.core.windows.net/a"),
        ("abfss://container:pass@account/a", "abfss://container@account/a"),
        ("https://[::1:9000/a", "https://[::1:9000/a"),
        ("/lake/a;b?c@d", "/lake/a;b?c@d"),
        ("me:pass@host:9092", "host:9092"),
        ("s3://me:p/a?s;s@x@bucket/a", "s3://bucket/a"),
        ("http://host:9000/a@b", "http://host:9000/a@b"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("lake.orders", "lake.orders"),
    ],
)
def test_a_url_is_shown_without_userinfo_and_parameters(url: str, place: str) -> None:
    assert secrecy.shown(url) == place


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("at http://me:pass@h:1/x: no", "at http://******@h:1/x: no"),
        ("at h:1/;user_id=me;token=abc: no", "at h:1/;user_id=me;token=******"),
        ("GET /x?a=1&X-Amz-Signature=12ab&b=2", "GET /x?a=1&X-Amz-Signature=******&b=2"),
        ("abfss://c@a.net/x at 12:30 by me@x", "abfss://c@a.net/x at 12:30 by me@x"),
    ],
)
def test_what_stands_in_a_url_where_secrets_stand_is_blotted_out_unknown_as_it_is(text: str, left: str) -> None:
    assert secrecy.scrubbed(text).startswith(left)


def test_an_error_has_no_secret_in_cause_place_and_remedy() -> None:
    early = Refused(f"It says {CANARY}.", remedy=f"See {CANARY}.")
    secrecy.keep([CANARY])
    late = Refused(f"It says {CANARY}.", remedy=f"See {CANARY}.", sink=CANARY)
    late.what += CANARY
    assert str(early) == "It says ******.\nWhat to do: See ******."
    assert str(late) == "It says ******.******\nWhere: sink ******\nWhat to do: See ******."
    assert late.args == ("It says ******.\nWhere: sink ******\nWhat to do: See ******.",)
    assert late.remedy == "See ******."


class Stubborn(Exception):
    """Its text does not come from its arguments, as that of pyspark's errors."""

    def __str__(self) -> str:
        return f"stubborn {CANARY}"


def test_the_causes_of_an_error_have_none_either() -> None:
    secrecy.keep([CANARY])
    try:
        try:
            try:
                raise OSError(5, CANARY, f"/{CANARY}")
            except OSError as error:
                raise Stubborn from error
        except Stubborn as error:
            raise NotApplied(f"No: {error}", remedy="none") from error
    except NotApplied as error:
        told = secrecy.cleaned(error)
    assert told.__cause__ is told.__context__
    assert str(told.__cause__) == "Stubborn: stubborn ******"
    assert told.__cause__ is not None and told.__cause__.__cause__ is not None
    assert CANARY not in str(told.__cause__.__cause__) + repr(told.__cause__.__cause__)


def test_an_error_without_secrets_is_left_as_it_is() -> None:
    secrecy.keep([CANARY])
    error = ValueError("x")
    error.__cause__ = error
    assert secrecy.cleaned(error) is error


# -- connections ------------------------------------------------------------------------------------------------------

CONNECTIONS: dict[str, dict[str, Any]] = {
    "kafka": {
        "login": "me",
        "password": CANARY + "1",
        "extra": {
            "bootstrap.servers": f"me:{CANARY}2@localhost:1",
            "sasl.username": "me",
            "sasl.password": CANARY + "3",
            "ssl.key.pem": KEY,
            "ssl.key.password": CANARY + "4",
            "ssl.keystore.password": CANARY + "5",
            "sasl.oauthbearer.client.secret": CANARY + "6",
            "sasl.jaas.config": jaas(CANARY + "7"),
        },
    },
    "spark_connect": {"host": f"sc://me:{CANARY}1@h/;token={quote(CANARY)}2", "password": CANARY + "3"},
    "postgres": {"password": CANARY + "1", "extra": {"sslpassword": CANARY + "2", "dsn": f"password={CANARY}"}},
    "aws": {
        "login": "key-id",
        "password": CANARY + "1",
        "extra": {
            "aws_session_token": CANARY + "2",
            "aws_secret_access_key": CANARY + "3",
            "endpoint_url": f"https://me:{quote(CANARY)}4@h/",
            "proxy_url": f"https://me:{quote(CANARY)}4@h/",
            "storage_options": json.dumps({"aws_secret_access_key": CANARY + "5"}),
        },
    },
    "google_cloud_platform": {
        "extra": {"project": "lake", "keyfile_dict": json.dumps({"type": "service_account", "private_key": KEY})}
    },
    "wasb": {
        "password": CANARY + "1",
        "extra": {
            "sas_token": f"sv=2024&sig={quote(CANARY)}2",
            "account_key": CANARY + "3",
            "connection_string": f"AccountName=a;AccountKey={quote(CANARY)}4",
            "client_secret": CANARY + "5",
        },
    },
    "epochs": {"password": CANARY + "1", "extra": {"ledger_root": f"s3://me:{quote(CANARY)}2@lake/ledger"}},
}


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("fs.azure.account.key.lake.dfs.core.windows.net", True),
        ("spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net", True),
        ("fs.azure.account.key", True),
        ("fs.s3a.bucket.lake.access.key", True),
        ("aws_sse_customer_key_base64", True),
        ("shared-key-of-a-store", True),
        ("fs.azure.account.keyprovider.lake.dfs.core.windows.net", False),
        ("fs.azure.account.auth.type.lake.dfs.core.windows.net", False),
        ("key.serializer", False),
        ("primary_keys", False),
        ("sort_key_columns", False),
        ("fs.s3a.encryption.key.url", False),
    ],
)
def test_the_name_of_a_setting_tells_whether_it_is_secret(name: str, secret: bool) -> None:
    assert secrecy.secret_names({name: "value"}) == [name] * secret


@pytest.fixture(autouse=True)
def no_masks_of_other_tests() -> None:
    from airflow.sdk._shared.secrets_masker import reset_secrets_masker

    reset_secrets_masker()


@pytest.fixture(params=CONNECTIONS)
def connection(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    fields = {"conn_type": request.param, **CONNECTIONS[request.param]}
    monkeypatch.setenv("AIRFLOW_CONN_CANARIES", json.dumps(fields))
    return epochs.connection("canaries")


def leaves(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for below in value.values():
            yield from leaves(below)
    elif isinstance(value, str):
        yield value


def test_no_secret_of_any_field_of_a_connection_stands_in_a_text_afterwards(connection: Any) -> None:
    fields = CONNECTIONS[connection.conn_type]
    for text in [*leaves(fields), repr(connection), json.dumps(fields), str(connection.extra)]:
        told = secrecy.scrubbed(text)
        assert "Can" not in told and "7\\" not in told and "Aa0+" not in told
    assert secrecy.scrubbed("lake service_account localhost key-id me") == "lake service_account localhost key-id me"


def test_airflows_masker_knows_a_connections_secrets(connection: Any) -> None:
    from airflow.sdk.log import redact  # type: ignore[attr-defined]  # exported, if not by ``__all__``

    for value in leaves(CONNECTIONS[connection.conn_type]):
        for form in (str,) if value.startswith("{") else (str, json.dumps, jaas, quote, repr):
            assert "Canä" not in str(redact(form(value))) and "Aa0+" not in str(redact(form(value)))


def test_a_key_that_is_read_from_a_file_is_known_too(tmp_path: Path) -> None:
    pair = Authority("test").issue("client")
    (tmp_path / "key").write_text(pair.key_pem())
    extra = {"ssl.certificate.pem": pair.certificate_pem, "ssl.key.location": str(tmp_path / "key")}
    extra |= {"bootstrap.servers": "h:1", "security.protocol": "SSL"}
    access = read_connection(Connection(conn_id="k", conn_type="kafka", extra=extra))
    assert access.tls is not None and access.tls.key is not None
    assert access.tls.key.splitlines()[1] not in secrecy.scrubbed(access.tls.key)


def test_a_table_whose_url_holds_a_login_is_refused_before_a_record_has_it() -> None:
    with pytest.raises(Refused, match=r"table s3://lake/orders contains a login"):
        DeltaSink("one", "s3://me:pass@lake/orders").destination()
    for url in ("s3://lake/a@b", "abfss://lake@account.dfs.core.windows.net/a", "/lake/a:b@c", "lake.orders"):
        assert DeltaSink("one", url).destination() == url


def test_a_staging_folder_whose_url_holds_a_login_is_refused_before_a_record_has_it() -> None:
    for sink in (
        KafkaSink("one", "t", staging="s3://me:pass@lake/x"),
        SqlSink("one", "c", "t", staging="s3://me:pass@lake/x"),
    ):
        with pytest.raises(Refused, match=r"staging s3://lake/x contains a login"):
            sink.destination()


# -- log lines and records --------------------------------------------------------------------------------------------


def fail_stubbornly() -> None:
    raise Stubborn from ValueError(CANARY)


def test_log_lines_that_quote_others_have_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    secrecy.keep([CANARY])
    log = secrecy.logger("airflow_epochs.test")
    log.warning("%s failed: %r", "it", CANARY)
    with tolerated(f"asking {CANARY}"):
        fail_stubbornly()
    assert "it failed: '******'" in caplog.text and "asking ****** failed" in caplog.text
    assert "Stubborn" in caplog.text and "Can" not in caplog.text


def test_pysparks_log_of_a_plan_has_none_not_even_one_that_was_cut(caplog: pytest.LogCaptureFixture) -> None:
    failures.quiet_pyspark()
    failures.quiet_pyspark()
    from pyspark.sql.connect.logging import logger

    secrecy.keep_options({"kafka.sasl.jaas.config": jaas(CANARY)})
    logger.disabled, level, before = False, logger.level, list(logger.handlers)
    logger.handlers = [caplog.handler]
    logger.setLevel(logging.DEBUG)
    try:
        plan = protobuf(jaas(CANARY))
        logger.debug(f"Executing plan read {{ options {{ key: x {plan} }} }}", plan=plan)
        logger.debug("Executing plan kafka.ssl.keystore.key: MIIEvcut")
        try:
            raise Stubborn
        except Stubborn:
            logger.exception("GRPC Error received")
    finally:
        logger.disabled, logger.handlers = True, before
        logger.setLevel(level)
    told = caplog.text + str([vars(record) for record in caplog.records])
    assert "Executing plan read" in told and "GRPC" in told
    assert "Can" not in told and "MIIEv" not in told


def test_records_and_checkpoints_have_no_secret_that_a_transform_tells() -> None:
    secrecy.keep([CANARY])
    scenario = Scenario()
    why = f"no column {CANARY}: kafka [{json.dumps(CANARY)}]"
    coordinator = scenario.coordinator(spark=MemorySpark(lambda batch, epoch: {"orders": why}))
    with pytest.raises(Refused) as refused:
        coordinator.vote(run(1), report := staged(scenario, coordinator))
    assert "no column ******" in str(refused.value)
    reason = str(coordinator.abort(run(1), "x"))
    values = b"".join(scenario.world.store.values.values()).decode()
    assert "no column ******" in values and "no column ******" in reason
    assert "Can" not in f"{values} {reason} {report} {coordinator.checkpoint(coordinator.task.view_of(run(1)))}"


def test_the_decision_has_no_secret_that_a_sink_tells() -> None:
    secrecy.keep([CANARY])
    scenario = Scenario()
    scenario.world.refusals["orders"] = f"the server said {CANARY}"
    coordinator = scenario.coordinator()
    with pytest.raises(Refused):
        coordinator.vote(run(1), staged(scenario, coordinator))
    values = b"".join(scenario.world.store.values.values()).decode()
    assert "the server said ******" in values and "Can" not in values


# -- errors on the way to servers -------------------------------------------------------------------------------------


def test_no_error_on_the_way_to_a_server_has_a_secret(connection: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    failed = _provoked(connection)
    seen = "\n".join(_chain(failed)) + caplog.text
    assert "Can" not in seen and "Aa0+" not in seen, seen


def _provoked(connection: Any) -> BaseException:
    with pytest.raises(Exception) as raised:
        _reach(connection)
    return secrecy.cleaned(raised.value)


def _reach(connection: Any) -> None:
    from airflow_epochs.ledger.store import open_store
    from airflow_epochs.sinks.sql.database import database_of
    from airflow_epochs.storage.objects import object_store
    from airflow_epochs.storage.options import storage_options

    match connection.conn_type:
        case "kafka":
            read_connection(connection)
        case "spark_connect":
            raise NotApplied(f"No: {connection_url(connection)}", remedy=f"See {connection.host!r}.")
        case "postgres":
            with database_of(connection).connect(connection, ["x"]):
                raise AssertionError
        case "epochs":
            open_store(connection.extra["ledger_root"], {"aws_region": CANARY + "1", "nonsense": "x"})
            raise Refused(f"The ledger at {connection.extra['ledger_root']}", remedy="none")
        case _:
            options = {**storage_options(connection), "nonsense": "x"}
            object_store(f"s3://me:{CANARY}1@bucket/x", options)
            raise Refused(f"The store has {options}", remedy="none")


def _chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{error} {error!r}"
        error = error.__cause__ or error.__context__


def test_the_operators_edge_lets_no_secret_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from airflow.sdk import DAG
    from airflow.sdk.exceptions import AirflowFailException

    from airflow_epochs import KafkaSource, SparkConnect
    from airflow_epochs.operators.epoch import CompleteEpochOperator

    secrecy.keep([CANARY])
    with DAG("edge", schedule=None, max_active_runs=1) as dag:
        operator = CompleteEpochOperator(
            task_id="complete",
            pipeline="p",
            source=KafkaSource(topics=["t"]),
            transform="a.py:f",
            sinks=[DeltaSink("one", "/lake/one")],
            spark=SparkConnect(),
        )
    failures = ((Refused("no", remedy="none"), AirflowFailException), (NotApplied("no", remedy="x"), EpochError))
    for failure, kind in failures:

        def fail(*_: object, failure: EpochError = failure) -> None:
            failure.what = CANARY
            raise failure from Stubborn()

        monkeypatch.setattr(operator, "_coordinator", fail)
        with pytest.raises(kind) as raised:
            operator.execute(SimpleNamespace(dag=dag))  # type: ignore[arg-type]  # as much of a context as it looks at
        assert "Can" not in "".join(_chain(raised.value))
