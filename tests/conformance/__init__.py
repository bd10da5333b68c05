"""The same scenarios on the embedded engine and on a real server: results, failures and histories must be the same."""

import pytest

for _module in (
    "cancelling",
    "concurrency",
    "ending",
    "failing",
    "messages",
    "steps",
    "values",
    "world",
):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")
