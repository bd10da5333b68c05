"""A small fake of S3's HTTP API: a bucket in a dictionary that rejects requests with an invalid signature."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hourglass.contrib.s3 import sign

ACCESS, SECRET, REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "eu-test-1"


class Bucket:
    """Objects by path.

    The first `outages` requests are answered 503. `redirect` is the status and the location to which all requests are
    sent. With `is_endless` no answer to GET ends.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.outages = 0
        self.endpoint = ""
        self.requests: list[str] = []
        self.redirect: tuple[int, str] | None = None
        self.is_endless = False
        self.cuts = 0  # answers to GET that are truncated


def _handler(bucket: Bucket) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self._is_accepted(body):
                bucket.objects[self.path] = body
                self._answer(200)

        def do_GET(self) -> None:
            if self._is_accepted(b""):
                found = bucket.objects.get(self.path)
                if bucket.is_endless:
                    self._answer_endlessly()
                else:
                    self._answer(404 if found is None else 200, found or b"<Error/>")

        def _is_accepted(self, body: bytes) -> bool:
            bucket.requests.append(f"{self.command} {self.path}")
            if bucket.outages:
                bucket.outages -= 1
                self._answer(503)
            elif not self._is_signed(body):
                self._answer(403)
            elif bucket.redirect is not None:
                self.send_response(bucket.redirect[0])
                self.send_header("location", bucket.redirect[1] + self.path)
                self.send_header("content-length", "0")
                self.end_headers()
            else:
                return True
            return False

        def _is_signed(self, body: bytes) -> bool:
            credentials = re.fullmatch(
                r"AWS4-HMAC-SHA256 Credential=(\S+), SignedHeaders=(\S+), Signature=([0-9a-f]{64})",
                self.headers.get("authorization", ""),
            )
            digest = hashlib.sha256(body).hexdigest()
            if credentials is None or self.headers["x-amz-content-sha256"] != digest:
                return False
            day = self.headers["x-amz-date"][:8]
            headers = {name: self.headers[name] for name in credentials[2].split(";")}
            expected = sign(self.command, self.path, headers, digest, SECRET, REGION)
            return credentials[1] == f"{ACCESS}/{day}/{REGION}/s3/aws4_request" and credentials[3] == expected

        def _answer(self, code: int, body: bytes = b"") -> None:
            self.send_response(code)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if bucket.cuts and self.command == "GET":
                bucket.cuts -= 1
                self.close_connection = True
                body = body[: len(body) // 2]
            self.wfile.write(body)

        def _answer_endlessly(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            with suppress(OSError):  # until the client leaves
                while True:
                    self.wfile.write(bytes(65536))

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextmanager
def serve_bucket() -> Iterator[Bucket]:
    """Serve a bucket on a local port."""
    bucket = Bucket()
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(bucket)) as server:
        bucket.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield bucket
        finally:
            server.shutdown()
            thread.join()
