"""Call paths from a workflow through a project: calls that the linter follows, boundaries, and the path in a finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from hourglass._tools.lint import check

from .project import check_text, findings_of, marked_findings, write_project

CASES = {
    "a function of the same file": """
import time
def now():
    return time.time()  # HG101
@workflow.defn
def flow():
    return now()
""",
    "two calls in other modules, with aliases": """
--- shop/__init__.py
--- shop/flows.py
from shop.prices import price as p
@workflow.defn
def flow():
    return p()
--- shop/prices.py
from . import deep as d
def price():
    return d.inner.clock()
--- shop/deep/__init__.py
from . import inner
--- shop/deep/inner.py
import time
def clock():
    return time.time()  # HG101
""",
    "import of a package's module by its full name": """
--- shop/__init__.py
--- shop/tools.py
import time
def now():
    return time.time()  # HG101
--- flows.py
import shop.tools
@workflow.defn
def flow():
    return shop.tools.now()
""",
    "a package without a file of its own": """
--- shop/tools.py
import time
def now():
    return time.time()  # HG101
--- flows.py
from shop import tools
@workflow.defn
def flow():
    return tools.now()
""",
    "through a star": """
--- tools.py
import time
def now():
    return time.time()  # HG101
--- flows.py
from tools import *
@workflow.defn
def flow():
    return now()
""",
    "the decorator comes from elsewhere": """
--- base.py
from hourglass import workflow as wf
durable = wf.defn
--- flows.py
import time
from base import durable, wf
@durable
def one():
    time.time()  # HG101
@wf.defn(name="two")
def two():
    time.time()  # HG101
""",
    "a decorator of the project makes workflows": """
import time
def entered(name):
    def enter(fn):
        return workflow.defn(name=name)(fn)
    return enter
@entered("x")
def flow():
    time.time()  # HG101
def plain():
    time.time()  # HG101
defined = workflow.defn(plain)
""",
    "a class with all its handlers": """
import time
@workflow.defn
class Cart:
    def __init__(self):
        time.time()  # HG101
    @workflow.run
    def run(self):
        self.step()
    def step(self):
        time.time()  # HG101
    @workflow.signal
    def add(self):
        time.time()  # HG101
    @workflow.query
    def total(self):
        time.time()  # HG101
    @workflow.update(name="x")
    def change(self):
        time.time()  # HG101
    @change.validator
    def check(self):
        time.time()  # HG101
    def unused(self):
        time.time()
""",
    "inherited and overridden methods": """
import time
class Base:
    @workflow.run
    def run(self):
        self.step()
        self.kept()
    def step(self):
        time.time()
    def kept(self):
        time.time()  # HG101
@workflow.defn
class Flow(Base):
    def step(self):
        super().kept()
        time.monotonic()  # HG101
""",
    "local handlers": """
import time
@workflow.defn
def flow():
    @workflow.signal
    def poke():
        time.time()  # HG101
    @workflow.query(name="q")
    def ask():
        time.time()  # HG101
    workflow.sleep(1)
""",
    "functions that are handed on": """
import functools
import time
def a():
    time.time()  # HG101
def b(item):
    time.time()  # HG101
def c():
    time.time()  # HG101
def d(x):
    return time.time()  # HG101
def e():
    time.time()  # HG101
@workflow.defn
def flow():
    workflow.spawn(a)
    workflow.map(b, [1])
    workflow.wait_condition(functools.partial(c))
    sorted([1], key=d)
    workflow.gather(workflow.spawn(lambda: e()))
""",
    "functions in tables": """
import time
def a():
    time.time()  # HG101
def b():
    time.time()  # HG101
STEPS = {"a": a}
@workflow.defn
def flow(name):
    STEPS[name]()
    for step in [b]:
        step()
""",
    "objects of classes of the project": """
import time
from dataclasses import dataclass, field
class Clock:
    def __init__(self):
        self.began = time.time()  # HG101
    def now(self):
        return time.time()  # HG101
    @property
    def age(self):
        return time.time()  # HG101
    def __enter__(self):
        return time.monotonic()  # HG101
    def __exit__(self, *args): ...
    def __call__(self):
        return time.time_ns()  # HG101
@dataclass
class Order:
    at: float = field(default_factory=time.time)  # HG101
    def touch(self):
        time.time()  # HG101
def make() -> Order:
    return Order()
@workflow.defn
def flow(order: Order, orders: list["Order"]):
    clock = Clock()
    clock.now()
    clock.age
    clock()
    with clock:
        pass
    make().touch()
""",
    "annotated parameters and elements": """
