"""What Core says of itself: its log goes to Python's logging, its metrics beside ours.

Must not know: Rust objects (see `core`). The environment decides, for Core's runtime is made with the first connection:

- `HOURGLASS_CORE_LOG`: what Core logs, in Rust's filter syntax. Without it Core's errors alone, and of what it says about
  them only fields that cannot hold payloads.
- `HOURGLASS_CORE_METRICS`: `status` for the registry of a worker, and so for its `/metrics`; or `host:port`, where Core itself
  answers Prometheus. Without it Core counts nothing.
- `HOURGLASS_WORKER_HEARTBEAT`: every so many seconds, 1 to 60, a worker tells the server how it is; `0` for never.

Core calls `forward_errors` on a thread of its own, some milliseconds late and many entries at once. Invariant: what is buffered
by Core is fetched every few seconds, for it forgets what does not fit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from hourglass._temporal.configs import TemporalSettings
from hourglass.errors import TargetError, UsageError
from hourglass.metrics import Family, Kind, Registry
from hourglass.metrics._samples import labels_of

logger = logging.getLogger("hourglass.core")

STATUS = "status"
FETCH_EVERY = 5.0
_BUFFERED = 200_000
_ERRORS = "ERROR"
_HEARTBEAT = 60.0


def runtime_settings(environ: Mapping[str, str]) -> TemporalSettings:
    """A runtime: what it logs, counts, and tells the server of its workers."""
    wanted = environ.get("HOURGLASS_CORE_LOG", "")
    forward = forward_everything if wanted else forward_errors
    return TemporalSettings(
        telemetry=TemporalSettings(
            logging=TemporalSettings(filter=wanted or _ERRORS, forward_to=forward, format=None),
            metrics=_metrics(environ.get("HOURGLASS_CORE_METRICS", "")),
        ),
        worker_heartbeat_interval_millis=_heartbeat(environ.get("HOURGLASS_WORKER_HEARTBEAT", "")),
        disable_environment_info=True,
    )


def _heartbeat(text: str) -> int | None:
    try:
        every = float(text) if text else _HEARTBEAT
    except ValueError:
        every = -1.0
    if every == 0:
        return None
    if not 1 <= every <= 60:
        raise TargetError(
            f"HOURGLASS_WORKER_HEARTBEAT is a number of seconds from 1 to 60, or 0, not {text!r}"
        )
    return int(every * 1000)


# --- the log ----------------------------------------------------------------------------------------------------------

_HARMLESS = (
    "namespace",
    "task_queue",
    "workflow_id",
    "run_id",
    "workflow_type",
    "activity_type",
    "activity_id",
    "attempt",
)
"""Fields of an entry that hold no payloads, and no messages of failures."""


def forward_errors(entries: Sequence[Any]) -> None:
    """Log what Core said, without what may hold payloads."""
    _forward(entries, _HARMLESS)


def forward_everything(entries: Sequence[Any]) -> None:
    """Log what Core said, all of it: it was asked for."""
    _forward(entries, None)


def _forward(entries: Sequence[Any], only: Sequence[str] | None) -> None:
    for entry in entries:
        if not logger.isEnabledFor(entry.level):
            continue
        fields: dict[str, Any] = entry.fields
        told = fields if only is None else {name: fields[name] for name in only if name in fields}
        more = " ".join(f"{name}={value}" for name, value in told.items())
        record = logger.makeRecord(
            logger.name,
            entry.level,
            "(core)",
            0,
            "%s: %s%s",
            (entry.target, entry.message, f" ({more})" if more else ""),
            None,
        )
        record.created = entry.time
        record.msecs = (entry.time - int(entry.time)) * 1000
        logger.handle(record)


# --- metrics ----------------------------------------------------------------------------------------------------------


def _metrics(wanted: str) -> TemporalSettings | None:
    """Core's own metrics, in its buffer, or as Prometheus reads them; names and units as Temporal documents them."""
    if not wanted:
        return None
    exporter = None
    if wanted != STATUS:
        host, colon, port = wanted.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
            raise TargetError(
                f"HOURGLASS_CORE_METRICS is {STATUS!r}, or host:port, such as 127.0.0.1:9464, not {wanted!r}"
            )
        exporter = TemporalSettings(
            bind_address=wanted,
            counters_total_suffix=False,
            unit_suffix=False,
            durations_as_seconds=True,
            histogram_bucket_overrides=None,
        )
    return TemporalSettings(
        opentelemetry=None,
        prometheus=exporter,
        buffered_with_size=0 if exporter else _BUFFERED,
        attach_service_name=exporter is not None,
        global_tags=None,
        metric_prefix=None,
    )


_KINDS: tuple[Kind, ...] = ("counter", "gauge", "histogram")


class CoreMetrics:
    """What Core has counted in this process, as families of metrics."""

    def __init__(self) -> None:
        self._registry = Registry()

    def add(self, updates: Sequence[Any]) -> None:
        """Take what Core had buffered."""
        for update in updates:
            metric = update.metric
            try:
                found = self._registry.metric(
                    metric.name, _KINDS[metric.kind], metric.description or "", metric.unit or ""
                )
                found.record(
                    update.value, labels_of({name: str(value) for name, value in update.attributes.items()})
                )
            except (UsageError, IndexError):  # a name or a kind that a later Core has and we do not know
                continue

    def families(self) -> list[Family]:
        """Where they stand."""
        return self._registry.collect()
