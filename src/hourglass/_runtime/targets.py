"""Targets: which engine a client talks to, from a text, the environment or a profile, and how to open it.

    local:path.db       the embedded engine, durable in one file that the processes of a machine share
    local:              an engine in this process, in memory; each connection has its own and nobody else
                        sees it
    host:port           a Temporal server; an IPv6 address stands in brackets
    profile:NAME        a profile of Temporal's own configuration file

With none given: `HOURGLASS_TARGET`, then `TEMPORAL_ADDRESS`, then `local:hourglass.db`. Temporal's other
variables (namespace, API key, TLS …) belong to `TEMPORAL_ADDRESS`: they are not applied to an address from
elsewhere, or a key would go to a server that it was not meant for. A profile is never taken unasked.
Arguments override both.

Deciding is pure but for the files that are named; only `open_connection` connects. No text made here holds
a secret.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from hourglass._contract.service import Connection, TLSConfig
from hourglass._runtime.profiles import Settings, settings_from_environment, settings_from_profile
from hourglass.errors import TargetError

logger = logging.getLogger("hourglass")

DEFAULT_NAMESPACE = "default"
DEFAULT_FILE = "hourglass.db"
_CHOICES = '"local:path.db" (a file), "local:" (in memory), "host:port" (a Temporal server) or "profile:NAME"'
_IN_MEMORY = frozenset({":memory:", "memory", "memory:"})
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where to connect, and as whom. Its text and repr hold no secret.

    `address` is as it was given; `path` is a file's whole path, so that it stays the same file wherever the
    process goes.
    """

    kind: Literal["memory", "file", "temporal"]
    address: str = ""
    path: str = ""
    namespace: str = DEFAULT_NAMESPACE
    tls: TLSConfig | bool | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)
    origin: str = "the argument"
    retention: float | None = None

    def __str__(self) -> str:
        return self.address if self.kind == "temporal" else f"local:{self.address}"

    @property
    def encrypted(self) -> bool:
        """Whether the connection will use TLS: as told, and with an API key unless TLS is switched off."""
        return self.api_key is not None if self.tls is None else self.tls is not False


def resolve(
    target: str | None = None,
    *,
    namespace: str | None = None,
    tls: TLSConfig | bool | None = None,
    api_key: str | None = None,
    metadata: Mapping[str, str] | None = None,
    retention: float | None = None,
    environ: Mapping[str, str] | None = None,
) -> Target:
    """The target that the arguments and the environment mean. Raises `TargetError`."""
    chosen = _choose(target, os.environ if environ is None else environ)
    merged = replace(
        chosen,
        namespace=chosen.namespace if namespace is None else namespace,
        tls=chosen.tls if tls is None else tls,
        api_key=chosen.api_key if api_key is None else api_key,
        metadata={**chosen.metadata, **(metadata or {})},
        retention=retention,
    )
    _check(merged)
    # An API key is a secret: it implies TLS, unless that is switched off in so many words.
    return replace(merged, tls=True) if merged.tls is None and merged.api_key else merged


async def open_connection(target: Target, identity: str, timeout: float) -> Connection:
    """Connect, on the control loop. Engines are loaded only when they are targeted."""
    logger.info(
        "connecting to %s (namespace %s, %s, from %s)",
        target,
        target.namespace,
        _transport(target),
        target.origin,
    )
    if _sends_a_secret_in_clear(target):
        logger.warning(
            "the key for %s is sent without TLS: everyone on the way can read it. Leave tls=False out, or use a server on "
            "this machine",
            target,
        )
    if target.kind == "memory":
        from hourglass._embedded.clients.connection import connect_memory

        return await connect_memory(namespace=target.namespace, identity=identity)
    if target.kind == "file":
        from hourglass._embedded.sharing.file_connection import connect_file

        return await connect_file(
            target.path,
            namespace=target.namespace,
            identity=identity,
            target=str(target),
            retention=target.retention,
        )
    from hourglass._temporal.connection import connect

    return await connect(
        target.address,
        namespace=target.namespace,
        tls=target.tls,
        api_key=target.api_key,
        rpc_metadata=target.metadata,
        identity=identity,
        timeout=timeout,
    )


def _transport(target: Target) -> str:
    match target.kind:
        case "memory":
            return "in memory"
        case "file":
            return target.path
        case "temporal":
            return "TLS" if target.encrypted else "no TLS"


# --- choosing ---------------------------------------------------------------------------------------------


