"""Wrong uses of `hourglass.testing`: each line that ends in `# E` must be reported. Read by the checkers, never run."""

from __future__ import annotations

from good_testing_uses import Cart, charge, checkout, decisions, fetch

from hourglass.testing import ActivityEnvironment, Environment


def takes_nothing() -> str:
    return ""


def returns_a_number(order_id: str, cents: int = 0) -> int:
    return 1


def use_environment(env: Environment) -> None:
    env.execute_workflow(checkout, 5)  # E
    env.execute_workflow(checkout, "o-1", identity="x")  # E
    env.start_workflow(Cart.run)  # E
    env.start_workflow(checkout, "o-1", start_delay="soon")  # E
    handle = env.start_workflow(checkout, "o-1")
    env.after("three days")  # E
    env.after(days="3")  # E
    env.after(day=3)  # E
    env.after(days=3).signal(handle, decisions, 5)  # E
    env.after(days=3).signal(handle, Cart.add, 5)  # E
    env.after(days=3).signal("handle", "add")  # E
    env.after(days=3).cancel("handle")  # E
    env.after(days=3).call(takes_nothing, 5)  # E
    env.at("tomorrow")  # E
    env.skip("a day")  # E
    env.skip(day=3)  # E
    env.calls(takes_nothing)  # E
    env.fake(charge, takes_nothing)  # E
    env.fake(charge, raise_=OSError("x"))  # E
    env.fake(charge, returns_a_number)  # E
    env.fake(charge, raises="oops")  # E
    env.fake(takes_nothing, returns="x")  # E
    env.fake(charge, returns="x", takes="long")  # E
    Environment(verify="sometimes")  # E
    Environment(chooser=5)  # E


def use_activities(env: ActivityEnvironment) -> None:
    env.run(charge, 5)  # E
    env.run(fetch)  # E
