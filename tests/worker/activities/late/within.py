from __future__ import annotations

from hourglass import activity


@activity.defn(executor="process")
def late_found() -> str:
    return activity.info().activity_type
