"""Nondeterministic calls: by every name and in every construct; harmless calls are not reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from .project import check_text, findings_of, marked_findings

CALLS = {
    "import time\ntime.time()": "HG101",
    "import time as t\nt.monotonic_ns()": "HG101",
    "from time import perf_counter as tick\ntick()": "HG101",
    "from time import *\nmonotonic()": "HG101",
    "import datetime\ndatetime.datetime.now(datetime.UTC)": "HG101",
    "import datetime as dt\ndt.date.today()": "HG101",
    "from datetime import datetime\ndatetime.utcnow()": "HG101",
    "from datetime import datetime\nf = datetime.now; f()": "HG101",
    "import time\ntime.strftime('%H')": "HG101",
    "import time\ntime.localtime()": "HG101",
    "import random\nrandom.random()": "HG102",
    "from random import shuffle\nshuffle([1])": "HG102",
    "import random\nrandom.Random()": "HG102",
    "import uuid\nuuid.uuid1()": "HG102",
    "import secrets\nsecrets.token_hex()": "HG102",
    "import os\nos.urandom(3)": "HG102",
    "import numpy as np\nnp.random.rand()": "HG102",
    "import time\ntime.sleep(1)": "HG103",
    "import asyncio\nasyncio.sleep(1)": "HG103",
    "import os\nos.environ['A']": "HG105",
    "from os import environ\nenviron.get('A')": "HG105",
    "import os\nos.getenv('A')": "HG105",
    "import os\nos.getpid()": "HG105",
    "import sys\nsys.argv[1]": "HG105",
    "import platform\nplatform.node()": "HG105",
    "from pathlib import Path\nPath.home()": "HG105",
    "pass\nopen('x')": "HG106",
    "from pathlib import Path\nPath('x').read_text()": "HG106",
    "from pathlib import Path\n(Path('x') / 'y').parent.exists()": "HG106",
    "import os\nos.path.exists('x')": "HG106",
    "import shutil\nshutil.copy('a', 'b')": "HG106",
    "import glob\nglob.glob('*')": "HG106",
    "import requests\nrequests.get('http://x')": "HG107",
    "import httpx\nhttpx.Client()": "HG107",
    "import urllib.request\nurllib.request.urlopen('http://x')": "HG107",
    "import subprocess\nsubprocess.run(['ls'])": "HG107",
    "import sqlite3\nsqlite3.connect('x').execute('')": "HG107",
    "from socket import socket\nsocket()": "HG107",
    "import threading\nthreading.Thread(target=print)": "HG108",
    "from concurrent import futures\nfutures.ThreadPoolExecutor()": "HG108",
    "import asyncio\nasyncio.run(None)": "HG108",
    "import multiprocessing as mp\nmp.Process()": "HG108",
    "import threading\nthreading.Lock()": "HG109",
    "import queue\nqueue.Queue()": "HG109",
    "pass\nid(3)": "HG112",
    "pass\nhash('x')": "HG112",
    "pass\nid(3) < id(4)": "HG112",
    "pass\nx = [id(3)]": "HG112",
    "pass\nsorted([1], key=hash)": "HG112",
    "import functools, time\nfunctools.partial(time.time)": "HG101",
}

HARMLESS = [
    "import time\ntime.strftime('%H', time.gmtime(0))",
    "import random\nrandom.Random(7).random()",
    "import datetime\ndatetime.datetime(2030, 1, 1) + datetime.timedelta(days=1)",
    "import datetime\ndatetime.datetime.fromisoformat('2030-01-01')",
    "import uuid\nuuid.UUID(int=1)",
    "import uuid\nuuid.uuid5(uuid.NAMESPACE_DNS, 'x')",
    "import os\nos.path.join('a', 'b')",
    "from pathlib import Path\nPath('a').with_suffix('.b').name",
    "import json\njson.dumps({})",
    "import requests\nisinstance(3, requests.RequestException)",
    "import httpx\nhttpx.Timeout(3)",
    "import subprocess\nsubprocess.PIPE",
    "import time\nworkflow.time(), workflow.now(), workflow.uuid4(), workflow.random().random()",
    "import logging\nlogging.getLogger('x').info('hello')",
    "pass\nprint('hello')",
    "import hashlib\nhashlib.sha256(b'x').hexdigest()",
    "import time\nwith workflow.unsafe(): time.time()",
    "import time\nif not workflow.in_workflow(): time.time()",
    "import time\ntime = workflow; time.sleep(3)",
    "pass\nid = 'a'; print(id)",
    "pass\nid(3) == id(4), id(3) in {}, {}[id(3)], set().add(id(3))",
    "pass\nhash = len; hash('x')",
]


@pytest.mark.parametrize(("code", "rule"), CALLS.items())
def test_linter_reports_nondeterministic_call_once_with_its_rule(
    code: str, rule: str, tmp_path: Path
) -> None:
    imports, statement = code.split("\n")
    report = check_text(tmp_path, f"{imports}\n@workflow.defn\ndef flow():\n    {statement}  # {rule}\n")
    assert findings_of(report) == marked_findings(tmp_path) != set()


@pytest.mark.parametrize("code", HARMLESS)
def test_linter_ignores_deterministic_or_explicitly_allowed_calls(code: str, tmp_path: Path) -> None:
    imports, statement = code.split("\n")
    assert (
        findings_of(check_text(tmp_path, f"{imports}\n@workflow.defn\ndef flow():\n    {statement}\n"))
        == set()
    )


def test_linter_ignores_activities_uncalled_functions_and_module_code(tmp_path: Path) -> None:
    text = """
