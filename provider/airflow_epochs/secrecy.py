"""Keeps secrets out of texts: remembers the secrets that this process reads, and blots them out.

Code that reads a connection passes its secrets to ``keep``. From then on every text of an ``EpochError``, every log
line of this package and every reason and warning in a record goes through ``scrubbed``. It blots out each secret in all
forms in which clients, Spark and JSON show it. ``shown`` prepares a URL for a text. This module needs only the standard
library, because Spark's driver runs it too.

``scrubbed`` blots out a secret of at least ``LENGTH_MIN`` characters wherever it stands. A shorter one may also be part
of an innocent word, so ``scrubbed`` blots it out only behind a name such as ``password``.
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
    r"|(account|access|shared|private|api|storage|encryption|customer|master)[._-]?key(?!provider)"
    r"|(^|[._-])key($|\.pem$|_id$)|authorization|connection_?string|^dsn$|^keyfile_dict$|user\.info$",
    re.I,
)
_USER_INFO = "user.info"  # of a schema registry's client: name and password
_NO_SECRET_NAME = re.compile(r"(location|path|file|conn_id|provider|mechanism|url|uri|endpoint)$", re.I)
_JAAS = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"', re.S)
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}://)[^\s/?#@'\"]{0,512}:[^\s/?#@'\"]{0,512}@")
_PARAMETER = re.compile(r"([;?&])([\w.-]{1,64})=([^\s;&#'\"<>]{1,4096})")
_USER = re.compile(r"(?![^/@]*:\d+/)(?:([^:/?#;@]*)(?::.*)?)@", re.S)
_CONTAINER = re.compile(r"(abfss?|wasbs?)://", re.I)
_NAMED = r"(?i:(?:pass\w*|pwd|token|secret|key)\W{1,5})"


class _Known:
    """The known secrets and their forms. The longest form comes first, because it may contain another one."""

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
    """Blot these secrets out of all texts from now on. Ignores empty values; idempotent."""
    given = {value for value in values if value}
    short = {value for value in given if len(value) < LENGTH_MIN}
    new = given - short - _known.secrets
    if new or short - _known.short.keys():
        _known.add(new, short)
        _tell(new)


def tell(others: Callable[[list[str]], object]) -> None:
    """Pass the commonest forms of every known and every future secret to ``others``, such as Airflow's masker.

    Secrets shorter than ``LENGTH_MIN`` are not passed on. A second function replaces the first.
    """
    if _known.others is not others:
        _known.others = others
        _tell(_known.secrets)


def _tell(secrets: Iterable[str]) -> None:
    """Pass on the commonest forms only: for each new form, Airflow compiles its pattern of all forms again."""
    common = [{secret, " ".join(secret.split()), *_escaped(secret)} for secret in secrets]
    told = {form for forms in common for form in forms if not any(other in form for other in forms - {form})}
    if _known.others and told:
        _known.others(sorted(told))


def keep_options(options: Mapping[str, str]) -> None:
    """Keep the values of Spark's secret options, and the secrets inside a JAAS configuration."""
    for value in options.values():
        keep([value, *(_unescaped(text) for name, text in _JAAS.findall(value) if _is_secret(name))])


def forget() -> None:
    """Forget every secret. For tests: a task's secrets end with its process."""
    global _known
    _known = _Known()
    _warned.clear()


def secrets_in(value: object, name: str = "") -> Iterator[str]:
    """Find the secrets in a connection's fields, at any depth, also in JSON texts and URLs.

    The name of a field tells whether its value is secret. ``name`` is the name of ``value`` itself.
    """
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
    if name.endswith(_USER_INFO):
        yield text.partition(":")[2]
    yield from (_unescaped(value) for key, value in _JAAS.findall(text) if _is_secret(key))
    yield from _secrets_in_url(text)


def _secrets_in_url(text: str) -> Iterator[str]:
    """The password before the host, and the values of parameters with a secret's name."""
    rest = text.partition("://")[2] or text
    for authority in (rest, re.split(r"[?#;]", rest)[0]):  # an unescaped password may contain ?, # or ;
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
    """How a text may show a secret: as it is, line by line, in base64, and escaped up to twice (JAAS within JSON)."""
    for whole in {secret, " ".join(secret.split())}:
        once = {whole, *_escaped(whole)}
        yield from {*once, *(twice for each in once for twice in _escaped(each))}
        yield from _in_base64(whole)
    for line in _lines(secret):
        yield from {line, *_escaped(line)}


