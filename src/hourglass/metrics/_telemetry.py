"""The destination of the metrics and logs of Temporal's Core: settings of the process, as data.

Core has one runtime for each process, created with the first connection to a server. So `set_telemetry` must be called once,
before the first connection. Without a call, the environment variables `HOURGLASS_CORE_METRICS` and `HOURGLASS_CORE_LOG`
decide. The embedded engine does not use Core; our own metrics cover it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal
from urllib.parse import urlsplit

from hourglass.errors import UsageError

Level = Literal["ERROR", "WARN", "INFO", "DEBUG", "TRACE"]

_LEVELS = ("ERROR", "WARN", "INFO", "DEBUG", "TRACE")
_CORE = (
    "temporalio_common",
    "temporalio_sdk_core",
    "temporalio_client",
    "temporalio_sdk",
    "temporal_sdk_bridge",
)


@dataclass(frozen=True)
class TelemetryFilter:
    """The log levels of Core and of the libraries that Core uses."""

    core_level: Level = "ERROR"
    other_level: Level = "ERROR"

    def __post_init__(self) -> None:
        for name in ("core_level", "other_level"):
            if getattr(self, name) not in _LEVELS:
                raise UsageError(f"{name} must be one of {', '.join(_LEVELS)}, not {getattr(self, name)!r}")

    def formatted(self) -> str:
        """Return the filter in Rust's syntax."""
        return ",".join([self.other_level, *(f"{part}={self.core_level}" for part in _CORE)])


@dataclass(frozen=True)
class LoggingConfig:
    """The logging of Core. Records go to Python's logger `hourglass.core`, with all their fields, including payloads."""

    filter: TelemetryFilter | str = TelemetryFilter()


@dataclass(frozen=True)
class PrometheusConfig:
    """A Prometheus endpoint of Core, on its own address. A worker's `/metrics` contains our metrics and, with `STATUS`,
    Core's metrics too.
    """

    bind_address: str
    counters_total_suffix: bool = False
    unit_suffix: bool = False
    durations_as_seconds: bool = True
    histogram_bucket_overrides: Mapping[str, Sequence[float]] | None = None

    def __post_init__(self) -> None:
        host, colon, port = self.bind_address.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
            raise UsageError(
                f"bind_address must have the form host:port, such as 127.0.0.1:9464, not {self.bind_address!r}"
            )


class OpenTelemetryMetricTemporality(Enum):
    """Whether each export contains totals, or the difference from the previous export."""

    CUMULATIVE = 1
    DELTA = 2


@dataclass(frozen=True)
class OpenTelemetryConfig:
    """The export of Core's metrics to an OpenTelemetry collector.

    Uses gRPC with a URL like `http://localhost:4317`, or, if `http` is set, HTTP with a URL like
    `http://localhost:4318/v1/metrics`.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    metric_periodicity: float | None = None
    metric_temporality: OpenTelemetryMetricTemporality = OpenTelemetryMetricTemporality.CUMULATIVE
    durations_as_seconds: bool = True
    http: bool = False
    histogram_bucket_overrides: Mapping[str, Sequence[float]] | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(
                f"url must be the URL of a collector, such as http://localhost:4317, not {self.url!r}"
            )
        if self.metric_periodicity is not None and not self.metric_periodicity > 0:
            raise UsageError(
                f"metric_periodicity must be a number of seconds above 0, not {self.metric_periodicity}"
            )


STATUS = "status"
"""Adds Core's metrics to a worker's registry, and thereby to the worker's `/metrics`."""


@dataclass(frozen=True)
class TelemetryConfig:
    """The destination of Core's metrics and log.

    `global_tags` are labels added to every metric; `metric_prefix` is the prefix of every metric's name.
    """

    metrics: PrometheusConfig | OpenTelemetryConfig | Literal["status"] | None = None
    logging: LoggingConfig | None = None
    global_tags: Mapping[str, str] = field(default_factory=dict)
    attach_service_name: bool = True
    metric_prefix: str | None = None

    def __post_init__(self) -> None:
        if self.metrics not in (None, STATUS) and not isinstance(
            self.metrics, (PrometheusConfig, OpenTelemetryConfig)
        ):
            raise UsageError(
                f"metrics must be a PrometheusConfig, an OpenTelemetryConfig, {STATUS!r} or None, not "
                f"{self.metrics!r:.80}"
            )


class _Chosen:
    """The telemetry settings of this process, and whether Core has already read them."""

    config: TelemetryConfig | None = None
    is_applied = False


def set_telemetry(config: TelemetryConfig) -> None:
    """Set the destination of Core's metrics and log. Call this once, before the first connection to a Temporal server.

    Raise `UsageError` if Core is already running.
    """
    if not isinstance(config, TelemetryConfig):
        raise UsageError(f"set_telemetry needs a TelemetryConfig, not {type(config).__name__}")
    if _Chosen.is_applied:
        raise UsageError(
            "Core is already running in this process: call set_telemetry before the first connection"
        )
    _Chosen.config = config


def take_telemetry() -> TelemetryConfig | None:
    """Return the settings for Core's runtime, which is about to be created."""
    _Chosen.is_applied = True
    return _Chosen.config
