"""Time and waking.

clock           now, and later: real, or virtual for tests
naps            many timers as one
patience        what is overdue
bell            rings for whoever waits
"""
