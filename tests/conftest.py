"""Makes the fixtures of `hourglass.testing.plugin` known where the installed package does not announce them."""

from __future__ import annotations

from importlib.metadata import entry_points

pytest_plugins = [] if "hourglass" in entry_points(group="pytest11").names else ["hourglass.testing.plugin"]
