"""The blocking client is generated from the asynchronous one and is up to date."""

from __future__ import annotations

import pytest
import temporalio.client

from hourglass import interceptors
from hourglass.aio import client as aio_client

from . import faces, source


def test_generated_clients_are_up_to_date() -> None:
    assert [str(path.relative_to(source.ROOT)) for path in faces.stale()] == []


def test_generated_client_file_names_its_source_in_the_first_line() -> None:
    for origin, target in faces.FILES.items():
        first = (source.PACKAGE / target).read_text().splitlines()[0]
        assert first == faces.MADE.format(source=origin.rpartition("/")[2])


def test_blocking_code_is_the_async_code_without_awaits_and_async_names() -> None:
    async_code = 'async def run(self) -> AsyncIterator[int]:\n    x = await self.arun("await async")\n'
    assert faces.blocking(async_code) == 'def run(self) -> Iterator[int]:\n    x = self.run("await async")\n'


POINTS = dict(faces.call_points())


@pytest.mark.parametrize("name", POINTS)
def test_input_class_of_each_intercepted_client_call_is_exported(name: str) -> None:
    assert name in interceptors.__all__, f"export {name} in interceptors.py"
    if hasattr(temporalio.client.OutboundInterceptor, POINTS[name]["method"]):
        exported = {getattr(aio_client, public) for public in aio_client.__all__}
        assert getattr(interceptors, name) in exported, (
            f"export {name} under temporalio's name in aio/client.py"
        )
