"""`env.explore`: a workflow under many orders of events and mishaps, and the smallest one that breaks it, as a story.

    options     pure: what can happen next, and of which sort it is
    choices     pure: the choices of one order, by a script, by chance, or the usual ones
    search      pure: which orders to try: all small deviations first, then by chance
    shrink      pure: the smallest order that still fails
    tokens      pure: an order as a short text
    mishaps     what may befall activities, as the author says
    arrivals    what comes from outside, at any time or in a window
    properties  what must hold, and what of it does not
    possible    what can happen next, the usual thing first
    queue, driver       thin: one order, in an environment of its own
    wording, story      an order in words
    order       one order from its beginning to its end
    coverage    what was covered, and the progress line
    explorer    all of these put together

An order is decided by its choices alone: no clock, no hash, no thread has a say.
"""