import time
print(time.time())
@activity.defn
def stamp() -> float:
    return time.time()
def elsewhere() -> float:
    return time.time()
@workflow.defn
def flow() -> float:
    return stamp() + stamp.start().result() + stamp.options(summary="x")() + stamp.fn()
"""
    assert findings_of(check_text(tmp_path, text)) == set()


CONSTRUCTS = """
import time
from dataclasses import dataclass

def default(now=time.time()):
    return now

@workflow.defn
def flow(order):
    a = [time.time() for _ in order]  # HG101
    b = {time.time(): 1}  # HG101
    c = lambda: time.time()  # HG101
    def never():
        return time.time()
    def used(limit=time.time()):  # HG101
        return time.time()  # HG101
    used()
    try:
        pass
    except ValueError:
        time.time()  # HG101
    finally:
        time.time()  # HG101
    with workflow.timeout(time.time()):  # HG101
        pass
    match order:
        case 1 if time.time():  # HG101
            pass
    while time.time() < 3:  # HG101
        pass
    assert time.time()  # HG101
    return f"{time.time()}", default()  # HG101
"""


def test_linter_reports_calls_in_every_language_construct(tmp_path: Path) -> None:
    assert findings_of(check_text(tmp_path, CONSTRUCTS)) == marked_findings(tmp_path)


def test_finding_columns_count_characters_and_span_the_call(tmp_path: Path) -> None:
    text = "import time\n@workflow.defn\ndef flow():\n    größe = 'ä', time.time()\n"
    (finding,) = check_text(tmp_path, text).findings
    assert (finding.place.line, finding.place.column, finding.place.end_column) == (5, 18, 29)
    assert finding.source[17:28] == "time.time()"


def test_linter_allows_asyncio_tasks_timers_and_locks_in_coroutine_workflows(tmp_path: Path) -> None:
    """Sets of tasks and threads are still reported."""
    text = """
import asyncio, time
from hourglass.aio import workflow as flow

@flow.defn
class Cart:
    def __init__(self):
        self.lock = asyncio.Lock()

    @flow.run
    async def run(self):
        await asyncio.sleep(1)
        async with self.lock, asyncio.timeout(3):
            await asyncio.gather(helper(), asyncio.create_task(helper()))
        await asyncio.wait([asyncio.create_task(helper())])  # HG104
        await asyncio.to_thread(print)  # HG108
        return time.time()  # HG101

    @flow.signal
    async def change(self):
        time.monotonic()  # HG101

async def helper():
    time.time()  # HG101

@workflow.defn
def flat():
    asyncio.Lock()  # HG109
    asyncio.create_task(helper())  # HG108
"""
    report = check_text(tmp_path, text)
    assert findings_of(report) == marked_findings(tmp_path)
