"""PURE: how a plain function becomes durable.

Events in, commands out. Nothing here knows asyncio, a clock, a file, a network or Temporal's classes; randomness comes
from the run's seed. Reading order: `events`, `commands`, `state`, `scheduler`, `fibers`, `context`, `body`, `evaluator`.
"""
