"""The status of a `ServiceError`, by gRPC's names and by temporalio's."""

from __future__ import annotations

import pytest

from hourglass import Client
from hourglass.aio.service import RPCError, RPCStatusCode
from hourglass.errors import ServiceError, ServiceStatus


def test_service_error_status_matches_grpc_names_and_temporalio_codes() -> None:
    with Client.connect("local:") as client, pytest.raises(RPCError) as caught:
        client.get_workflow_handle("nowhere").describe()
    assert caught.value.status is RPCStatusCode.NOT_FOUND
    assert (caught.value.status.name, str(caught.value.status)) == ("NOT_FOUND", "NOT_FOUND")
    assert ServiceError("away", status="UNAVAILABLE").status is ServiceStatus.UNAVAILABLE
    assert ServiceError("odd", status="SOMETHING_ELSE").status is ServiceStatus.UNKNOWN
    assert caught.value.message == str(caught.value)
