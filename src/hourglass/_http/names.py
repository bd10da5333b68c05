"""The names of a server in the headers `Host` and `Origin`. Pure.

A malicious web page can reach a loopback port through its own domain name, if that name resolves to loopback
(DNS rebinding). The `Host` header then contains that name. A form or script on another site sends that site's
address as `Origin`. Therefore, both headers must contain a name of the server.

Browsers omit the default port: for `https://flows.example:443` they send `flows.example`. Therefore, default
ports are removed before names are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_ANY_ADDRESS = frozenset({"0.0.0.0", "::"})
_DEFAULT_PORTS = (":80", ":443")


def without_default_port(host: str) -> str:
    """Return a host in lower case, without port 80 or 443."""
    name = host.strip().lower()
    for port in _DEFAULT_PORTS:
        # The colon before the port must be distinguished from the colons of an IPv6 address, which is in
        # brackets.
        if name.endswith(port) and ":" not in name.removesuffix(port).rpartition("]")[2]:
            return name.removesuffix(port)
    return name


def host_only(header: str) -> str:
    """Return the host of a header `Host`, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


class OwnNames:
    """The names of a server on `host` and `port`. `more` contains additional names, e.g. behind a proxy, such
    as `flows.example`, `flows.example:8443` or `https://flows.example`.
    """

    def __init__(self, host: str, port: int, more: Iterable[str] = ()) -> None:
        local = LOOPBACK if host in LOOPBACK or host in _ANY_ADDRESS else frozenset[str]()
        names = {f"{_bracketed(name)}:{port}" for name in {host, *local}}
        secure: set[str] = set()
        for entry in more:
            scheme, separator, remainder = entry.rstrip("/").partition("://")
            name = remainder if separator else entry
            names.add(name)
            if not _has_port(name):
                names.add(f"{name}:{port}")
            if scheme.lower() == "https" or name.endswith(":443"):
                secure.add(without_default_port(name))
        self._names = frozenset(map(without_default_port, names))
        self._secure = frozenset(secure)

    def is_host(self, header: str) -> bool:
        """Return whether the value of a header `Host` is a name of this server."""
        return without_default_port(header) in self._names

    def is_origin(self, header: str) -> bool:
        """Return whether the value of a header `Origin` is an address of this server."""
        scheme, _, host = header.lower().partition("://")
        return scheme in ("http", "https") and without_default_port(host) in self._names

    def is_secure(self, headers: Mapping[str, str]) -> bool:
        """Return whether the browser reached this server over TLS, according to the headers or the names of
        the server.

        A client that sends wrong headers only changes the flag of its own cookie.
        """
        return (
            headers.get("origin", "").lower().startswith("https://")
            or headers.get("x-forwarded-proto", "").strip().lower() == "https"
            or without_default_port(headers.get("host", "")) in self._secure
        )


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name


def _has_port(name: str) -> bool:
    return ":" in name.rpartition("]")[2]
