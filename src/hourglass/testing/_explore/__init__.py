"""`env.explore`: a workflow under many orders of events and faults, and the smallest failing order as a story.

    options     pure: the steps that can happen next
    tokens      pure: an order as a short string
    choices     pure: the choices of an order
    search      pure: the orders to try; all small deviations first
    shrinking   pure: the smallest order that still fails
    arrivals    signals, updates and calls from outside
    possible    the options of the next choice, the default option first
    properties  the properties that every order must satisfy
    driver      carries out the choices, one step at a time
    wording     events, commands and times as text
    story       an order as numbered lines
    orders      a single order in its own environment
    coverage    counts of orders, choices and states, and the progress line
    explorer    runs one order after another

An order is determined only by its choices, and does not depend on clocks, hashes or threads.
"""
