"""Global state, set order, caches, branches on replay, and collections that change during iteration."""

from __future__ import annotations

from pathlib import Path

import pytest

from .project import check_text, findings_of, marked_findings

CASES = {
    "a workflow that calls itself whatever happens": """
from hourglass import aio
@activity.defn
def look(n) -> int: ...
def helper(n):
    if n > 3: raise ValueError(n)
@workflow.defn
def plain(n):
    return plain(n)  # HG117
@workflow.defn
def later(n):
    seen = look(n)
    workflow.sleep(60)
    print(later(seen + 1))  # HG117
@workflow.defn
class Flow:
    @workflow.run
    def run(self, n):
        return workflow.execute_child_workflow(Flow.run, n)  # HG117
@aio.workflow.defn
class Awaited:
    @aio.workflow.run
    async def run(self, n):
        await aio.workflow.execute_child_workflow(Awaited.run, n)  # HG117
@workflow.defn
def counted(n):
    if n == 0:
        return 0
    return counted(n - 1)
@workflow.defn
def chosen(n):
    return chosen(n - 1) if n else 0
@workflow.defn
def anded(n):
    return n and anded(n - 1)
@workflow.defn
def tree(parts):
    return [tree(each) for each in parts]
@workflow.defn
def again(n):
    look(n)
    workflow.continue_as_new(n)
    again(n)
@workflow.defn
def guarded(n):
    helper(n)
    return guarded(n)
@workflow.defn
def tried(n):
    try:
        return tried(look(n))
    except Exception:
        return 0
@workflow.defn
def inner(n):
    return inner.fn(n)
@workflow.defn
def another(n):
    return plain(n)
""",
    "defaults that are changed": """
def add(name, to={}):
    to[name] = 1  # HG110
    return to
def tail(name, *, to=[]):
    to.append(name)  # HG110
def copied(name, to=[]):
    to = list(to)
    to.append(name)
    return to
def read(name, to=[]):
    return name in to
@workflow.defn
def flow(seen: list[str] = [], plain: str = "", none: list[str] | None = None):
    seen.append("x")  # HG110
    seen += ["y"]  # HG110
    add("a"), tail("b"), copied("c"), read("d")
    own = []
    own.append(plain)
    none = none or []
    none.append("z")
""",
    "attributes by a name that is written there": """
import random, time
@workflow.defn
def flow(name: str, thing: object):
    a = getattr(random, "randint")(1, 6)  # HG102
    b = getattr(time, "time", None)()  # HG101
    c = getattr(thing, "time", None)
    d = getattr(thing, name)
""",
    "sets that are walked": """
from typing import AbstractSet
NAMES = frozenset(["a", "b"])
def tags() -> set[str]: ...
class Box:
    kinds: set[str]
    def __init__(self):
        self.seen = set()
@activity.defn
def send(values) -> None: ...
@workflow.defn
def flow(given: set[str], other: AbstractSet[int], box: Box, maybe: "set[str] | None", fine: list[str]):
    for each in {"a", "b"}:  # HG104
        print(each)
    for each in given:  # HG104
        print(each)
    for each in NAMES:  # HG104
        print(each)
    for each in given | other:  # HG104
        print(each)
    for each in tags().union(fine):  # HG104
        print(each)
    for each in box.seen:  # HG104
        print(each)
    for each in box.kinds:  # HG104
        print(each)
    for each in {"a": 1}.keys() - fine:  # HG104
        print(each)
    a = list(given)  # HG104
    b = tuple(given)  # HG104
    c = ",".join(given)  # HG104
    d = [x for x in given]  # HG104
    e = {x: 1 for x in given}  # HG104
    f = dict.fromkeys(maybe)  # HG104
    g, h = given  # HG104
    i = [*given]  # HG104
    j = given.pop()  # HG104
    k = next(iter(given))  # HG104
    m = f"{given}"  # HG104
    n = enumerate(given)  # HG104
    fine.extend(given)  # HG104
    workflow.map(send, given)  # HG104
    send(given)  # HG104
    send.start(given)  # HG104
    return given  # HG104
""",
    "sets that are only asked": """
@workflow.defn
def flow(given: set[str], names: list[str]):
    for each in sorted(given):
        pass
    total = sum(len(x) for x in given), max(given), any(x == "a" for x in given), len(given)
    more = {x.upper() for x in given}
    most = max(map(len, given)), sorted(list(given)), sorted(x for x in filter(None, given)), max(*given)
    both = {*given, *more, "z"}
    both.update(x + "!" for x in given)
    for each in given:
        if each != "a":
            both.add(each)
    if "a" in given and given == more:
        given.add("b")
        given.discard("c")
    given = sorted(given)
    for each in given:
        pass
    names = set(names)
    names = [x for x in sorted(names)]
    for each in dict.fromkeys(names):
        pass
    either = set(names) if total else list(names)
    for each in either:
        pass
    return sorted(more)
""",
    "globals that are changed": """
import itertools
count = 0
ticks = itertools.count()
seen = []
totals = {}
class Stats:
    runs = 0
    names = []
class State: ...
state = State()
@workflow.defn
class Flow:
    shared = []
    def __init__(self):
        self.own = []
    @workflow.run
    def run(self):
        global count
        count += 1  # HG110
        next(ticks)  # HG110
        seen.append(1)  # HG110
        totals["a"] = 1  # HG110
        del totals["a"]  # HG110
        Stats.runs += 1  # HG110
        Stats.names.append("x")  # HG110
        state.value = 3  # HG110
        self.shared.append(1)  # HG110
        self.own.append(1)
        local = []
        local.append(1)
""",
    "globals that others change": """
--- config.py
LIMITS = {"a": 1}
MODE = "fast"
NAMES = ["a"]
CONSTANT = {"b": 2}
def reload(new):
    global MODE
    LIMITS.update(new)
    MODE = new
--- elsewhere.py
import config
def later():
    config.NAMES.append("b")
--- flows.py
import config
from config import LIMITS, CONSTANT, MODE
@workflow.defn
def flow():
    a = LIMITS["a"]  # HG110
    b = config.NAMES  # HG110
    c = MODE  # HG110
    return CONSTANT["b"], config.CONSTANT
""",
    "tables that are built while modules are imported": """
HANDLERS = {}
TABLE = {}
def handler(name):
    def enter(fn):
        HANDLERS[name] = fn
        return fn
    return enter
def fill():
    for each in "abc":
        TABLE[each] = each.upper()
fill()
@handler("a")
def handle(): ...
@workflow.defn
def flow(name):
    HANDLERS[name]()
    return TABLE[name]
""",
    "values that each process makes for itself": """
import os
import random
import time
import uuid
STARTED = time.time()
ME = f"worker-{os.getpid()}"
TOKEN = uuid.uuid4().hex
STRICT = os.environ.get("STRICT") == "1"
FIXED = random.Random(7)
QUIET = os.environ.get("QUIET")  # hourglass: allow
@workflow.defn
def flow():
    a = STARTED  # HG111
    b = ME  # HG111
    c = TOKEN  # HG111
    if STRICT:  # HG111
        pass
    return FIXED, QUIET
""",
    "channels and the like are meant to be shared": """
decisions = workflow.Channel("decision", str)
@workflow.defn
def flow():
    return decisions.receive()
""",
    "locks of threads at the top of a module": """
import threading
lock = threading.Lock()
@workflow.defn
def flow():
    with lock:  # HG109
        pass
    lock.acquire()  # HG109
""",
    "caches": """
import functools
@activity.defn
def fetch(x): ...
@functools.lru_cache(maxsize=3)  # HG113
def cached(x):
    return inner(x)
def inner(x):
    return fetch(x)
@functools.cache
def pure(x):
    return x + 1
@workflow.defn
def flow():
    return cached(1) + pure(2)
""",
    "branches on replay and on log levels": """
import logging
logger = logging.getLogger(__name__)
@activity.defn
def note(x): ...
def told():
    note(1)
@workflow.defn
def flow():
    if not workflow.is_replaying():  # HG114
        note(1)
    if workflow.is_replaying() and True:  # HG114
        pass
    else:
        told()
    if not workflow.is_replaying():
        print("only a line in the log")
    if logger.isEnabledFor(logging.DEBUG):  # HG114
        workflow.sleep(1)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s", 1)
""",
    "collections that change during a loop": """
@activity.defn
def ship(x): ...
@workflow.defn
class Flow:
    def __init__(self):
        self.items = {}
        self.fixed = {}
        self.names = []
    @workflow.run
    def run(self):
        for name, item in self.items.items():  # HG115
            ship(item)
        for item in list(self.items.values()):
            ship(item)
        for item in self.items:
            print(item)
        for item in self.fixed:
            ship(item)
        for name in self.names:  # HG115
            self.step(name)
    def step(self, name):
        workflow.sleep(1)
    @workflow.signal
    def add(self, name):
        self.items[name] = 1
    @workflow.update
    def rename(self, name):
        self.names.append(name)
@workflow.defn
def flow():
    todo = []
    done = []
    @workflow.signal
    def add(item):
        todo.append(item)
        done = [item]
        done.append(item)
    for each in todo:  # HG115
        ship(each)
    for each in done:
        ship(each)
""",
}


@pytest.mark.parametrize("text", CASES.values(), ids=list(CASES))
def test_linter_reports_use_of_mutable_global_and_unordered_state(text: str, tmp_path: Path) -> None:
    assert findings_of(check_text(tmp_path, text)) == marked_findings(tmp_path)


def test_global_state_finding_names_the_line_that_changes_it(tmp_path: Path) -> None:
    (first, *_) = check_text(tmp_path, CASES["globals that others change"]).findings
    assert first.message == "it reads LIMITS, which config.py:8 changes while the program runs"
