"""Authentication: tokens, cookies, one-time links, and the limit on guesses.

Loopback is not authentication: every user of a machine can connect to its ports. So a server always has a
token. Programs send it in the header `Authorization`. Browsers get a cookie in exchange for the token, in a
form, or for the code of a one-time link.

The cookie is not the token: it is an expiry time and a nonce, signed with a random key. It is stateless,
because `hourglass dev` replaces the serving process at every reload and the reader must stay logged in. Wrong
tokens are counted by address. Codes and cookies contain 256 random bits and are not counted, so a stranger's
guesses cannot lock the reader out.

Must not know: HTTP servers. Tokens are compared in constant time, and are never in a URL or a log.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import monotonic
from time import time as wall_time
from typing import Final

from hourglass.errors import UsageError

SHORTEST_TOKEN: Final = 16
COOKIE_LIFETIME: Final = 7 * 24 * 3600
MOST_GUESSES: Final = 10
GUESS_PERIOD: Final = 60.0
_MOST_ADDRESSES: Final = 1024


def read_token(value: str | None, source: str) -> str | None:
    """Return the token in `value`, or in the file named after an `@`. Return None for an empty value.

    `source` names the option or variable in error messages. Raise `UsageError` for an unreadable file, and
    for a token that is too short or contains characters that are not allowed in a header.
    """
    if not value:
        return None
    token = value
    if value.startswith("@"):
        try:
            token = Path(value[1:]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"the token file {value[1:]} of {source} cannot be read: {reason}") from None
    if len(token) < SHORTEST_TOKEN:
        raise UsageError(
            f"the token of {source} is too short: it needs {SHORTEST_TOKEN} characters or more; make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError(f"the token of {source} must be printable ASCII without spaces")
    return token


class OneTimeCode:
    """The code of a link that logs in one browser, once.

    Its use is recorded in a pipe that contains one byte and whose writing end is closed, so that processes
    that serve one after another, as under `hourglass dev`, share this state.
    """

    def __init__(self, code: str, unused: int) -> None:
        self.code = code
        self.unused = unused

    @classmethod
    def create(cls) -> OneTimeCode:
        """Create a new code."""
        reading, writing = os.pipe()
        os.write(writing, b"1")
        os.close(writing)
        return cls(secrets.token_urlsafe(32), reading)

    def redeem(self, code: str) -> bool:
        """Return whether `code` is correct and unused, and mark it as used."""
        if not hmac.compare_digest(self.code.encode(), code.encode(errors="replace")):
            return False
        try:
            return os.read(self.unused, 1) != b""
        except OSError:
            return False

    def close(self) -> None:
        """Close the pipe, so that the code cannot be used any more."""
        with contextlib.suppress(OSError):
            os.close(self.unused)
        self.unused = -1


@dataclass(frozen=True)
class Credentials:
    """The secrets of one server: its token, the key that signs cookies, the code of its one-time link."""

    token: str = field(repr=False)
    cookie_key: bytes = field(repr=False)
    link: OneTimeCode = field(repr=False)
    generated: bool = False
    """Whether the token was generated here, so that it must be displayed to the user."""

    @classmethod
    def create(cls, token: str | None = None) -> Credentials:
        """Create the credentials of a server, with a random token by default."""
        chosen = token or secrets.token_urlsafe(32)
        return cls(chosen, secrets.token_bytes(32), OneTimeCode.create(), generated=token is None)

    def to_text(self) -> str:
        """Return the credentials as text, for a child process that inherits the descriptor of the link."""
        return json.dumps([self.token, self.cookie_key.hex(), self.link.code, self.link.unused])

    @classmethod
    def from_text(cls, text: str) -> Credentials:
        """Return the credentials that the parent process created."""
        token, key, code, unused = json.loads(text)
        return cls(token, bytes.fromhex(key), OneTimeCode(code, unused))


class AccessDecision(Enum):
    """The answer to a request for access."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    LIMITED = "limited"
    """Too many wrong tokens from this address."""


class GuessLimit:
    """Counts wrong tokens by address in a sliding period. Not thread-safe: belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def is_reached(self, address: str) -> bool:
        """Return whether no more tokens are checked for this address at present."""
        times = self._wrong.get(_origin_of(address))
        if times is None:
            return False
        while times and times[0] <= self._clock() - GUESS_PERIOD:
            times.popleft()
        return len(times) >= MOST_GUESSES

    def count(self, address: str) -> None:
        """Record a wrong token."""
        origin = _origin_of(address)
        times = self._wrong.setdefault(origin, deque(maxlen=MOST_GUESSES))
        times.append(self._clock())
        self._wrong.move_to_end(origin)
        while len(self._wrong) > _MOST_ADDRESSES:
            self._wrong.popitem(last=False)


def _origin_of(address: str) -> str:
    """Return the key for counting wrong tokens. A peer may have many addresses: all of loopback, or of an
    IPv6 network.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        if mapped is None and not parsed.is_loopback:
            return str(ipaddress.ip_network((parsed, 64), strict=False))
        parsed = mapped or parsed
    return "loopback" if parsed.is_loopback else str(parsed)


class Access:
    """Decides who may use a server. `port` is part of the cookie's name, because browsers share cookies
    between the ports of a host.
    """

    def __init__(self, credentials: Credentials, port: int, clock: Callable[[], float] = wall_time) -> None:
        self._credentials = credentials
        self._clock = clock
        self._guesses = GuessLimit()
        self.cookie_name = f"hourglass_{port}"

    def check_request(self, headers: Mapping[str, str], address: str) -> AccessDecision:
        """Decide about a request by its header `Authorization` or its cookie. Header names are in lower case."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.check_token(token.strip(), address)
        valid = any(self._is_valid(value) for value in self._cookies(headers.get("cookie", "")))
        return AccessDecision.ADMITTED if valid else AccessDecision.REFUSED

    def check_token(self, token: str, address: str) -> AccessDecision:
        """Decide about a token from an address."""
        if self._guesses.is_reached(address):
            return AccessDecision.LIMITED
        if hmac.compare_digest(self._credentials.token.encode(), token.encode(errors="replace")):
            return AccessDecision.ADMITTED
        self._guesses.count(address)
        return AccessDecision.REFUSED

    def redeem(self, code: str) -> bool:
        """Return whether `code` is that of the one-time link and has not been used before."""
        return self._credentials.link.redeem(code)

    def set_cookie(self, *, secure: bool) -> str:
        """Return a `Set-Cookie` header value that keeps a browser logged in."""
        content = f"{int(self._clock()) + COOKIE_LIFETIME}.{secrets.token_urlsafe(16)}"
        value = f"{content}.{self._signature(content)}"
        flags = "; Secure" if secure else ""
        return (
            f"{self.cookie_name}={value}; Path=/; Max-Age={COOKIE_LIFETIME}; HttpOnly; SameSite=Strict{flags}"
        )

    def _cookies(self, header: str) -> list[str]:
        """Return the values of our cookie. Other cookies of this host may have any format, and are skipped."""
        pairs = (part.strip().partition("=") for part in header.split(";"))
        return [value for name, _, value in pairs if name == self.cookie_name]

    def _is_valid(self, cookie: str) -> bool:
        content, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(self._signature(content).encode(), signature.encode(errors="replace")):
            return False
        return int(content.partition(".")[0]) > self._clock()

    def _signature(self, content: str) -> str:
        key = self._credentials.cookie_key
        return hmac.new(key, content.encode(errors="replace"), hashlib.sha256).hexdigest()
