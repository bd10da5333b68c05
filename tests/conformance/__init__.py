"""The same scenarios on the embedded engine and on a real server: results, failures and histories must be the same."""

import pytest

for _module in (
    "attempts",
    "cancelling",
    "concurrency",
    "ending",
    "failing",
    "lives",
    "messages",
    "shapes",
    "steps",
    "talks",
    "values",
    "world",
):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")
