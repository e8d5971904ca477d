"""No secret in any text: which secrets this process has read, and how texts lose them.

Whoever reads a connection tells ``keep``. From then on every text of an ``EpochError``, every log line of this package
and every reason and warning in a record passes through ``scrubbed``, which blots out each secret in all forms in which
clients, Spark and JSON show it. Places are shown by ``shown``. Standard library only: Spark's driver runs this too.

A secret of at least ``LENGTH_MIN`` characters is blotted out wherever it stands. A shorter one would take parts of
innocent words along: it is blotted out only where a name such as ``password`` stands before it.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote

BLOT = "******"
LENGTH_MIN = 4

_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase|code)?$|pwd$|secret|token|credential|jaas|(^|[._-])(sas|sig|signature)($|[._-])|sas_?key"
    r"|(account|access|shared|private|api|storage|encryption|master)_?key|(^|[._-])key($|\.pem$|_id$)|authorization"
    r"|connection_?string|^dsn$|^keyfile_dict$",
    re.I,
)
_NO_SECRET_NAME = re.compile(r"(location|path|file|conn_id|provider|mechanism|url|uri|endpoint)$", re.I)
_JAAS = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"', re.S)
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}://)[^\s/?#@'\"]{0,512}:[^\s/?#@'\"]{0,512}@")
_PARAMETER = re.compile(r"([;?&])([\w.-]{1,64})=([^\s;&#'\"<>]{1,4096})")
_USER = re.compile(r"(?![^/@]*:\d+/)(?:([^:/?#;@]*)(?::.*)?)@", re.S)
_CONTAINER = re.compile(r"(abfss?|wasbs?)://", re.I)
_NAMED = r"(?i:(?:pass\w*|pwd|token|secret|key)\W{1,5})"


class _Known:
    """The secrets, and all their forms, the longest first: one may be a part of another."""

    def __init__(self) -> None:
        self.secrets: set[str] = set()
        self.forms: list[str] = []
        self.short: dict[str, re.Pattern[str]] = {}
        self.others: Callable[[list[str]], object] | None = None

    def add(self, secrets: Iterable[str], short: Iterable[str]) -> None:
        self.secrets.update(secrets)
        forms = {*self.forms, *(form for secret in secrets for form in _forms(secret))}
        self.forms = sorted(forms, key=len, reverse=True)
        self.short |= {value: re.compile(rf"({_NAMED}){re.escape(value)}(?!\w)") for value in short}

    def blotted(self, text: str) -> str:
        for form in self.forms:
            text = text.replace(form, BLOT)
        for pattern in self.short.values():
            text = pattern.sub(rf"\1{BLOT}", text)
        return text


_known = _Known()


def keep(values: Iterable[str]) -> None:
    """Blot these secrets out of all texts from now on."""
    given = {value for value in values if value}
    short = {value for value in given if len(value) < LENGTH_MIN}
    new = given - short - _known.secrets
    if new or short - _known.short.keys():
        _known.add(new, short)
        _tell(new)


def tell(others: Callable[[list[str]], object]) -> None:
    """Have others, such as Airflow's masker, told of every secret's forms: of those that are known, and to come."""
    if _known.others is not others:
        _known.others = others
        _tell(_known.secrets)


def _tell(secrets: Iterable[str]) -> None:
    """Tell the others of the commonest forms only: Airflow compiles its pattern of all forms anew for each of them."""
    common = [{secret, " ".join(secret.split()), *_escaped(secret)} for secret in secrets]
    told = {form for forms in common for form in forms if not any(other in form for other in forms - {form})}
    if _known.others and told:
        _known.others(sorted(told))


def keep_options(options: Mapping[str, str]) -> None:
    """Keep Spark's secret options, and what is secret within a JAAS configuration."""
    for value in options.values():
        keep([value, *(_unescaped(text) for name, text in _JAAS.findall(value) if _is_secret(name))])


def forget() -> None:
    """Know no secret any more. For tests: a task's process ends with its secrets."""
    global _known
    _known = _Known()
    _warned.clear()


def secrets_in(value: object, name: str = "") -> Iterator[str]:
    """The secrets among a connection's fields: by their names, at any depth, in JSON texts and in URLs too."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from secrets_in(below, str(key))
    elif isinstance(value, (list, tuple)):
        for below in value:
            yield from secrets_in(below, name)
    elif isinstance(value, str):
        yield from _secrets_in_text(value, name)


def secret_names(settings: Mapping[str, str]) -> list[str]:
    """The names of the settings that hold a secret."""
    return [name for name, value in settings.items() if any(secrets_in(value, name))]


def _secrets_in_text(text: str, name: str) -> Iterator[str]:
    if isinstance(decoded := _decoded(text), (Mapping, list)):
        yield from secrets_in(decoded, name)
        return
    if _is_secret(name):
        yield text
    yield from (_unescaped(value) for key, value in _JAAS.findall(text) if _is_secret(key))
    yield from _secrets_in_url(text)


def _secrets_in_url(text: str) -> Iterator[str]:
    """The password of its userinfo, and parameters with a secret's name."""
    rest = text.partition("://")[2] or text
    for authority in (rest, re.split(r"[?#;]", rest)[0]):  # a password that is not escaped may have these
        userinfo, at, _ = authority.rpartition("@")
        if at and (password := userinfo.partition(":")[2]):
            yield from (password, unquote(password))
    for key, value in re.findall(r"(?:^|[?&;\s])([\w.-]+)=([^;&#\s]+)", text):
        if _is_secret(key):
            yield from (value, unquote(value))


def _decoded(text: str) -> object:
    try:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") else None
    except ValueError:
        return None


def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _NO_SECRET_NAME.search(name)


