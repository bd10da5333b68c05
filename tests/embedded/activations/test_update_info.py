"""The update info of a workflow in its handler, validator and fibers."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.testing import Environment


@workflow.defn
class UpdateInfoWorkflow:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @workflow.run
    def run(self) -> list[Any]:
        self.seen.append(workflow.current_update_info())
        workflow.wait_condition(lambda: len(self.seen) == 3)
        info = workflow.info()
        return [*self.seen, info.priority_key, dict(info.headers), info.parent_namespace]

    @workflow.update
    def record_update_info(self) -> None:
        own = workflow.current_update_info()
        assert own is not None
        self.seen.append([own.id, own.name])
        self.seen.append(workflow.spawn(self.update_info_of_fiber).result())

    def update_info_of_fiber(self) -> list[str]:
        workflow.sleep(1)
        own = workflow.current_update_info()
        assert own is not None
        return [own.id, own.name]

    @record_update_info.validator
    def check(self) -> None:
        own = workflow.current_update_info()
        assert own is not None
        assert own.name == "record_update_info"


def test_current_update_info_is_available_in_handler_validator_and_fiber() -> None:
    with Environment() as env:
        handle = env.start_workflow(UpdateInfoWorkflow.run)
        handle.execute_update(UpdateInfoWorkflow.record_update_info, id="u-1")
        assert handle.result() == [
            None,
            ["u-1", "record_update_info"],
            ["u-1", "record_update_info"],
            0,
            {},
            None,
        ]
