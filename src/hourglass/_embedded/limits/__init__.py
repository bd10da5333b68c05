"""Limits of `hourglass.limits`, kept by the engine itself.

bursts   debounced calls: the calls of one key become one workflow, later
keepers  slots and throttles, by key
"""
