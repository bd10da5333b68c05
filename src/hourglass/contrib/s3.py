"""Storage of large payloads in a bucket of S3 or a compatible service (MinIO, R2, Ceph …), without additional packages.

    storage = ExternalStorage([S3Storage("payloads", endpoint="https://s3.eu-central-1.amazonaws.com")])
    Client.connect("temporal:7233", codec=storage)

It uses two calls of the HTTP interface, PUT and GET of an object, each signed (AWS Signature Version 4). Must not know:
histories. Messages and reprs contain no secrets. Redirects are not followed, because a request contains credentials that are
meant only for the endpoint. The size of responses is limited.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from time import sleep
from typing import Any, Final
from urllib.parse import quote, urlsplit

from hourglass.converter import (
    Payload,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)
from hourglass.converter._storage import from_stored, key_of, stored_form
from hourglass.errors import DecodeError, EncodeError, HourglassError, UsageError

__all__ = ["S3Storage", "StorageUnavailableError"]

_MAX_TRIES: Final = 4
_REDIRECTS: Final = frozenset({300, 301, 302, 303, 307, 308})
_FIRST_PAUSE = 0.2
_MAX_BYTES = 256 * 1024 * 1024
"""The maximum size of an object in bytes."""


class StorageUnavailableError(HourglassError):
    """The storage did not respond, or it rejected the request. The task that needed the payload is retried."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that raises an `HTTPError` for a redirect instead of following it."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        """Return None, so that the redirect is not followed."""


_opener = urllib.request.build_opener(_NoRedirects)


class S3Storage(StorageDriver):
    """Stores payloads as objects in a bucket, named by a hash of their content.

    Keys are passed as arguments, or read from the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
    `AWS_SESSION_TOKEN`) before each request, so that they may change. A failed request is retried a few times. Objects are
    never deleted here: define a lifecycle rule for the bucket. Its period must exceed the retention of histories plus the
    duration of the longest workflow.
    """

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str,
        region: str = "us-east-1",
        prefix: str = "hourglass/",
        access_key: str | None = None,
        secret_key: str | None = None,
        session_token: str | None = None,
        timeout: float = 30.0,
        name: str = "s3",
    ) -> None:
        parts = urlsplit(endpoint)
        if "@" in endpoint:
            raise UsageError(
                "endpoint must not contain credentials, which would appear in messages: pass access_key and secret_key"
            )
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
            raise UsageError(
                f"endpoint must be a URL like https://s3.eu-central-1.amazonaws.com, not {endpoint!r}"
            )
        if not bucket or "/" in bucket:
            raise UsageError(f"bucket must be a name without a slash, not {bucket!r}")
        self._root = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.netloc
        self._bucket = bucket
        self._region = region
        self._prefix = prefix
        self._explicit_keys = (access_key, secret_key, session_token)
        self._timeout = timeout
        self._name = name

    @property
    def name(self) -> str:
        """The name of this storage, used in references to payloads."""
        return self._name

    def __repr__(self) -> str:
        return f"<S3Storage {self._bucket} at {self._host}>"

    def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload], /
    ) -> Sequence[StorageDriverClaim]:
        """Store each payload as an object."""
        claims = []
        for payload in payloads:
            key, data = stored_form(payload)
            if len(data) > _MAX_BYTES:
                raise EncodeError(
                    f"a payload of {len(data)} bytes is too large for a bucket: at most {_MAX_BYTES}"
                )
            self._request("PUT", key, data)
            claims.append(StorageDriverClaim({"key": key}))
        return claims

    def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim], /
    ) -> Sequence[Payload]:
        """Return the payloads from the objects."""
        return [from_stored(key, self._request("GET", key)) for key in map(key_of, claims)]

    def _request(self, method: str, key: str, body: bytes = b"") -> bytes:
        path = quote(f"/{self._bucket}/{self._prefix}{key[:2]}/{key}")
        pause = _FIRST_PAUSE
        for tries_left in reversed(range(_MAX_TRIES)):
            try:
                return self._send(method, path, body)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 404 and method == "GET":
                    raise DecodeError(
                        f"the payload stored as {key[:12]}… is not in the bucket {self._bucket}"
                    ) from None
                problem, is_transient = (
                    f"answered {error.code} to {method}",
                    error.code >= 500 or error.code == 429,
                )
                if error.code in _REDIRECTS:
                    problem += (
                        ", a redirect, which is not followed: is the endpoint that of the bucket's region?"
                    )
            except (OSError, http.client.HTTPException) as error:
                problem, is_transient = f"cannot be reached: {type(error).__name__}", True
            if not is_transient or not tries_left:
                raise StorageUnavailableError(f"the bucket {self._bucket} at {self._host} {problem}")
            sleep(pause)
            pause *= 2
        raise AssertionError("the last attempt returns or raises")

    def _send(self, method: str, path: str, body: bytes) -> bytes:
        headers = self._signed(method, path, body, datetime.now(UTC))
        request = urllib.request.Request(
            self._root + path, data=body if method == "PUT" else None, headers=headers, method=method
        )
        with _opener.open(request, timeout=self._timeout) as answer:
            if method == "PUT":
                return b""
            data: bytes = answer.read(_MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise DecodeError(f"the bucket {self._bucket} answered with more than {_MAX_BYTES} bytes")
            if answer.length:  # a read with a limit does not raise if the connection is closed early
                raise http.client.IncompleteRead(data, answer.length)
            return data

    def _signed(self, method: str, path: str, body: bytes, now: datetime) -> dict[str, str]:
        access, secret, token = self._keys()
        digest = hashlib.sha256(body).hexdigest()
        headers = {
            "host": self._host,
            "x-amz-content-sha256": digest,
            "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
        }
        if token:
            headers["x-amz-security-token"] = token
        signature = sign(method, path, headers, digest, secret, self._region)
        scope = f"{now:%Y%m%d}/{self._region}/s3/aws4_request"
        authorization = (
            f"AWS4-HMAC-SHA256 Credential={access}/{scope}, SignedHeaders={';'.join(sorted(headers))}, "
            f"Signature={signature}"
        )
        return {**headers, "authorization": authorization, "content-type": "application/octet-stream"}

    def _keys(self) -> tuple[str, str, str | None]:
        access, secret, token = self._explicit_keys
        if access is None and secret is None:
            access, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
            token = os.environ.get("AWS_SESSION_TOKEN")
        if not access or not secret:
            raise StorageUnavailableError(
                f"no access keys for the bucket {self._bucket}: pass access_key and secret_key, or set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            )
        return access, secret, token


def sign(method: str, path: str, headers: Mapping[str, str], digest: str, secret: str, region: str) -> str:
    """Return the signature of a request without a query: AWS Signature Version 4 for S3."""
    names = sorted(headers)
    lines = [
        method,
        path,
        "",
        *(f"{name}:{headers[name].strip()}" for name in names),
        "",
        ";".join(names),
        digest,
    ]
    moment = headers["x-amz-date"]
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    request_digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in (moment[:8], region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{request_digest}".encode(), "sha256").hex()