def _lines(secret: str) -> Iterator[str]:
    """The lines of a key, even if they were joined to one line.

    A text that was cut may show only some of them.
    """
    words = secret.split() if "-----" in secret else secret.splitlines()
    return (word for word in words if len(word) >= 2 * LENGTH_MIN and "-----" not in word)


def _escaped(text: str) -> Iterator[str]:
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield repr(text)[1:-1]
    yield repr(text + "'")[1:-2]  # repr then uses double quotes
    yield quote(text)
    yield quote(text, safe="")
    yield quote_plus(text)
    yield jaas_escaped(text)
    yield _in_protobuf(text)


def jaas_escaped(value: str) -> str:
    """Escape ``value`` for a quoted JAAS string.

    Java's tokenizer reads backslash escapes, and a line end would end the string.
    """
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), text)


def _in_protobuf(text: str) -> str:
    """Escape ``text`` as protobuf's text format does. pyspark logs plans in this format."""
    named = {'"': '\\"', "'": "\\'", "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(named.get(each) or (each if each.isprintable() else f"\\{ord(each):03o}") for each in text)


def _in_base64(text: str) -> Iterator[str]:
    """The base64 of ``text`` as it stands in the base64 of a longer text, such as ``user:password``.

    Base64 encodes three bytes at a time, so there is one form for each of the three positions where ``text`` may begin.
    """
    raw = text.encode("utf-8", "surrogatepass")
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        sure = encoded[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6]
        if len(sure) >= 2 * LENGTH_MIN:
            yield from (sure, sure.translate(str.maketrans("+/", "-_")))


# -- texts -------------------------------------------------------------------------------------------------------------


def scrubbed(text: str) -> str:
    """Blot every known secret out of ``text``.

    In URLs, it also blots out user and password, and parameters with a secret's name, known or not.
    """
    text = _known.blotted(text)
    return _PARAMETER.sub(_blotted_parameter, _USERINFO.sub(rf"\1{BLOT}@", text))


def _blotted_parameter(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}={BLOT}" if _is_secret(found[2]) else found[0]


def shown(url: str) -> str:
    """A URL for a text, a log line or a record: without user and password, and without everything behind the path.

    The container of an Azure URL (``abfss://container@account…``) stays: it stands where other URLs have a user.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        return scrubbed(url if "/" in url else url.rpartition("@")[2])
    user = _user_of(url)
    address = re.split(r"[?#;]", rest[user.end() :] if user else rest)[0]
    container = f"{user[1]}@" if user and _CONTAINER.match(url) else ""
    return scrubbed(f"{scheme}://{container}{address}")


def has_login(url: str) -> bool:
    """Whether the URL holds a user, with or without a password. An Azure container is no user."""
    user = _user_of(url)
    return bool(user) and not (_CONTAINER.match(url) and user and ":" not in user[0])


def _user_of(url: str) -> re.Match[str] | None:
    return _USER.match(url.partition("://")[2])


def cleaned(error: BaseException) -> BaseException:
    """Blot the secrets out of ``error`` and its causes.

    It changes these errors in place. A RuntimeError with the same traceback replaces an error whose text cannot be
    changed.
    """
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
    """Blots secrets out of log records: out of the message, the exception and pyspark's ``context``."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record in place; never drop it."""
        message = record.getMessage()
        if (told := self.told(message)) != message:
            record.msg, record.args = told, ()
        if record.exc_info and record.exc_info[1] and (error := record.exc_info[1]):
            record.exc_info = (type(clean := cleaned(error)), clean, clean.__traceback__)
        if context := getattr(record, "context", None):  # a field of pyspark's loggers
            record.context = {key: self.told(str(value)) for key, value in context.items()}
        return True

    def told(self, text: str) -> str:
        """The text to log in place of ``text``. A subclass may blot out more."""
        return scrubbed(text)


def logger(name: str) -> logging.Logger:
    """A module's logger, which logs no secret. Idempotent."""
    found = logging.getLogger(name)
    if not any(isinstance(each, Scrubbing) for each in found.filters):
        found.addFilter(Scrubbing())
    return found


_warned: set[str] = set()


def warn_once(log: logging.Logger, text: str) -> None:
    """Log a warning, unless this process has logged the same text before."""
    if text not in _warned:
        _warned.add(text)
        log.warning("%s (this process logs this warning once)", text)


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine itself: ``localhost`` or a loopback address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
