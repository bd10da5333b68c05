"""Options of a connection to a Temporal server: TLS, keep-alive, retries, proxy, name resolution, compression.

Plain data with Temporal's names and numbers (in milliseconds if the name says so), validated in the constructors.
Embedded engines ignore these options. Must not know: Core (`_temporal.configs` reads these options) and targets (which
contain them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from hourglass.errors import TargetError

_LONGEST = 2**31 - 1


def _check(setting: Any, *names: str) -> None:
    """Raise `TargetError` unless each of these fields is a positive integer in the allowed range."""
    for name in names:
        value = getattr(setting, name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _LONGEST:
            raise TargetError(
                f"{type(setting).__name__}: {name} must be an int of at least 1, not {value!r:.40}"
            )


@dataclass(frozen=True)
class TLSConfig:
    """TLS, and mutual TLS with a client certificate and its private key. All certificates are PEM bytes.

    `domain` is the name that the server's certificate must have, if it differs from the address. It is also sent to the
    server. `verification_server_name` only changes the name that is verified, and requires `server_root_ca_cert`. `repr`
    shows neither certificates nor keys.
    """

    server_root_ca_cert: bytes | None = field(default=None, repr=False)
    domain: str | None = None
    client_cert: bytes | None = field(default=None, repr=False)
    client_private_key: bytes | None = field(default=None, repr=False)
    verification_server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.client_cert is None) != (self.client_private_key is None):
            raise TargetError(
                "mutual TLS needs both client_cert and client_private_key: pass both, or neither"
            )
        if self.verification_server_name is not None and self.server_root_ca_cert is None:
            raise TargetError("TLSConfig: verification_server_name requires server_root_ca_cert")


@dataclass(frozen=True)
class RetryConfig:
    """The retry policy for calls that a server does not answer. Rejected calls are not retried."""

    initial_interval_millis: int = 100
    randomization_factor: float = 0.2
    multiplier: float = 1.5
    max_interval_millis: int = 5000
    max_elapsed_time_millis: int | None = 10000
    """The maximum total time of all retries. None means the timeout of the call."""
    max_retries: int = 10
    """The maximum number of retries. 0 disables retries."""

    def __post_init__(self) -> None:
        _check(self, "initial_interval_millis", "max_interval_millis")
        if self.max_elapsed_time_millis is not None:
            _check(self, "max_elapsed_time_millis")
        if (
            not isinstance(self.max_retries, int)
            or isinstance(self.max_retries, bool)
            or not 0 <= self.max_retries <= _LONGEST
        ):
            raise TargetError("RetryConfig: max_retries must be an int of at least 0")
        if not (isinstance(self.randomization_factor, (int, float)) and 0 <= self.randomization_factor <= 1):
            raise TargetError("RetryConfig: randomization_factor must be between 0 and 1")
        if not (isinstance(self.multiplier, (int, float)) and 1 <= self.multiplier < math.inf):
            raise TargetError("RetryConfig: multiplier must be at least 1")


@dataclass(frozen=True)
class KeepAliveConfig:
    """Detection of dead connections: the interval between pings, and the time to wait for a response."""

    interval_millis: int = 10_000
    timeout_millis: int = 5_000
    default: ClassVar[KeepAliveConfig]

    def __post_init__(self) -> None:
        _check(self, "interval_millis", "timeout_millis")


KeepAliveConfig.default = KeepAliveConfig()  # 15 s in total; Core's defaults take 45 s


@dataclass(frozen=True)
class HttpConnectProxyConfig:
    """An HTTP proxy, as `host:port`, with an optional user and password. `repr` does not show the user and the password."""

    target_host: str
    basic_auth: tuple[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        host, colon, port = str(self.target_host).rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise TargetError(
                f"HttpConnectProxyConfig: target_host must have the form host:port, not {self.target_host!r:.100}"
            )
        credentials = self.basic_auth
        if credentials is not None and not (
            isinstance(credentials, tuple)
            and len(credentials) == 2
            and all(isinstance(part, str) for part in credentials)
        ):
            raise TargetError("HttpConnectProxyConfig: basic_auth must be a tuple of user and password")


@dataclass(frozen=True)
class DnsLoadBalancingConfig:
    """Distributes calls over all addresses of the server's name, which is resolved again at this interval. Cannot be
    combined with a proxy.
    """

    resolution_interval_millis: int = 30_000
    default: ClassVar[DnsLoadBalancingConfig]

    def __post_init__(self) -> None:
        _check(self, "resolution_interval_millis")


DnsLoadBalancingConfig.default = DnsLoadBalancingConfig()


class GrpcCompression(Enum):
    """Compression of requests and answers. It costs CPU time on both sides."""

    NONE = "none"
    GZIP = "gzip"


@dataclass(frozen=True)
class PayloadLimitsConfig:
    """The sizes in bytes above which a warning about sent values is logged. A server rejects values that are four times
    as large. 0 disables a warning.
    """

    payloads_warn_size: int = 512 * 1024
    """The limit for values that are sent together: the arguments of a call, a result, a heartbeat."""
    memo_warn_size: int = 2 * 1024
    """The limit for a memo."""

    def __post_init__(self) -> None:
        for name in ("payloads_warn_size", "memo_warn_size"):
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise TargetError(f"PayloadLimitsConfig: {name} must be a number of bytes, not {size!r:.40}")


@dataclass(frozen=True, kw_only=True)
class Transport:
    """All transport options except TLS. Without `retry`, Core's defaults apply. Without `keep_alive`, a dead connection
    is detected only when a call fails.
    """

    retry: RetryConfig | None = None
    keep_alive: KeepAliveConfig | None = KeepAliveConfig.default
    proxy: HttpConnectProxyConfig | None = None
    dns_load_balancing: DnsLoadBalancingConfig | None = None
    compression: GrpcCompression = GrpcCompression.NONE
    payload_limits: PayloadLimitsConfig = PayloadLimitsConfig()

    def __post_init__(self) -> None:
        if not isinstance(self.payload_limits, PayloadLimitsConfig):
            raise TargetError(
                f"payload_limits must be a PayloadLimitsConfig, not {type(self.payload_limits).__name__}"
            )
        for name, kind in (
            ("retry", RetryConfig),
            ("keep_alive", KeepAliveConfig),
            ("proxy", HttpConnectProxyConfig),
            ("dns_load_balancing", DnsLoadBalancingConfig),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise TargetError(f"expected {kind.__name__} or None, not {type(value).__name__}")
        if not isinstance(self.compression, GrpcCompression):
            raise TargetError(
                f"grpc_compression must be a GrpcCompression, not {type(self.compression).__name__}"
            )
        if self.proxy is not None and self.dns_load_balancing is not None:
            raise TargetError(
                "an HTTP proxy and DNS load balancing cannot be used together: remove one of them"
            )


USUAL = Transport()
"""The default options."""
