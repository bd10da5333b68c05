"""Guarantees of both agent bridges: completed calls are not repeated after a kill, replays are deterministic, and
each attempt sends one request.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from agents import Agent as OpenAIAgent
from agents import OpenAIChatCompletionsModel
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from hourglass import Client, RetryPolicy, Worker, workflow
from hourglass.contrib.openai_agents import DurableRunner
from hourglass.contrib.pydantic_ai import HourglassDurability


def test_agent_repeats_only_interrupted_model_and_tool_calls_after_kill(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    program = Path(__file__).with_name("agent_program.py")
    command = [sys.executable, str(program), str(tmp_path / "agents.db"), str(tmp_path / "log"), str(marks)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["charged 5", "charged 5", "2"]
    expected = {"model begins": 3, "model ends": 2, "tool begins": 2, "tool ends": 1}
    counts = Counter((tmp_path / "log").read_text().splitlines())
    assert counts == {
        f"{library} {action}": times
        for library in ("pydantic", "openai")
        for action, times in expected.items()
    }


def test_agent_history_replays_under_another_hash_seed(tmp_path: Path) -> None:
    """Sets in tool names, deps, settings and arguments must be encoded in the same order in every process."""
    program = Path(__file__).with_name("hash_seed_program.py")
    for seed, action in enumerate(("record", "replay", "replay", "replay")):
        ended = subprocess.run(
            [sys.executable, str(program), action, str(tmp_path / "history")],
            env={**os.environ, "PYTHONHASHSEED": str(seed + 1)},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert ended.returncode == 0, ended.stderr


def test_agent_libraries_import_no_module_inside_a_workflow() -> None:
    """Covers guardrails, handoffs, approvals and errors. An import inside a workflow is slow."""
    program = Path(__file__).with_name("import_program.py")
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""


class BusyModelServer(BaseHTTPRequestHandler):
    """An HTTP server that answers 503 to the first two requests of each path, then succeeds."""

    protocol_version = "HTTP/1.1"
    request_counts: Counter[str] = Counter()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        BusyModelServer.request_counts[self.path] += 1
        busy = BusyModelServer.request_counts[self.path] <= 2
        message = {"role": "assistant", "content": "fine"}
        answer = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        body = json.dumps({"error": {"message": "busy"}} if busy else answer).encode()
        self.send_response(503 if busy else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[str]:
    BusyModelServer.request_counts.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), BusyModelServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_agent_bridges_disable_retries_of_model_clients(provider: str) -> None:
    """With retries of the client, the three attempts would send nine requests."""
    quick = RetryPolicy(initial_interval=0.01, maximum_interval=0.02)
    durability = HourglassDurability(options={"retry_policy": quick})
    clients = [AsyncOpenAI(base_url=f"{provider}/{each}", api_key="none") for each in ("pydantic", "openai")]
    assert [each.max_retries for each in clients] == [2, 2]
    agent = Agent(
        OpenAIChatModel("m", provider=OpenAIProvider(openai_client=clients[0])),
        name="pydantic-on-wire",
        capabilities=[durability],
    )
    runner = DurableRunner(
        OpenAIAgent(name="openai-on-wire", model=OpenAIChatCompletionsModel("m", clients[1])),
        options={"retry_policy": quick},
    )

    @workflow.defn
    def both() -> list[str]:
        return [workflow.run_async(agent.run("well?")).output, str(runner.run_sync("well?").final_output)]

    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[both], activities=[durability, runner]),
    ):
        assert client.execute_workflow(both) == ["fine", "fine"]
    assert BusyModelServer.request_counts == {"/pydantic/chat/completions": 3, "/openai/chat/completions": 3}
