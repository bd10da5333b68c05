"""Exception handlers that never catch what an activity or child raises (HG116), and handlers that may catch something
else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .project import check_text, findings_of, marked_findings

SHOP = """
import asyncio, json, logging
from dataclasses import dataclass
import httpx
from hourglass import aio
from hourglass.errors import ActivityError, ApplicationError, ChildWorkflowError, FailureError, HourglassError, TimedOutError
class Declined(Exception): ...
class Blocked(Declined): ...
class Refused(ApplicationError): ...
@activity.defn
def charge(order) -> str: ...
@activity.defn
async def acharge(order) -> str: ...
@workflow.defn
def child(order) -> str: ...
"""

FOUND = {
    "an activity": """
@workflow.defn
def flow(order):
    try:
        return charge(order)
    except Declined:  # HG116
        return "declined"
""",
    "several exceptions, each by itself": """
@workflow.defn
def flow(order):
    try:
        charge(order)
    except (Blocked,  # HG116
            Refused):  # HG116
        pass
    except Exception:
        raise
""",
    "one of Python's, of ours, of a package": """
@workflow.defn
def flow(order):
    try:
        charge(order.card)
    except ValueError:  # HG116
        pass
    except ApplicationError:  # HG116
        pass
    except TimedOutError:  # HG116
        pass
    except TimeoutError:  # HG116
        pass
    except httpx.HTTPError:  # HG116
        pass
""",
    "a child": """
@workflow.defn
def flow(order):
    try:
        child(order)
    except Declined:  # HG116
        pass
    try:
        workflow.execute_child_workflow(child, order)
    except Declined:  # HG116
        pass
""",
    "other ways to call": """
@workflow.defn
def flow(order, orders: list[str]):
    task = charge.start(order)
    try:
        charge.options(summary="x")(order)
    except Declined:  # HG116
        pass
    try:
        charge.local(order)
    except Declined:  # HG116
        pass
    try:
        task.result()
    except Declined:  # HG116
        pass
    try:
        charge.start(order).result()
    except Declined:  # HG116
        pass
    try:
        workflow.execute_activity("charge", order)
    except Declined:  # HG116
        pass
    try:
        workflow.map(charge, orders)
    except Declined:  # HG116
        pass
    try:
        workflow.step(print, order)
    except Declined:  # HG116
        pass
""",
    "helpers, and harmless things beside the call": """
@dataclass
class Note:
    text: str
class Money:
    def __init__(self, cents): self.cents = cents
def pay(order):
    return charge(order)
@workflow.defn
def flow(order: dict[str, str], seen: object):
    results = []
    try:
        for each in range(3):
            workflow.logger.info("%s", each)
            results.append(pay(order.get("card")))
        workflow.sleep(3)
        note = Note(str(len(results))), Money(3)
        print(f"{note} {workflow.now()}")
    except Declined:  # HG116
        pass
    try:
        results[0] + charge(Note("x").text)
    except (RuntimeError,  # HG116
            KeyError, ZeroDivisionError):
        pass
""",
    "where a class has it": """
@workflow.defn
class Flow:
    @workflow.run
    def run(self, order):
        try:
            self.pay(order)
        except Declined:  # HG116
            self.state = "declined"
    def pay(self, order):
        return charge(order)
""",
    "under another name, from another module": """
--- shop/__init__.py
--- shop/problems.py
class Declined(Exception): ...
--- shop/acts.py
from shop.problems import Declined
@activity.defn
def charge(order): raise Declined("no")
--- shop/flows.py
from shop.acts import charge
from shop import problems
from shop.problems import Declined as No
@workflow.defn
def flow(order):
    try:
        charge(order)
    except problems.Declined:  # HG116
        pass
    try:
        charge(order)
    except No:  # HG116
        pass
""",
    "awaited": """
@aio.workflow.defn
class Flow:
    @aio.workflow.run
    async def run(self, order):
        handle = aio.workflow.start_activity(acharge, order)
        try:
            await aio.workflow.execute_activity(acharge, order)
        except ApplicationError:  # HG116
            pass
        try:
            await handle
        except ApplicationError:  # HG116
            pass
        try:
            await asyncio.gather(*[aio.workflow.execute_activity(acharge, each) for each in order])
        except Declined:  # HG116
            pass
        try:
            await aio.workflow.execute_local_activity(acharge, order)
        except ApplicationError:
            pass
""",
}

HARMLESS = {
    "what wraps, and its bases": """
try:
    charge(order)
except ActivityError as error:
    print(error.cause)
try:
    charge(order)
except (ChildWorkflowError, FailureError, HourglassError):
    pass
try:
    charge(order)
except Exception:
    pass
try:
    charge(order)
except:
    raise
try:
    charge(order)
finally:
    pass
""",
    "a handler beside it that knows": """
try:
    charge(order)
