"""The same scenarios on the embedded engine and on a real server: results, failures and histories must be the same."""

import pytest

for _module in (
    "attempts",
    "cancelling",
    "cancelling_commands",
    "continue_as_new",
    "patches",
    "concurrency",
    "ending",
    "failing",
    "visibility",
    "unfinished_handlers",
    "starts_and_ends",
    "messages",
    "queries",
    "schedule_actions",
    "value_limits",
    "steps",
    "synchronization",
    "message_timing",
    "typed",
    "unconvertible",
    "update_attachments",
    "update_cases",
    "values",
    "world",
):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")
