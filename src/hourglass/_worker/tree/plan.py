"""The options of a worker, including its version. The options are checked before any connection is opened, because
engines accept invalid options and fail later.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from hourglass._contract.handle import HandleConfig
from hourglass._evaluator.interception import InterceptWorkflow
from hourglass._evaluator.specs import (
    VersioningBehavior,
    WorkerDeploymentVersion,
    check_behavior,
    check_version,
)
from hourglass._worker.activities.program_loop import ProgramLoop
from hourglass._worker.interpreter import InterpreterOptions
from hourglass._worker.lanes.evaluation import Verify
from hourglass._worker.lanes.watcher import Action
from hourglass._worker.resolver import Resolver
from hourglass.activity._context import PAYLOAD_LIMIT, ActivityChain, Resources
from hourglass.converter import Codec, Converter
from hourglass.errors import UsageError
from hourglass.metrics import Registry, default_registry

_UNSPECIFIED = VersioningBehavior.UNSPECIFIED


@dataclass(frozen=True)
class WorkerDeploymentConfig:
    """The version of a worker: one build of one deployment.

    Each workflow declares whether its runs stay with the version (`@workflow.defn(versioning_behavior=…)`).
    `default_versioning_behavior` applies to workflows without a declaration. Without `use_worker_versioning` the build
    id is informative only and has no effect.
    """

    version: WorkerDeploymentVersion
    use_worker_versioning: bool = True
    default_versioning_behavior: VersioningBehavior = _UNSPECIFIED


@dataclass(frozen=True)
class Versioning:
    """The version options that the engine receives. With `needs_behavior` each workflow must declare a versioning
    behavior."""

    build_id: str = ""
    version: WorkerDeploymentVersion | None = None
    default: VersioningBehavior = _UNSPECIFIED

    @property
    def needs_behavior(self) -> bool:
        """Whether each workflow must declare a versioning behavior."""
        return self.version is not None and self.default is _UNSPECIFIED


def checked_versioning(config: Any, build_id: str | None) -> Versioning:
    """Return the checked version options of a worker. Raises `UsageError`."""
    if config is None:
        return Versioning(build_id or "")
    if not isinstance(config, WorkerDeploymentConfig):
        raise UsageError(f"deployment_config must be a WorkerDeploymentConfig, not {type(config).__name__}")
    if build_id is not None:
        raise UsageError("pass either build_id or deployment_config, which contains a build id, not both")
    version = check_version(config.version, "the version of a worker")
    default = check_behavior(config.default_versioning_behavior, "default_versioning_behavior")
    if config.use_worker_versioning:
        return Versioning("", version, default)
    if default is not _UNSPECIFIED:
        raise UsageError("default_versioning_behavior has no effect without use_worker_versioning")
    return Versioning(version.build_id)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The checked options of a worker."""

    config: HandleConfig
    resolver: Resolver
    converter: Converter
    codec: Codec | None = None
    failure_exceptions: tuple[type[BaseException], ...] = ()
    verify: Verify = "off"
    watch: Action | None = None
    lanes: int = 1
    max_live_workflows: int = 1000
    deadlock_timeout: float | None = 2.0
    interpreter: InterpreterOptions = field(default_factory=InterpreterOptions)
    max_processes: int = 0
    activity_executor: Executor | None = None
    """The executor of `def` activities; None for the worker's own threads."""
    program_loop: ProgramLoop | None = None
    """The loop of `async def` activities; None for the worker's own loop."""
    patch_activation: Callable[[Any], bool] | None = None
    """Decides whether a patch is active when a run evaluates it for the first time."""
    payload_limit: int | None = PAYLOAD_LIMIT
    payload_warn: int = 0
    resources: Resources = field(default_factory=Resources)
    activity_inbound: ActivityChain | None = None
    workflow_interceptors: tuple[InterceptWorkflow, ...] = ()
    metrics: Registry = default_registry

    def __post_init__(self) -> None:
        """Reject options that an engine would accept and then fail on."""
        if not isinstance(self.config.task_queue, str):
            raise UsageError(f"the task queue must be a str, not {type(self.config.task_queue).__name__}")
        if self.lanes < 1:
            raise UsageError(f"lanes must be at least 1, not {self.lanes}")
        try:
            self.config.check()
        except ValueError as error:
            raise UsageError(str(error)) from None

    def serving(self, task_queue: str) -> Plan:
        """Return these options for another task queue."""
        return replace(self, config=msgspec.structs.replace(self.config, task_queue=task_queue))


VERIFY_VARIABLE = "HOURGLASS_VERIFY"
"""The environment variable with the default of `verify`, so that a test suite can verify everything."""


def checked_executor(executor: Any, name: str = "activity_executor") -> Executor | None:
    """Return the user's executor for `def` activities or Nexus operations. Raises `UsageError`."""
    if isinstance(executor, ProcessPoolExecutor):
        raise UsageError(
            f"{name} runs functions in threads, and cannot be a ProcessPoolExecutor: declare activities that run in processes, "
            "@hourglass.activity.defn(executor='process')"
        )
    if executor is not None and not isinstance(executor, Executor):
        raise UsageError(f"{name} must be an executor of concurrent.futures, not {type(executor).__name__}")
    return executor


def checked_verify(verify: Any) -> Verify:
    """Return the checked option for the runs to execute twice. None means the value of `HOURGLASS_VERIFY`, by default
    no runs.
    """
    if verify is None:
        return _verify_named(os.environ.get(VERIFY_VARIABLE, ""))
    if verify in ("off", "always"):
        checked: Verify = verify
        return checked
    if isinstance(verify, (int, float)) and not isinstance(verify, bool) and 0 <= verify <= 1:
        return float(verify)
    raise UsageError(f"verify must be 'off', 'always' or a fraction of runs between 0 and 1, not {verify!r}")


def _verify_named(text: str) -> Verify:
    try:
        return checked_verify(text if text in ("off", "always") else float(text or 0))
    except (ValueError, UsageError):
        raise UsageError(
            f"{VERIFY_VARIABLE} must be 'off', 'always' or a fraction of runs between 0 and 1, not {text!r}"
        ) from None


def checked_watch(watch: Any, verify: Verify) -> Action | None:
    """Return the checked action of the call watcher. By default the watcher warns if all runs are verified, otherwise
    it is off.
    """
    if watch is None:
        return "warn" if verify == "always" else None
    if watch not in ("off", "warn", "error"):
        raise UsageError(f"watch must be 'off', 'warn' or 'error', not {watch!r}")
    checked: Action | None = None if watch == "off" else watch
    return checked
