"""The supported names of `temporalio.service`: options for a connection to a server, and its errors."""

from __future__ import annotations

from hourglass._contract.transport import (
    DnsLoadBalancingConfig,
    GrpcCompression,
    HttpConnectProxyConfig,
    KeepAliveConfig,
    PayloadLimitsConfig,
    RetryConfig,
    TLSConfig,
)
from hourglass.errors import ServiceError as RPCError
from hourglass.errors import ServiceStatus as RPCStatusCode

__all__ = [
    "DnsLoadBalancingConfig",
    "GrpcCompression",
    "HttpConnectProxyConfig",
    "KeepAliveConfig",
    "PayloadLimitsConfig",
    "RPCError",
    "RPCStatusCode",
    "RetryConfig",
    "TLSConfig",
]
