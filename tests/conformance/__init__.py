"""The same scenarios on the embedded engine and on a real server: results, failures and histories must be the same."""

import pkgutil

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
