"""Workflows: plain synchronous functions that survive crashes, deploys and months of waiting, and the
functions to call in them.

    @workflow.defn
    def checkout(order: Order) -> str:
        charge_id = charge(order.id, order.cents)           # an activity: runs durably
        tasks = [ship.start(item) for item in order.items]  # several concurrently
        workflow.gather(*tasks)
        workflow.sleep(timedelta(days=30))
        return charge_id

The code of a workflow is executed again after a crash, with the recorded results of its calls. So it must be
deterministic: use `now`, `random` and `uuid4` of this module for time, randomness and ids, and activities for
everything that touches the outside world.

    _calls         calls of activities, steps and Nexus operations; continue-as-new
    _children      child workflows and other workflows
    _cancellation  cancellation as `with` blocks
    _definitions   the decorators of workflows
    _handlers      handlers of signals, queries and updates: the decorators, and handlers as values
    _info          `info()`: the properties of a run
    _facts         other deterministic facts: time, randomness, memo, patches, the logger
    _locks         `Lock`, `Semaphore`, `Event` and `Queue` for the tasks of one workflow, with asyncio's fairness
                   and order of turns
    _references    resolves the references to workflows and messages that callers pass
    _tasks         waiting, and running several things concurrently
"""

from __future__ import annotations

from hourglass._evaluator.definition import DynamicWorkflowConfig, HandlerUnfinishedPolicy
from hourglass._evaluator.event_groups import EventGroup, create_event_group
from hourglass._evaluator.fibers import Task
from hourglass._evaluator.messages import (
    ContinueAsNewError,
    UnfinishedSignalHandlersWarning,
    UnfinishedUpdateHandlersWarning,
)
from hourglass._evaluator.specs import (
    ActivityCancellationType,
    ChildCancellationType,
    ContinueAsNewVersioningBehavior,
    ParentClosePolicy,
    VersioningBehavior,
    WorkerDeploymentVersion,
)
from hourglass.converter import RawPayload
from hourglass.errors import Cancelled
from hourglass.workflow._calls import (
    NexusClient,
    NexusOperationCancellationType,
    NexusOperationHandle,
    NexusOptions,
    StepOptions,
    continue_as_new,
    create_nexus_client,
    execute_activity,
    execute_local_activity,
    start_activity,
    start_local_activity,
    start_step,
    step,
)
from hourglass.workflow._cancellation import Scope, Timeout, scope, shield, timeout
from hourglass.workflow._children import (
    ChildOptions,
    ChildWorkflowHandle,
    ExternalWorkflowHandle,
    WithStart,
    WithStartOptions,
    execute_child_workflow,
    get_external_workflow_handle,
    start_child_workflow,
    with_start,
)
from hourglass.workflow._definitions import (
    AsyncRunMethod,
    AsyncWorkflow,
    RunMethod,
    Workflow,
    defn,
    dynamic_config,
    init,
    run,
)
from hourglass.workflow._facts import (
    all_handlers_finished,
    cancellation_reason,
    deprecate_patch,
    get_current_details,
    has_last_completion_result,
    in_workflow,
    instance,
    is_catching_up,
    is_failure_exception,
    is_replaying,
    last_completion_result,
    last_failure,
    logger,
    memo,
    memo_value,
    metric_meter,
    new_random,
    now,
    patched,
    payload_converter,
    random,
    random_seed,
    register_random_seed_callback,
    search_attributes,
    set_current_details,
    time,
    time_ns,
    unsafe,
    upsert_memo,
    upsert_search_attributes,
    uuid4,
    uuid7,
)
from hourglass.workflow._handlers import (
    AsyncSignal,
    AsyncUpdate,
    Query,
    Signal,
    Update,
    get_dynamic_query_handler,
    get_dynamic_signal_handler,
    get_dynamic_update_handler,
    get_query_handler,
    get_signal_handler,
    get_update_handler,
    query,
    set_dynamic_query_handler,
    set_dynamic_signal_handler,
    set_dynamic_update_handler,
    set_query_handler,
    set_signal_handler,
    set_update_handler,
    signal,
    update,
)
from hourglass.workflow._info import Info, ParentInfo, RootInfo, UpdateInfo, current_update_info, info
from hourglass.workflow._locks import Event, Lock, Queue, Semaphore
from hourglass.workflow._references import Channel
from hourglass.workflow._tasks import (
    as_completed,
    gather,
    map,
    run_async,
    sleep,
    spawn,
    wait,
    wait_condition,
    wait_for,
)

__all__ = [
    "ActivityCancellationType",
    "AsyncRunMethod",
    "AsyncSignal",
    "AsyncUpdate",
    "AsyncWorkflow",
    "Cancelled",
    "Channel",
    "ChildCancellationType",
    "ChildOptions",
    "ChildWorkflowHandle",
    "ContinueAsNewError",
    "ContinueAsNewVersioningBehavior",
    "DynamicWorkflowConfig",
    "Event",
    "EventGroup",
    "ExternalWorkflowHandle",
    "HandlerUnfinishedPolicy",
    "Info",
    "Lock",
    "NexusClient",
    "NexusOperationCancellationType",
    "NexusOperationHandle",
    "NexusOptions",
    "ParentClosePolicy",
    "ParentInfo",
    "Query",
    "Queue",
    "RawPayload",
    "RootInfo",
    "RunMethod",
    "Scope",
    "Semaphore",
    "Signal",
    "StepOptions",
    "Task",
    "Timeout",
    "UnfinishedSignalHandlersWarning",
    "UnfinishedUpdateHandlersWarning",
    "Update",
    "UpdateInfo",
    "VersioningBehavior",
    "WithStart",
    "WithStartOptions",
    "WorkerDeploymentVersion",
    "Workflow",
    "all_handlers_finished",
    "as_completed",
    "cancellation_reason",
    "continue_as_new",
    "create_event_group",
    "create_nexus_client",
    "current_update_info",
    "defn",
    "deprecate_patch",
    "dynamic_config",
    "execute_activity",
    "execute_child_workflow",
    "execute_local_activity",
    "gather",
    "get_current_details",
    "get_dynamic_query_handler",
    "get_dynamic_signal_handler",
    "get_dynamic_update_handler",
    "get_external_workflow_handle",
    "get_query_handler",
    "get_signal_handler",
    "get_update_handler",
    "has_last_completion_result",
    "in_workflow",
    "info",
    "init",
    "instance",
    "is_catching_up",
    "is_failure_exception",
    "is_replaying",
    "last_completion_result",
    "last_failure",
    "logger",
    "map",
    "memo",
    "memo_value",
    "metric_meter",
    "new_random",
    "now",
    "patched",
    "payload_converter",
    "query",
    "random",
    "random_seed",
    "register_random_seed_callback",
    "run",
    "run_async",
    "scope",
    "search_attributes",
    "set_current_details",
    "set_dynamic_query_handler",
    "set_dynamic_signal_handler",
    "set_dynamic_update_handler",
    "set_query_handler",
    "set_signal_handler",
    "set_update_handler",
    "shield",
    "signal",
    "sleep",
    "spawn",
    "start_activity",
    "start_child_workflow",
    "start_local_activity",
    "start_step",
    "step",
    "time",
    "time_ns",
    "timeout",
    "unsafe",
    "update",
    "upsert_memo",
    "upsert_search_attributes",
    "uuid4",
    "uuid7",
    "wait",
    "wait_condition",
    "wait_for",
    "with_start",
]
