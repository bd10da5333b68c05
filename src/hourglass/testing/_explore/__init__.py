"""`env.explore`: a workflow under many orders of events and faults, and the smallest failing order as a story.

    choices     pure: the options of a choice, the choices of an order, an order as a short string
    search      pure: the orders to try, all small deviations first; the smallest order that still fails
    arrivals    signals, updates and calls from outside
    properties  the properties that every order must satisfy
    driver      reads the options from the engine, and carries out the choices, one step at a time
    story       an order as numbered lines; events, commands and times as text
    explorer    runs one order after another, each in its own environment; counts of orders, choices and states

An order is determined only by its choices, and does not depend on clocks, hashes or threads.
"""
