"""The blocking face of the client is made from the asynchronous one, and is up to date."""

from __future__ import annotations

import pytest
import temporalio.client

from hourglass import interceptors
from hourglass.aio import client as aio_client

from . import faces, source


def test_blocking_client_is_generated_from_the_async_client() -> None:
    """Every file and part that `make faces` writes is as it would write it now: an edit belongs to the source of both."""
    assert [str(path.relative_to(source.ROOT)) for path in faces.stale()] == []


def test_generated_file_names_its_source() -> None:
    """A file that is made says in its first line what it is made from."""
    for origin, target in faces.FILES.items():
        first = (source.PACKAGE / target).read_text().splitlines()[0]
        assert first == faces.MADE.format(source=origin.rpartition("/")[2])


def test_generated_code_differs_only_in_awaits_and_names() -> None:
    """Coroutines, loops and names become those of code that blocks; texts and other names stay."""
    awaited = 'async def run(self) -> AsyncIterator[int]:\n    x = await self.arun("await async")\n'
    assert faces.blocking(awaited) == 'def run(self) -> Iterator[int]:\n    x = self.run("await async")\n'


POINTS = dict(faces.call_points())


@pytest.mark.parametrize("name", POINTS)
def test_input_of_an_interceptor_is_exported(name: str) -> None:
    """Authors of interceptors import it from `hourglass.interceptors`, and from `hourglass.aio` if temporalio has the method."""
    assert name in interceptors.__all__, f"export {name} in interceptors.py"
    if hasattr(temporalio.client.OutboundInterceptor, POINTS[name]["method"]):
        exported = {getattr(aio_client, public) for public in aio_client.__all__}
        assert getattr(interceptors, name) in exported, (
            f"export {name} under temporalio's name in aio/client.py"
        )
