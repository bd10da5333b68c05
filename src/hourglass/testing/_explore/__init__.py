"""`env.explore`: a workflow under many orders of events and mishaps, and the smallest one that breaks it, as a story.

    choices     pure: what can happen next, the choices of one order, and an order as a short text
    search      pure: which orders to try, all small deviations first; the smallest one that still fails
    possible    what can happen next, the usual thing first: what comes from outside, and what befalls activities
    properties  what must hold, and what of it does not
    driver      does what was chosen, one thing after another
    story       an order in words
    explorer    one order after another, each in an environment of its own; what was covered, and the progress line

An order is decided by its choices alone: no clock, no hash, no thread has a say.
"""
