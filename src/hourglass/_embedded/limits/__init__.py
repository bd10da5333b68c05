"""Limits of `hourglass.limits` that the engine itself enforces.

bursts   debounce: the calls of one key become one later workflow
keepers  slots and throttles, by key
"""