def _choose(target: str | None, environ: Mapping[str, str]) -> Target:
    if target is not None:
        return _parse(target, "the argument", environ)
    if named := environ.get("HOURGLASS_TARGET"):
        return _parse(named, "HOURGLASS_TARGET", environ)
    if address := environ.get("TEMPORAL_ADDRESS"):
        return _temporal(address, "TEMPORAL_ADDRESS", settings_from_environment(environ))
    return _local(DEFAULT_FILE, "the default")


def _parse(text: str, origin: str, environ: Mapping[str, str]) -> Target:
    if not isinstance(text, str):
        raise TargetError(f"a target is a text, {_CHOICES}, not {type(text).__name__}")
    kind, colon, rest = text.partition(":")
    match kind if colon else "":
        case "local":
            return _local(rest, origin)
        case "profile":
            if not rest:
                raise TargetError(f"{origin}: name the profile, as in profile:prod")
            settings = settings_from_profile(rest, environ)
            address = settings.address or "localhost:7233"  # Temporal's own default
            return _temporal(address, f"profile {rest!r}", settings)
        case _:
            return _temporal(text, origin, Settings())


def _local(path: str, origin: str) -> Target:
    if not path:
        return Target(kind="memory", origin=origin)
    if path in _IN_MEMORY:
        raise TargetError(f"{origin}: an engine in memory is written local: with nothing behind it")
    if path.startswith("//"):
        raise TargetError(
            f"{origin}: write the file as local:path.db, without a scheme, not {'local:' + path!r}"
        )
    if "\0" in path or path.endswith(("/", os.sep)) or os.path.basename(path) in (".", ".."):
        raise TargetError(f"{origin}: {path!r} is no file's name; write it as local:path.db")
    return Target(kind="file", address=path, path=os.path.abspath(os.path.expanduser(path)), origin=origin)


def _temporal(address: str, origin: str, settings: Settings) -> Target:
    return Target(
        kind="temporal",
        address=_checked_address(address, origin),
        namespace=settings.namespace or DEFAULT_NAMESPACE,
        tls=settings.tls,
        api_key=settings.api_key,
        metadata=settings.metadata,
        origin=origin,
    )


# --- checking ---------------------------------------------------------------------------------------------


def _checked_address(address: str, origin: str) -> str:
    if "://" in address:
        raise TargetError(f"{origin}: write the address as host:port, without a scheme, not {address!r}")
    host, colon, port = address.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        host, colon, port = address, "", ""
    if not colon:
        hint = f"{address}:7233" if address else "host:7233"
        if os.sep in address or address.endswith((".db", ".sqlite", ".sqlite3")):
            hint = f"local:{address}"
        raise TargetError(f"{origin}: {address!r} has no port (did you mean {hint}?); a target is {_CHOICES}")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise TargetError(f"{origin}: the port of {address!r} must be a number from 1 to 65535")
    if not _is_host(host):
        brackets = " (an IPv6 address stands in brackets: [::1]:7233)" if ":" in host else ""
        raise TargetError(f"{origin}: {host!r} is no host name or address{brackets}; a target is {_CHOICES}")
    return f"{host}:{int(port)}"


def _is_host(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            return False
        return True
    return _HOST.fullmatch(host) is not None


def _can_be_sent(key: str) -> bool:
    return key.isascii() and key.isprintable() and " " not in key


def _sends_a_secret_in_clear(target: Target) -> bool:
    """Whether a key would go over a network that others may listen to."""
    if target.kind != "temporal" or target.encrypted:
        return False
    secret = target.api_key is not None or any(name.lower() == "authorization" for name in target.metadata)
    return secret and not is_loopback(target.address.rpartition(":")[0].strip("[]"))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, and nothing that is sent to it leaves it."""
    if host.lower().rstrip(".") == "localhost" or host.lower().rstrip(".").endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check(target: Target) -> None:
    if not isinstance(target.namespace, str) or not target.namespace.strip():
        raise TargetError("the namespace must have a name")
    if not isinstance(target.tls, (bool, TLSConfig, type(None))):
        raise TargetError(f"tls must be True, False or a TLSConfig, not {type(target.tls).__name__}")
    if target.api_key is not None and (not isinstance(target.api_key, str) or not target.api_key.strip()):
        raise TargetError("the API key is empty")
    if target.api_key is not None and not _can_be_sent(target.api_key):
        raise TargetError(
            "the API key holds a character that no key has: a line break, a space, a control character or one beyond ASCII. "
            "Was it read from a file with its last line break?"
        )
    for name, value in target.metadata.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TargetError("rpc_metadata must map texts to texts")
        if not all(each.isprintable() and each.isascii() for each in (name, value)):
            raise TargetError(
                f"rpc_metadata: {name!r} or its value holds a control character, or one beyond ASCII"
            )
