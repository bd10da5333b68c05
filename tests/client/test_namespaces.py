"""Creation of search attributes and namespaces by a client."""

from __future__ import annotations

import time
import uuid

import pytest

from hourglass import workflow
from hourglass.client import Client
from hourglass.converter import SearchAttributeKey
from hourglass.errors import NamespaceNotFoundError, ServiceError, UsageError
from hourglass.testing import DevServer
from hourglass.worker import Worker


@workflow.defn
def empty_workflow() -> None:
    pass


def check_search_attributes(client: Client) -> None:
    """Check that an attribute can be added twice with one type, not with another type, and finds a run."""
    name = f"Made{uuid.uuid4().hex[:8]}"
    client.add_search_attributes({name: "Int"})
    assert client.list_search_attributes()[name] == "Int"
    client.add_search_attributes({name: "Int"})
    with pytest.raises(ServiceError):
        client.add_search_attributes({name: "Bool"})
    with pytest.raises(UsageError, match="Keyword, "):
        client.add_search_attributes({name: "Number"})
    key = SearchAttributeKey.for_int(name)
    with Worker(client, "attributes", workflows=[empty_workflow]):
        end = time.monotonic() + 60
        while True:
            try:
                client.execute_workflow(
                    empty_workflow, task_queue="attributes", search_attributes=[key.value_set(7)]
                )
                break
            except ServiceError:  # a server takes a moment to know of it
                assert time.monotonic() < end
                time.sleep(0.2)  # it is tried again until the server knows the attribute
    while client.count_workflows(f"{name} = 7") != 1:
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.server
def test_client_creates_search_attributes_and_namespaces_on_a_server(quick_server: DevServer) -> None:
    with Client.connect(quick_server.target) as client:
        check_search_attributes(client)
        name = f"made-{uuid.uuid4().hex[:8]}"
        client.create_namespace(name, retention=3 * 86400, description="for a test")
        with pytest.raises(ServiceError) as taken:
            client.create_namespace(name)
        assert taken.value.status == "ALREADY_EXISTS"
    end = time.monotonic() + 60
    while True:
        try:
            with Client.connect(quick_server.target, namespace=name) as other:
                assert other.namespace == name
            return
        except NamespaceNotFoundError:
            assert time.monotonic() < end
            time.sleep(0.2)  # it is tried again until the server knows the namespace


def test_embedded_engine_creates_search_attributes_but_no_namespaces() -> None:
    with Client.connect("local:") as client:
        check_search_attributes(client)
        with pytest.raises(ServiceError, match="namespace='other'") as refused:
            client.create_namespace("other")
        assert refused.value.status == "UNIMPLEMENTED"
        with pytest.raises(UsageError):
            client.create_namespace(" ")
