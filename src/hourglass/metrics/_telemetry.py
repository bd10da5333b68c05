"""The destination of the metrics and logs of Temporal's Core: settings of the process, as data.

Core has one runtime for each process, created with the first connection to a server; so `set_telemetry` must
be called once, before that. Without it the environment decides (`HOURGLASS_CORE_METRICS`,
`HOURGLASS_CORE_LOG`). The embedded engine has no Core: its activity is part of our own metrics.
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
    """The log level of Core, and of the libraries it uses."""

    core_level: Level = "ERROR"
    other_level: Level = "ERROR"

    def __post_init__(self) -> None:
        for name in ("core_level", "other_level"):
            if getattr(self, name) not in _LEVELS:
                raise UsageError(f"{name} is one of {', '.join(_LEVELS)}, not {getattr(self, name)!r}")

    def formatted(self) -> str:
        """Return the filter in Rust's syntax."""
        return ",".join([self.other_level, *(f"{part}={self.core_level}" for part in _CORE)])


@dataclass(frozen=True)
class LoggingConfig:
    """The logging of Core, through Python's logging as `hourglass.core`, with all of its fields, including
    payloads.
    """

    filter: TelemetryFilter | str = TelemetryFilter()


@dataclass(frozen=True)
class PrometheusConfig:
    """A Prometheus endpoint of Core, on its own address. A worker's `/metrics` has our metrics, and with
    `STATUS` Core's too.
    """

    bind_address: str
    counters_total_suffix: bool = False
    unit_suffix: bool = False
    durations_as_seconds: bool = True
    histogram_bucket_overrides: Mapping[str, Sequence[float]] | None = None

    def __post_init__(self) -> None:
        host, colon, port = self.bind_address.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
            raise UsageError(f"bind_address is host:port, such as 127.0.0.1:9464, not {self.bind_address!r}")


class OpenTelemetryMetricTemporality(Enum):
    """Whether each export contains totals, or the difference to the previous export."""

    CUMULATIVE = 1
    DELTA = 2


@dataclass(frozen=True)
class OpenTelemetryConfig:
    """The export of Core's metrics to a collector.

    Over gRPC, such as `http://localhost:4317`, or with `http` over HTTP, such as
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
            raise UsageError(f"url is that of a collector, such as http://localhost:4317, not {self.url!r}")
        if self.metric_periodicity is not None and not self.metric_periodicity > 0:
            raise UsageError(
                f"metric_periodicity is a number of seconds above 0, not {self.metric_periodicity}"
            )


STATUS = "status"
"""Adds Core's metrics to the registry of a worker, and so to its `/metrics`."""


@dataclass(frozen=True)
class TelemetryConfig:
    """The destination of Core's metrics and log.

    `global_tags` are labels of every metric, `metric_prefix` is the prefix of their names.
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
                f"metrics is a PrometheusConfig, an OpenTelemetryConfig, {STATUS!r} or None, not {self.metrics!r:.80}"
            )


class _Chosen:
    """The settings of this process, and whether Core has started with or without them."""

    config: TelemetryConfig | None = None
    taken = False


def set_telemetry(config: TelemetryConfig) -> None:
    """Set the destination of Core's metrics and log: once, before the first connection to a Temporal server.

    Raise `UsageError` after that.
    """
    if not isinstance(config, TelemetryConfig):
        raise UsageError(f"set_telemetry takes a TelemetryConfig, not {type(config).__name__}")
    if _Chosen.taken:
        raise UsageError(
            "Core is already running in this process: call set_telemetry before the first connection"
        )
    _Chosen.config = config


def take_telemetry() -> TelemetryConfig | None:
    """Return the settings for Core's runtime, which is about to be created."""
    _Chosen.taken = True
    return _Chosen.config
