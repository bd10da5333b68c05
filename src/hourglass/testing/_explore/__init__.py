"""`env.explore`: a workflow under many orders of events and mishaps, and the smallest failing order as a story.

    options     pure: the steps that can happen next
    tokens      pure: an order as a short string
    choices     pure: the choices of one order
    search      pure: the orders to try; all small deviations first
    shrinking   pure: the smallest order that still fails
    arrivals    signals, updates and calls from outside
    possible    the options of the next choice, the usual one first
    properties  the properties that every order must keep
    driver      carries out the choices, one step at a time
    wording     events, commands and times as text
    story       an order as numbered lines
    orders      one order in an environment of its own
    coverage    counts of orders, choices and states, and the progress line
    explorer    one order after another

An order is determined by its choices alone, and not by clocks, hashes or threads.
"""
