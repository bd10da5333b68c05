"""The limits of `hourglass.limits` that the engine itself enforces.

bursts   debounced calls: the calls of a key become one later workflow
keepers  slots and throttle turns, by key
"""