# -- forms -------------------------------------------------------------------------------------------------------------


def _forms(secret: str) -> Iterator[str]:
    """How a secret may stand in a text: as it is, line by line, and escaped up to twice (JAAS within JSON)."""
    for whole in {secret, " ".join(secret.split())}:
        once = {whole, *_escaped(whole)}
        yield from {*once, *(twice for each in once for twice in _escaped(each))}
        yield from _in_base64(whole)
    for line in _lines(secret):
        yield from {line, *_escaped(line)}


def _lines(secret: str) -> Iterator[str]:
    """The lines of a key, also of one that was put on one line: texts are cut anywhere."""
    words = secret.split() if "-----" in secret else secret.splitlines()
    return (word for word in words if len(word) >= 2 * LENGTH_MIN and "-----" not in word)


def _escaped(text: str) -> Iterator[str]:
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield repr(text)[1:-1]
    yield repr(text + "'")[1:-2]  # repr quotes by " then
    yield quote(text)
    yield quote(text, safe="")
    yield quote_plus(text)
    yield jaas_escaped(text)
    yield _in_protobuf(text)


def jaas_escaped(value: str) -> str:
    """What stands between the quotes of a JAAS string: its tokenizer knows backslashes, and a line end ends it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), text)


def _in_protobuf(text: str) -> str:
    """As protobuf's text format has it, in which pyspark logs plans."""
    named = {'"': '\\"', "'": "\\'", "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(named.get(each) or (each if each.isprintable() else f"\\{ord(each):03o}") for each in text)


def _in_base64(text: str) -> Iterator[str]:
    """What of it is the same in the base64 of any text that contains it, such as ``user:password``."""
    raw = text.encode("utf-8", "surrogatepass")
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        sure = encoded[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6]
        if len(sure) >= 2 * LENGTH_MIN:
            yield from (sure, sure.translate(str.maketrans("+/", "-_")))


# -- texts -------------------------------------------------------------------------------------------------------------


def scrubbed(text: str) -> str:
    """``text`` with every known secret blotted out, and what stands in a URL where secrets stand."""
    text = _known.blotted(text)
    return _PARAMETER.sub(_blotted_parameter, _USERINFO.sub(rf"\1{BLOT}@", text))


def _blotted_parameter(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}={BLOT}" if _is_secret(found[2]) else found[0]


def shown(url: str) -> str:
    """A URL as it may stand in a text, a log line or a record: without userinfo and without what follows the path.

    The container of an Azure URL (``abfss://container@account…``) stands where others have a user, and stays.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        return scrubbed(url if "/" in url else url.rpartition("@")[2])
    user = _user_of(url)
    place = re.split(r"[?#;]", rest[user.end() :] if user else rest)[0]
    container = f"{user[1]}@" if user and _CONTAINER.match(url) else ""
    return scrubbed(f"{scheme}://{container}{place}")


def has_login(url: str) -> bool:
    """Whether a user, or a user and a password, stand in the URL."""
    user = _user_of(url)
    return bool(user) and not (_CONTAINER.match(url) and user and ":" not in user[0])


def _user_of(url: str) -> re.Match[str] | None:
    return _USER.match(url.partition("://")[2])


def cleaned(error: BaseException) -> BaseException:
    """``error`` without secrets, its causes too, or what stands in for one whose text cannot be changed."""
    return _cleaned(error, {})


def _cleaned(error: BaseException, done: dict[int, BaseException]) -> BaseException:
    if id(error) in done:
        return done[id(error)]
    done[id(error)] = error
    stands = done[id(error)] = _without_secrets(error)
    cause, context, suppressed = error.__cause__, error.__context__, error.__suppress_context__
    stands.__cause__ = cause and _cleaned(cause, done)
    stands.__context__ = context and _cleaned(context, done)
    stands.__suppress_context__ = suppressed
    return stands


def _without_secrets(error: BaseException) -> BaseException:
    text = _told(error)
    if scrubbed(text) == text:
        return error
    error.args = tuple(scrubbed(each) if isinstance(each, str) else each for each in error.args)
    if notes := getattr(error, "__notes__", None):
        notes[:] = map(scrubbed, notes)
    if scrubbed(_told(error)) == _told(error):
        return error
    return RuntimeError(f"{type(error).__name__}: {scrubbed(str(error))}").with_traceback(error.__traceback__)


def _told(error: BaseException) -> str:
    return "\n".join([str(error), repr(error), *getattr(error, "__notes__", ())])


# -- log lines ---------------------------------------------------------------------------------------------------------


class Scrubbing(logging.Filter):
    """Blots secrets out of a logger's records: message, exception and what else a formatter may show."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if (told := self.told(message)) != message:
            record.msg, record.args = told, ()
        if record.exc_info and record.exc_info[1] and (error := record.exc_info[1]):
            record.exc_info = (type(clean := cleaned(error)), clean, clean.__traceback__)
        if context := getattr(record, "context", None):  # of pyspark's loggers
            record.context = {key: self.told(str(value)) for key, value in context.items()}
        return True

    def told(self, text: str) -> str:
        return scrubbed(text)


def logger(name: str) -> logging.Logger:
    """The logger of a module, which logs no secret."""
    found = logging.getLogger(name)
    if not any(isinstance(each, Scrubbing) for each in found.filters):
        found.addFilter(Scrubbing())
    return found


_warned: set[str] = set()


def warn_once(log: logging.Logger, text: str) -> None:
    """Warn of it in the task's log, however often it is met."""
    if text not in _warned:
        _warned.add(text)
        log.warning("%s", text)


def is_loopback(host: str) -> bool:
    """Whether what goes to this host stays on this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
