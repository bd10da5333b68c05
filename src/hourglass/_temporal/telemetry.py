"""Core's telemetry: its log, which is forwarded to Python's logging, its metrics, and worker heartbeats.

Must not know: Rust objects (see `core`). The options of `hourglass.metrics.set_telemetry` take precedence over
the environment. They are read when Core's runtime is created, with the first connection.

- `HOURGLASS_CORE_LOG`: a filter in Rust's syntax. Default: errors only, with only those fields that cannot contain
  payloads.
- `HOURGLASS_CORE_METRICS`: `status` adds Core's metrics to the worker's registry and its `/metrics`; `host:port` makes
  Core serve Prometheus itself; `otlp:URL` sends them to a collector. Default: no metrics.
- `HOURGLASS_WORKER_HEARTBEAT`: seconds between worker heartbeats to the server, 1 to 60; `0` disables them.

Core calls the log forwarders on its own thread, some milliseconds late, with many entries per call. Invariant:
buffered metrics are fetched every few seconds, because Core discards what does not fit into its buffer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hourglass._temporal.configs import TemporalSettings, settings_of
from hourglass.errors import TargetError, UsageError
from hourglass.metrics import (
    Family,
    Kind,
    LoggingConfig,
    OpenTelemetryConfig,
    OpenTelemetryMetricTemporality,
    PrometheusConfig,
    Registry,
    TelemetryConfig,
)
from hourglass.metrics._samples import labels_of
from hourglass.metrics._telemetry import STATUS

logger = logging.getLogger("hourglass.core")

FETCH_EVERY = 5.0
_BUFFERED = 200_000
_ERRORS = "ERROR,temporalio_common::payload_limits=WARN"
_HEARTBEAT = 60.0


def runtime_settings(environ: Mapping[str, str], config: TelemetryConfig | None = None) -> TemporalSettings:
    """Return the settings of Core's runtime. `config` takes precedence over the environment."""
    config = config or TelemetryConfig(metrics=_parse_metrics(environ.get("HOURGLASS_CORE_METRICS", "")))
    log_filter = environ.get("HOURGLASS_CORE_LOG", "") if config.logging is None else _filter(config.logging)
    forward = forward_everything if log_filter else forward_errors
    return TemporalSettings(
        telemetry=TemporalSettings(
            logging=TemporalSettings(filter=log_filter or _ERRORS, forward_to=forward, format=None),
            metrics=_metrics(config),
        ),
        worker_heartbeat_interval_millis=_heartbeat(environ.get("HOURGLASS_WORKER_HEARTBEAT", "")),
        disable_environment_info=True,
    )


def _filter(logging: LoggingConfig) -> str:
    return logging.filter if isinstance(logging.filter, str) else logging.filter.formatted()


def _heartbeat(text: str) -> int | None:
    try:
        interval = float(text) if text else _HEARTBEAT
    except ValueError:
        interval = -1.0
    if interval == 0:
        return None
    if not 1 <= interval <= 60:
        raise TargetError(
            f"HOURGLASS_WORKER_HEARTBEAT must be a number of seconds from 1 to 60, or 0, not {text!r}"
        )
    return int(interval * 1000)


_HARMLESS = (
    "limit",
    "size",
    "namespace",
    "task_queue",
    "workflow_id",
    "run_id",
    "workflow_type",
    "activity_type",
    "activity_id",
    "attempt",
)
"""Fields of a log entry that contain neither payloads nor failure messages."""


def forward_errors(entries: Sequence[Any]) -> None:
    """Log Core's entries without the fields that may contain payloads."""
    _forward(entries, _HARMLESS)


def forward_everything(entries: Sequence[Any]) -> None:
    """Log Core's entries with all fields."""
    _forward(entries, None)


def _forward(entries: Sequence[Any], only: Sequence[str] | None) -> None:
    for entry in entries:
        if not logger.isEnabledFor(entry.level):
            continue
        fields: dict[str, Any] = entry.fields
        shown = fields if only is None else {name: fields[name] for name in only if name in fields}
        details = " ".join(f"{name}={value}" for name, value in shown.items())
        record = logger.makeRecord(
            logger.name,
            entry.level,
            "(core)",
            0,
            "%s: %s%s",
            (entry.target, entry.message, f" ({details})" if details else ""),
            None,
        )
        record.created = entry.time
        record.msecs = (entry.time - int(entry.time)) * 1000
        logger.handle(record)


_OTLP = ("otlp+http:", "otlp:")


def _parse_metrics(setting: str) -> PrometheusConfig | OpenTelemetryConfig | Literal["status"] | None:
    """Parse the value of `HOURGLASS_CORE_METRICS`."""
    if not setting:
        return None
    if setting == "status":
        return "status"
    try:
        for prefix in _OTLP:
            if setting.startswith(prefix):
                return OpenTelemetryConfig(setting.removeprefix(prefix), http=prefix == _OTLP[0])
        return PrometheusConfig(setting)
    except UsageError:
        raise TargetError(
            f"HOURGLASS_CORE_METRICS must be {STATUS!r}, host:port (such as 127.0.0.1:9464), or a collector (such as "
            f"otlp:http://localhost:4317 or otlp+http:http://localhost:4318/v1/metrics), not {setting!r}"
        ) from None


def _metrics(config: TelemetryConfig) -> TemporalSettings | None:
    """Return the settings of Core's metrics: buffered, served as Prometheus, or sent to a collector. Names are
    Temporal's."""
    exporter = config.metrics
    if exporter is None:
        return None
    prometheus = collector = None
    if isinstance(exporter, PrometheusConfig):
        prometheus = settings_of(exporter)
    elif isinstance(exporter, OpenTelemetryConfig):
        interval = exporter.metric_periodicity
        collector = TemporalSettings(
            url=exporter.url,
            headers=dict(exporter.headers),
            metric_periodicity_millis=None if interval is None else max(1, round(interval * 1000)),
            metric_temporality_delta=exporter.metric_temporality is OpenTelemetryMetricTemporality.DELTA,
            durations_as_seconds=exporter.durations_as_seconds,
            http=exporter.http,
            histogram_bucket_overrides=exporter.histogram_bucket_overrides,
        )
    exported = prometheus is not None or collector is not None
    return TemporalSettings(
        opentelemetry=collector,
        prometheus=prometheus,
        buffered_with_size=0 if exported else _BUFFERED,
        attach_service_name=exported and config.attach_service_name,
        global_tags=dict(config.global_tags) or None,
        metric_prefix=config.metric_prefix,
    )


_KINDS: tuple[Kind, ...] = ("counter", "gauge", "histogram")


class CoreMetrics:
    """The metrics that Core has recorded in this process, as families."""

    def __init__(self) -> None:
        self._registry = Registry()

    def add(self, updates: Sequence[Any]) -> None:
        """Record updates from Core's buffer."""
        for update in updates:
            metric = update.metric
            try:
                recorder = self._registry.metric(
                    metric.name, _KINDS[metric.kind], metric.description or "", metric.unit or ""
                )
                recorder.record(
                    update.value, labels_of({name: str(value) for name, value in update.attributes.items()})
                )
            except (UsageError, IndexError):  # an invalid name or unknown kind, from a newer Core
                continue

    def families(self) -> list[Family]:
        """Return the current values."""
        return self._registry.collect()
