"""Targets: the engine to which a client connects, as specified by a str, the environment or a profile, and the
connection to it.

    local:path.db       the embedded engine, durable in one file that the processes of a machine share
    local:              an engine in this process, in memory; each connection has its own
    host:port           a Temporal server; an IPv6 address is written in brackets
    profile:NAME        a profile of Temporal's own configuration file

The default is `HOURGLASS_TARGET`, then `TEMPORAL_ADDRESS`, then `local:hourglass.db`. Temporal's other
variables (namespace, API key, TLS …) belong to `TEMPORAL_ADDRESS`. They are not applied to an address from
another source, because the key would be sent to a server for which it was not intended. A profile is only used
if the target names it. Arguments override variables and profiles.

Temporal's variables and profiles are read by temporalio's own reader (`hourglass.envconfig`), which is only
loaded if they are used. Resolving a target is pure, except that it may read configuration files. Only
`open_connection` connects. No message of this module contains a secret.
"""

from __future__ import annotations

import difflib
import ipaddress
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hourglass._contract.service import Connection
from hourglass._contract.transport import USUAL, PayloadLimitsConfig, TLSConfig, Transport
from hourglass.envconfig import ClientConfigProfile
from hourglass.errors import TargetError

logger = logging.getLogger("hourglass")

DEFAULT_NAMESPACE = "default"
DEFAULT_FILE = "hourglass.db"
_CHOICES = '"local:path.db" (a file), "local:" (in memory), "host:port" (a Temporal server) or "profile:NAME"'
_DATABASES = frozenset(
    {"cockroachdb", "mariadb", "mongodb", "mssql", "mysql", "oracle", "postgres", "postgresql", "redis"}
)
_IN_MEMORY = frozenset({":memory:", "memory", "memory:"})
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")


ARGUMENT = "the argument"
"""The origin of a target that was passed as an argument."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """An engine's address and credentials. The str and repr contain no secrets.

    `address` is the address as the user wrote it. `path` is the absolute path of a file, so that it does not
    depend on the working directory.
    """

    kind: Literal["memory", "file", "temporal"]
    address: str = ""
    path: str = ""
    namespace: str = DEFAULT_NAMESPACE
    tls: TLSConfig | bool | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)
    origin: str = ARGUMENT
    retention: float | None = None
    transport: Transport = USUAL

    def __str__(self) -> str:
        return self.address if self.kind == "temporal" else f"local:{self.address}"

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS. The option `tls` decides, or else TLS is used if there is an API key."""
        return self.api_key is not None if self.tls is None else self.tls is not False


def resolve(
    target: str | None = None,
    *,
    namespace: str | None = None,
    tls: TLSConfig | bool | None = None,
    api_key: str | None = None,
    metadata: Mapping[str, str] | None = None,
    retention: float | None = None,
    transport: Transport | None = None,
    environ: Mapping[str, str] | None = None,
) -> Target:
    """Return the target that these arguments and the environment specify. Raise `TargetError` if it is invalid."""
    chosen = _choose(target, os.environ if environ is None else environ)
    merged = replace(
        chosen,
        namespace=chosen.namespace if namespace is None else namespace,
        tls=chosen.tls if tls is None else tls,
        api_key=chosen.api_key if api_key is None else api_key,
        metadata={**chosen.metadata, **(metadata or {})},
        retention=retention,
        transport=chosen.transport if transport is None else transport,
    )
    check_target(merged)
    # An API key is a secret, so it implies TLS, unless tls=False.
    return replace(merged, tls=True) if merged.tls is None and merged.api_key else merged


async def open_connection(target: Target, identity: str, timeout: float) -> Connection:
    """Connect to a target. Must be called on the control loop. Only the package of the target's engine is
    imported.
    """
    logger.info(
        "connecting to %s (namespace %s, %s, from %s)",
        target,
        target.namespace,
        _transport(target),
        target.origin,
    )
    if _sends_a_secret_in_clear(target):
        logger.warning(
            "the API key for %s is sent without TLS and can be read on the network: remove tls=False, or use a server on "
            "this machine",
            target,
        )
    if target.kind == "memory":
        from hourglass._embedded.api.connection import connect_memory

        return await connect_memory(
            namespace=target.namespace, identity=identity, limits=_limits(target.transport.payload_limits)
        )
    if target.kind == "file":
        from hourglass._embedded.multiprocess.connection import connect_file

        return await connect_file(
            target.path,
            namespace=target.namespace,
            identity=identity,
            target=str(target),
            retention=target.retention,
            limits=_limits(target.transport.payload_limits),
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
        transport=target.transport,
    )


def _limits(config: PayloadLimitsConfig) -> Any:
    """Return the embedded engine's limits with the sizes above which it logs warnings."""
    from hourglass._embedded.transitions.size_limits import Limits

    return Limits(payloads_warn=config.payloads_warn_size, memo_warn=config.memo_warn_size)


def _transport(target: Target) -> str:
    match target.kind:
        case "memory":
            return "in memory"
        case "file":
            return target.path
        case "temporal":
            return "TLS" if target.encrypted else "no TLS"


def _choose(target: str | None, environ: Mapping[str, str]) -> Target:
    if target is not None:
        return _parse(target, ARGUMENT, environ)
    if variable := environ.get("HOURGLASS_TARGET"):
        return _parse(variable, "HOURGLASS_TARGET", environ)
    if address := environ.get("TEMPORAL_ADDRESS"):
        profile = ClientConfigProfile.load(disable_file=True, override_env_vars=environ)
        return _temporal(address, "TEMPORAL_ADDRESS", profile)
    return _local(DEFAULT_FILE, "the default")


