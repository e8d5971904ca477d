"""What an object store has answered: its own code and message in one line, and what to do about it.

obstore and deltalake put the store's XML and a dump of their own into the text of an error. Neither has classes for all
that a store may say, so this module reads the text.
"""

from __future__ import annotations

import re
from enum import Enum

from airflow_epochs.errors import first_line

_CODE = re.compile(r"<Code>\s*(\w+)\s*</Code>")
_MESSAGE = re.compile(r"<Message>\s*(.*?)\s*</Message>", re.DOTALL)
_NOT_KNOWN = re.compile(r"status code: 401\b|lacked valid authentication credentials")
_NOT_ALLOWED = re.compile(r"status code: 403\b|lacked the necessary privileges")
"""The clients have words of their own for these answers, but not for those to a listing."""

_REQUEST = re.compile(r"performing ([A-Z]+) \w+://[^/\s]+(/[^?\s]*)")

S3_RIGHTS = (
    "On S3, they are s3:GetObject, s3:PutObject and s3:DeleteObject, and of the bucket s3:ListBucket: without it, S3 "
    "denies to read a file that is not there."
)


class Trouble(Enum):
    """Why a store does not do what it is asked, as far as a person must know it."""

    EXPIRED = "the session token has expired"
    UNKNOWN_KEY = "the store does not know the key, or the secret is wrong"
    CLOCK = "the worker's clock is wrong"
    NO_BUCKET = "there is no such bucket"
    DENIED = "the store knows the credentials, and they may not do this"
    DENIED_OR_UNKNOWN_KEY = "the store has not said which of the two it is"


_TROUBLES = {
    **dict.fromkeys(("ExpiredToken", "TokenRefreshRequired"), Trouble.EXPIRED),
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"), Trouble.UNKNOWN_KEY),
    **dict.fromkeys(("AuthenticationFailed", "InvalidAuthenticationInfo"), Trouble.UNKNOWN_KEY),  # Azure's
    "RequestTimeTooSkewed": Trouble.CLOCK,
    **dict.fromkeys(("NoSuchBucket", "ContainerNotFound"), Trouble.NO_BUCKET),
}


def trouble_of(error: BaseException) -> Trouble | None:
    """What the store says that a person must mend; None: it may be down, or it says something else."""
    text = str(error)
    code = _CODE.search(text)
    if code and code[1] in _TROUBLES:
        return _TROUBLES[code[1]]
    if _NOT_KNOWN.search(text):
        return Trouble.UNKNOWN_KEY
    if _NOT_ALLOWED.search(text):
        return Trouble.DENIED if code else Trouble.DENIED_OR_UNKNOWN_KEY
    return None


def is_denied(error: BaseException) -> bool:
    """Whether an object store has denied a request, perhaps to credentials that it knows."""
    return trouble_of(error) in (Trouble.DENIED, Trouble.DENIED_OR_UNKNOWN_KEY)


def told(error: BaseException) -> str:
    """The store's own code and message, and the request. If it tells of no code: the first line of the store's error.

    Another error also has its class: of a KeyError, the text alone tells nothing.
    """
    text = str(error)
    code, message, request = _CODE.search(text), _MESSAGE.search(text), _REQUEST.search(text)
    if not code:
        return first_line(error) if isinstance(error, OSError) or _is_of_store(error) else repr(error)
    why = f" ({' '.join(message[1].split())})" if message and message[1] else ""
    return f"{code[1]}{why}{f' to {request[1]} {request[2]}' if request else ''}"


def _is_of_store(error: BaseException) -> bool:
    """Whether obstore or deltalake, whose errors' module is called so, has raised it."""
    return type(error).__module__.split(".")[0] in ("obstore", "deltalake", "_internal")


def remedy_of(error: BaseException | None, conn_id: str | None, place: str, then: str) -> str | None:
    """What to do about the trouble; None if there is none.

    Args:
        error: The error of obstore or deltalake, if there is one.
        conn_id: The connection with the store's credentials, if it is known.
        place: What names the bucket, for the end of a sentence.
        then: What to do after the correction: sentences.
    """
    trouble = trouble_of(error) if error else None
    holder = f"connection {conn_id!r}" if conn_id else "the store's connection, or in the worker's environment"
    rights = f"the permissions to read and list there, and for a sink also to write and delete. {S3_RIGHTS}"
    first = {
        Trouble.EXPIRED: f"Put a new session token into {holder}: a retry fails until then.",
        Trouble.UNKNOWN_KEY: f"Correct the access key, the secret key and the session token in {holder}.",
        Trouble.CLOCK: "Set the clock of the worker: it differs too much from the store's.",
        Trouble.NO_BUCKET: f"Create the bucket, or correct its name in {place}.",
        Trouble.DENIED: f"Grant the credentials in {holder} {rights}",
        Trouble.DENIED_OR_UNKNOWN_KEY: f"Check the access key in {holder}. If it is right, grant it {rights}",
    }
    return f"{first[trouble]} {then}" if trouble else None
