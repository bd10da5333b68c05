"""What Temporal's Core counts and logs of itself, and where that goes: settings of the process, as data.

Core has one runtime for each process, made with the first connection to a server; so this is said once, before that, by
`set_telemetry`. Where nothing is said the environment decides (`HOURGLASS_CORE_METRICS`, `HOURGLASS_CORE_LOG`). The embedded
engine has no Core: what it does is in our own metrics anyway.
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
    """How much Core says, and the libraries under it."""

    core_level: Level = "ERROR"
    other_level: Level = "ERROR"

    def __post_init__(self) -> None:
        for name in ("core_level", "other_level"):
            if getattr(self, name) not in _LEVELS:
                raise UsageError(f"{name} is one of {', '.join(_LEVELS)}, not {getattr(self, name)!r}")

    def formatted(self) -> str:
        """The same in Rust's syntax."""
        return ",".join([self.other_level, *(f"{part}={self.core_level}" for part in _CORE)])


@dataclass(frozen=True)
class LoggingConfig:
    """What Core logs; it comes through Python's logging, as `hourglass.core`, with all its fields, payloads among them."""

    filter: TelemetryFilter | str = TelemetryFilter()


@dataclass(frozen=True)
class PrometheusConfig:
    """Core answers Prometheus itself, on an address of its own. A worker's `/metrics` has ours, and with `STATUS` Core's too."""

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
    """Whether each export tells all that was counted, or what came since the last."""

    CUMULATIVE = 1
    DELTA = 2


@dataclass(frozen=True)
class OpenTelemetryConfig:
    """Core sends its metrics to a collector: over gRPC, such as `http://localhost:4317`, or with `http` over HTTP, such as
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
"""Core's metrics in the registry of a worker, and so in its `/metrics`."""


@dataclass(frozen=True)
class TelemetryConfig:
    """Where Core's metrics and its log go; `global_tags` are labels of every metric, `metric_prefix` its names' beginning."""

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
    """What was said for this process, and whether Core has begun with it, or without."""

    config: TelemetryConfig | None = None
    taken = False


def set_telemetry(config: TelemetryConfig) -> None:
    """Say where Core's metrics and log go: once, before the first connection to a Temporal server. Raises `UsageError` after."""
    if not isinstance(config, TelemetryConfig):
        raise UsageError(f"set_telemetry takes a TelemetryConfig, not {type(config).__name__}")
    if _Chosen.taken:
        raise UsageError("Core runs already in this process: say set_telemetry before the first connection")
    _Chosen.config = config


def take_telemetry() -> TelemetryConfig | None:
    """What was said, for Core's runtime, which is made now."""
    _Chosen.taken = True
    return _Chosen.config