except Declined:  # where nothing is wrapped: outside of a workflow
    pass
except ActivityError:
    pass
""",
    "what the call itself may raise": """
try:
    charge(order)
except TypeError:
    pass
try:
    charge(order)
except workflow.Cancelled:
    raise
try:
    charge(order)
except asyncio.CancelledError:
    raise
""",
    "raised beside the call": """
try:
    if order.late:
        raise Blocked("late")
    charge(order)
except Declined:
    pass
""",
    "raised by what unwraps": """
try:
    try:
        charge(order)
    except ActivityError as error:
        raise error.cause
except Declined:
    pass
""",
    "raised by a helper": """
def check(order):
    if not order: raise Declined("empty")
try:
    check(order)
    charge(order)
except Declined:
    pass
""",
    "raised by a function that is handed on": """
def check(order):
    if not order: raise Declined("empty")
try:
    list(map(check, order)), charge(order)
except Declined:
    pass
try:
    workflow.map(check, order), charge(order)
except Declined:
    pass
task = workflow.spawn(check, order)
try:
    charge(order), task.result()
except Declined:
    pass
try:
    charge(order), workflow.gather(*order)
except Declined:
    pass
""",
    "raised by an object": """
class Order:
    def __init__(self, order):
        if not order: raise Declined("empty")
    @property
    def card(self): raise Blocked("no card")
    def __enter__(self): raise Declined("closed")
    def __exit__(self, *all): ...
try:
    charge(Order(order))
except Declined:
    pass
made = Order(order)
try:
    charge(made.card)
except Declined:
    pass
try:
    with made:
        charge(order)
except Declined:
    pass
""",
    "raised by the operators of an object": """
class Cart:
    def __getitem__(self, name): raise Declined("no such item")
    def __iter__(self): raise Declined("closed")
    def __add__(self, other): raise Declined("full")
    @property
    def card(self): return 3
    @card.setter
    def card(self, value): raise Declined("no card")
cart = Cart()
try:
    charge(cart["lamp"])
except Declined:
    pass
try:
    for each in cart: charge(each)
except Declined:
    pass
try:
    charge(cart + order)
except Declined:
    pass
try:
    cart.card = charge(order)
except Declined:
    pass
""",
    "what the text does not tell": """
try:
    charge(order.checked())
except Declined:
    pass
try:
    charge.fn(order)
except Declined:
    pass
try:
    charge(order)
except order.Problem:
    pass
PROBLEMS = (ActivityError, ValueError)
try:
    charge(order)
except PROBLEMS:
    pass
NAME = ActivityError
try:
    charge(order)
except NAME:
    pass
""",
    "raised by plain code": """
try:
    charge(int(order))
except ValueError:
    pass
try:
    charge(order["card"])
except (KeyError, LookupError):
    pass
try:
    first, second = order
    charge(first)
except ValueError:
    pass
try:
    charge(1 / order)
except ZeroDivisionError:
    pass
try:
    assert order
    charge(order)
except AssertionError:
    pass
try:
    charge(json.loads(order))
except json.JSONDecodeError:
    pass
""",
    "time limits": """
try:
    with workflow.timeout(3):
        charge(order)
except TimeoutError:
    pass
try:
    workflow.wait_condition(lambda: order.ready, timeout=3)
    charge(order)
except TimeoutError:
    pass
try:
    workflow.wait_for(charge.start(order), 3)
except TimeoutError:
    pass
""",
    "no durable call": """
try:
    print(order)
except Declined:
    pass
try:
    task = charge.start(order)
except Declined:
    pass
""",
    "meant": """
try:
    charge(order)
except Declined:  # hourglass: allow HG116
    pass
""",
}


@pytest.mark.parametrize("text", FOUND.values(), ids=FOUND)
def test_linter_reports_handler_that_catches_only_the_cause_of_an_error(text: str, tmp_path: Path) -> None:
    report = check_text(tmp_path, text if text.lstrip().startswith("---") else f"{SHOP}{text}")
    assert findings_of(report) == marked_findings(tmp_path) != set()


@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_linter_ignores_handler_that_other_code_in_the_body_may_need(text: str, tmp_path: Path) -> None:
    body = "\n".join(f"    {line}" for line in text.strip().splitlines())
    assert findings_of(check_text(tmp_path, f"{SHOP}@workflow.defn\ndef flow(order):\n{body}\n")) == set()


def test_handler_finding_names_the_exception_to_catch(tmp_path: Path) -> None:
    text = (
        f"{SHOP}@workflow.defn\ndef flow(order):\n    try:\n        child(order)\n    except Declined: ...\n"
    )
    (finding,) = check_text(tmp_path, text).findings
    assert finding.message == (
        "the exception of a child workflow is the cause of a ChildWorkflowError, which `except Declined` does not catch"
    )
    assert "error.cause" in finding.rule.remedy