def _named(origin: str) -> str:
    """Return the origin of a target as the subject of an error message."""
    return "the target" if origin == ARGUMENT else origin


def _parse(target: str, origin: str, environ: Mapping[str, str]) -> Target:
    if not isinstance(target, str):
        raise TargetError(f"a target must be a str, {_CHOICES}, not {type(target).__name__}")
    kind, colon, name = target.partition(":")
    match kind if colon else "":
        case "local":
            return _local(name, origin)
        case "profile":
            if not name:
                raise TargetError(
                    f"{_named(origin)}: the name of the profile is missing; write for example profile:prod"
                )
            profile = ClientConfigProfile.load(name, disable_env=True, override_env_vars=environ)
            address = profile.address or "localhost:7233"  # Temporal's own default
            return _temporal(address, f"profile {name!r}", profile)
        case _:
            return _temporal(target, origin, ClientConfigProfile())


def _local(path: str, origin: str) -> Target:
    if not path:
        return Target(kind="memory", origin=origin)
    if path in _IN_MEMORY:
        raise TargetError(
            f"{_named(origin)}: write the target of an engine in memory as `local:`, without a path"
        )
    if path.startswith("//"):
        raise TargetError(
            f"{_named(origin)}: write the file as local:path.db, without a scheme, not {'local:' + path!r}"
        )
    if "\0" in path or path.endswith(("/", os.sep)) or os.path.basename(path) in (".", ".."):
        raise TargetError(f"{_named(origin)}: {path!r} is not a file name; write the target as local:path.db")
    return Target(kind="file", address=path, path=os.path.abspath(os.path.expanduser(path)), origin=origin)


def _temporal(address: str, origin: str, profile: ClientConfigProfile) -> Target:
    try:
        tls = None if profile.tls is None else profile.tls.to_connect_tls_config()
    except TargetError as error:
        raise TargetError(f"{origin}: {error}") from None
    return Target(
        kind="temporal",
        address=_checked_address(address, origin),
        namespace=profile.namespace or DEFAULT_NAMESPACE,
        tls=tls,
        api_key=profile.api_key,
        metadata=profile.grpc_meta,
        origin=origin,
    )


def _checked_address(address: str, origin: str) -> str:
    scheme, separator, rest = address.partition("://")
    if separator:
        if "sqlite" in scheme or scheme == "file":
            hint = f" (for a file: local:{rest.lstrip('/') or 'path.db'})"
        elif scheme.partition("+")[0] in _DATABASES:
            hint = f"; Hourglass stores workflows in its own file, or on a Temporal server: a target is {_CHOICES}"
        else:
            host = rest.partition("/")[0]
            hint = f" (did you mean {host if ':' in host else host + ':7233'}?)" if host else ""
        raise TargetError(
            f"{_named(origin)}: write the address as host:port, without a scheme, not {address!r}{hint}"
        )
    if not address:
        raise TargetError(f"{_named(origin)} is empty; a target is {_CHOICES}")
    host, colon, port = address.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        host, colon, port = address, "", ""
    if not colon:
        hint = f"{address}:7233"
        if os.sep in address or address.endswith((".db", ".sqlite", ".sqlite3")):
            hint = f"local:{address}"
        elif address == "local":
            hint = "local:"
        raise TargetError(
            f"{_named(origin)}: {address!r} has no port (did you mean {hint}?); a target is {_CHOICES}"
        )
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        is_file = os.sep in port or port.endswith((".db", ".sqlite", ".sqlite3"))
        hint = f" (did you mean local:{port}?)" if is_file else ""
        if not port:  # e.g. `:memory:`, SQLite's name for a database in memory
            is_local = host in ("", ":memory") or difflib.get_close_matches(host, ["local"], cutoff=0.8)
            hint = f" (did you mean {'local:' if is_local else f'{host}:7233'}?)"
        raise TargetError(f"{_named(origin)}: the port of {address!r} must be a number from 1 to 65535{hint}")
    if not _is_host(host):
        brackets = " (write an IPv6 address in brackets: [::1]:7233)" if ":" in host else ""
        raise TargetError(
            f"{_named(origin)}: {host!r} is not a host name or address{brackets}; a target is {_CHOICES}"
        )
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
    """Whether credentials would be sent over a network in clear text."""
    if target.kind != "temporal" or target.encrypted:
        return False
    secret = target.api_key is not None or any(name.lower() == "authorization" for name in target.metadata)
    return secret and not is_loopback(target.address.rpartition(":")[0].strip("[]"))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, so that data sent to it does not leave the machine."""
    if host.lower().rstrip(".") == "localhost" or host.lower().rstrip(".").endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_target(target: Target) -> Target:
    """Return the target if it is valid. Raise `TargetError` otherwise."""
    if not isinstance(target.namespace, str) or not target.namespace.strip():
        raise TargetError("the namespace must be a non-empty str")
    if not isinstance(target.tls, (bool, TLSConfig, type(None))):
        raise TargetError(f"tls must be True, False or a TLSConfig, not {type(target.tls).__name__}")
    if target.api_key is not None and (not isinstance(target.api_key, str) or not target.api_key.strip()):
        raise TargetError("the API key is empty")
    if target.api_key is not None and not _can_be_sent(target.api_key):
        raise TargetError(
            "the API key contains an invalid character: a line break, a space, a control character or a non-ASCII one. "
            "Was it read from a file with a trailing line break?"
        )
    check_metadata(target.metadata)
    return target


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise `TargetError` for headers that cannot be sent."""
    for name, value in metadata.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TargetError("rpc_metadata must map str to str")
        if not all(text.isprintable() and text.isascii() for text in (name, value)):
            raise TargetError(
                f"rpc_metadata: {name!r} or its value contains a control character or a non-ASCII one"
            )
