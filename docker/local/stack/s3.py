"""An S3-compatible server (moto), of whose conditional puts of a key one wins."""

from __future__ import annotations

import contextlib
import sys
import urllib.request
from pathlib import Path

from stack.ports import free_port
from stack.processes import Server
from stack.spark import S3Access

PROGRAM = Path(__file__).with_name("s3_program.py")


class S3Server(Server):
    """S3 with one bucket. Everything is in memory and gone at the end."""

    def __init__(self, folder: Path, *, bucket: str = "lake") -> None:
        super().__init__(folder)
        self.port, self.bucket = free_port(), bucket

    @property
    def access(self) -> S3Access:
        return S3Access(f"http://127.0.0.1:{self.port}", self.bucket, key="test-key", secret="test-secret")

    def start(self) -> None:
        self.spawn("s3", [sys.executable, "-I", str(PROGRAM), str(self.port)])

    def wait_ready(self) -> None:
        self.processes[-1].wait_ready(self._makes_the_bucket)

    def _makes_the_bucket(self) -> bool:
        # moto wants the region of a signature, checks nothing else
        scope = "AWS4-HMAC-SHA256 Credential=test-key/20300101/us-east-1/s3/aws4_request"
        url = f"{self.access.endpoint}/{self.bucket}"
        request = urllib.request.Request(url, method="PUT", headers={"Authorization": scope})
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=2):
            return True
        return False