import time
class Order:
    def a(self):
        time.time()  # HG101
    def b(self):
        time.time()  # HG101
    def c(self):
        time.time()  # HG101
    def d(self):
        time.time()
@workflow.defn
def flow(one: "Order | None", many: list[Order], named: dict[str, Order], unknown):
    one.a()
    for each in many:
        each.b()
    named["x"].c()
    unknown.d()
""",
    "decorators of the project around what is called": """
import functools
import time
def timed(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        time.time()  # HG101
        return fn(*args)
    return wrapper
def again(times):
    time.time()
    def decorate(fn):
        time.time()
        def wrapper(*args):
            time.sleep(times)  # HG103
        return wrapper
    return decorate
@timed
@again(3)
def step(): ...
@workflow.defn
def flow():
    step()
""",
    "children and activities are boundaries": """
import time
@workflow.defn
def child():
    return time.time()  # HG101
@activity.defn
def work():
    return time.time()
class Acts:
    @activity.defn
    def method(self):
        return time.time()
acts = Acts()
@workflow.defn
def parent():
    child()
    child.start()
    workflow.execute_activity(work)
    workflow.spawn(work)
    acts.method()
""",
    "a function that calls itself, and modules that import each other": """
--- a.py
import b
def ping(n):
    return b.pong(n)
@workflow.defn
def flow():
    ping(3)
--- b.py
import time
import a
def pong(n):
    time.time()  # HG101
    return a.ping(n - 1)
""",
    "what functions and lambdas give back": """
import time
class Clock:
    def now(self):
        return time.time()  # HG101
def make():
    return Clock()
@workflow.defn
def flow():
    made = (lambda: Clock())()
    made.now()
    make().now()
""",
    "functions that call each other with many meanings": """
import time
def a(x):
    return b(x) or c(x) or a(x)
def b(x):
    return a(x) or c(x) or b(x)
def c(x):
    return a(x) or b(x) or [a(x), b(x), c(x)] or time.time()  # HG101
@workflow.defn
def flow():
    a(1)
""",
    "a workflow inside a function": """
import time
def make():
    @workflow.defn
    def flow():
        time.time()  # HG101
    return flow
""",
}


@pytest.mark.parametrize("text", CASES.values(), ids=list(CASES))
def test_linter_follows_calls_through_the_project(text: str, tmp_path: Path) -> None:
    assert findings_of(check_text(tmp_path, text)) == marked_findings(tmp_path) != set()


def test_finding_contains_every_call_from_the_workflow(tmp_path: Path) -> None:
    text = CASES["two calls in other modules, with aliases"]
    (finding,) = check_text(tmp_path, text).findings
    assert [(step.function, step.file, step.line) for step in finding.path] == [
        ("flow", "shop/flows.py", 4),
        ("price", "shop/flows.py", 5),
        ("clock", "shop/prices.py", 4),
    ]
    assert finding.workflow == "flow"


def test_finding_reached_by_several_paths_shows_the_shortest(tmp_path: Path) -> None:
    text = """
import time
def now():
    time.time()
def longer():
    now()
@workflow.defn
def flow():
    longer()
    now()
"""
    (finding,) = check_text(tmp_path, text).findings
    assert [step.function for step in finding.path] == ["flow", "now"]


def test_check_of_one_file_follows_calls_into_other_files(tmp_path: Path) -> None:
    """It reports only what workflows of that file reach."""
    write_project(
        tmp_path,
        """
--- flows.py
from helpers import now
@workflow.defn
def flow():
    now()
--- helpers.py
import time
def now():
    return time.time()
--- other.py
import time
@workflow.defn
def other():
    time.time()
""",
    )
    report = check([tmp_path / "flows.py"], base=tmp_path)
    assert findings_of(report) == {("helpers.py", 4, "HG101")}
    assert (report.files, report.workflows) == (1, 1)


def test_linter_resolves_modules_below_src(tmp_path: Path) -> None:
    text = """
--- src/shop/__init__.py
--- src/shop/clock.py
import time
def now():
    return time.time()  # HG101
--- tests/flows.py
from shop.clock import now
@workflow.defn
def flow():
    now()
"""
    assert findings_of(check_text(tmp_path, text)) == marked_findings(tmp_path)


def test_linter_does_not_follow_calls_into_hourglass(tmp_path: Path) -> None:
    text = """
--- hourglass/__init__.py
--- hourglass/workflow.py
import time
def sleep(seconds):
    time.sleep(seconds)
--- app.py
@workflow.defn
def flow():
    workflow.sleep(3)
"""
    report = check_text(tmp_path, text)
    assert findings_of(report) == set()
    assert report.workflows == 1
