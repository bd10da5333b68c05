"""How a connection to a Temporal server is made: TLS, keep-alive, retries, proxy, name resolution, compression.

Plain data with Temporal's names and numbers (milliseconds, where a name says so), checked where it is made. The engines in
this process have no use for it. Must not know: Core, which reads it (`_temporal.configs`), and targets, which carry it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from hourglass.errors import TargetError

_LONGEST = 2**31 - 1


def _check(setting: Any, **fields: object) -> None:
    """Raise unless each is a whole number of milliseconds, from 1 on."""
    for name, value in fields.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _LONGEST:
            raise TargetError(
                f"{type(setting).__name__}: {name} must be a whole number from 1 on, not {value!r:.40}"
            )


@dataclass(frozen=True)
class TLSConfig:
    """TLS, and mutual TLS with a client certificate and its private key. All certificates are PEM bytes.

    `domain` is the name that the server's certificate must carry, where it differs from the address. `repr` shows no
    certificate and no key. `verification_server_name` is the same without a change of what the server, or a proxy before it,
    is told; it needs `server_root_ca_cert`.
    """

    server_root_ca_cert: bytes | None = field(default=None, repr=False)
    domain: str | None = None
    client_cert: bytes | None = field(default=None, repr=False)
    client_private_key: bytes | None = field(default=None, repr=False)
    verification_server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.client_cert is None) != (self.client_private_key is None):
            raise TargetError("mutual TLS needs both client_cert and client_private_key, or neither")
        if self.verification_server_name is not None and self.server_root_ca_cert is None:
            raise TargetError("TLSConfig: verification_server_name needs server_root_ca_cert")


@dataclass(frozen=True)
class RetryConfig:
    """How calls are repeated that a server does not answer. What it refuses is not sent again."""

    initial_interval_millis: int = 100
    randomization_factor: float = 0.2
    multiplier: float = 1.5
    max_interval_millis: int = 5000
    max_elapsed_time_millis: int | None = 10000
    """None: as long as the call's own time limit."""
    max_retries: int = 10
    """0: none."""

    def __post_init__(self) -> None:
        _check(
            self,
            initial_interval_millis=self.initial_interval_millis,
            max_interval_millis=self.max_interval_millis,
        )
        if self.max_elapsed_time_millis is not None:
            _check(self, max_elapsed_time_millis=self.max_elapsed_time_millis)
        if (
            not isinstance(self.max_retries, int)
            or isinstance(self.max_retries, bool)
            or not 0 <= self.max_retries <= _LONGEST
        ):
            raise TargetError("RetryConfig: max_retries must be a whole number from 0 on")
        if not (isinstance(self.randomization_factor, (int, float)) and 0 <= self.randomization_factor <= 1):
            raise TargetError("RetryConfig: randomization_factor must be between 0 and 1")
        if not (isinstance(self.multiplier, (int, float)) and 1 <= self.multiplier < math.inf):
            raise TargetError("RetryConfig: multiplier must be at least 1")


@dataclass(frozen=True)
class KeepAliveConfig:
    """How a dead link is noticed: a ping so often, and for so long at most without an answer."""

    interval_millis: int = 10_000
    timeout_millis: int = 5_000
    default: ClassVar[KeepAliveConfig]

    def __post_init__(self) -> None:
        _check(self, interval_millis=self.interval_millis, timeout_millis=self.timeout_millis)


KeepAliveConfig.default = KeepAliveConfig()  # 15 s in all, where Core would take 45


@dataclass(frozen=True)
class HttpConnectProxyConfig:
    """An HTTP proxy to go through, as `host:port`, with a user and a password if it wants them. `repr` does not show those."""

    target_host: str
    basic_auth: tuple[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        host, colon, port = str(self.target_host).rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise TargetError(f"HttpConnectProxyConfig: a proxy is host:port, not {self.target_host!r:.100}")
        given = self.basic_auth
        if given is not None and not (
            isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, str) for each in given)
        ):
            raise TargetError("HttpConnectProxyConfig: basic_auth must be a user and a password")


@dataclass(frozen=True)
class DnsLoadBalancingConfig:
    """Share calls among all addresses that the server's name has, which are looked up anew so often. Not with a proxy."""

    resolution_interval_millis: int = 30_000
    default: ClassVar[DnsLoadBalancingConfig]

    def __post_init__(self) -> None:
        _check(self, resolution_interval_millis=self.resolution_interval_millis)


DnsLoadBalancingConfig.default = DnsLoadBalancingConfig()


class GrpcCompression(Enum):
    """Whether what is sent is compressed on its way, and answers may be. It costs processor time on both sides."""

    NONE = "none"
    GZIP = "gzip"


@dataclass(frozen=True)
class PayloadLimitsConfig:
    """From how many bytes on a warning is logged for values that are sent: a server refuses four times as much. 0: none is."""

    payloads_warn_size: int = 512 * 1024
    """Of what goes together: the arguments of a call, a result, a heartbeat."""
    memo_warn_size: int = 2 * 1024
    """Of a memo."""

    def __post_init__(self) -> None:
        for name in ("payloads_warn_size", "memo_warn_size"):
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise TargetError(f"PayloadLimitsConfig: {name} is a number of bytes, not {size!r:.40}")


@dataclass(frozen=True, kw_only=True)
class Transport:
    """All of it but TLS. No retries said: Core's own. No keep-alive: a dead link is noticed when a call fails."""

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
                raise TargetError(f"this must be a {kind.__name__} or None, not {type(value).__name__}")
        if not isinstance(self.compression, GrpcCompression):
            raise TargetError(
                f"grpc_compression must be a GrpcCompression, not {type(self.compression).__name__}"
            )
        if self.proxy is not None and self.dns_load_balancing is not None:
            raise TargetError(
                "a connection goes through an HTTP proxy or shares its calls among addresses, not both"
            )


USUAL = Transport()
"""What holds where nothing is said."""
