"""Temporal's history as typed data. Pure.

events    the kinds of history events, as frozen data
codec     the conversion of a history to and from Temporal's JSON form
tables    the name and the shape of each field in JSON, as one table
shapes    the JSON form of values
times     the JSON form of times and durations
encoding  the stored form of events: MessagePack
walk      the division of a history into workflow tasks, and the rules that a valid history follows
words     the commands that lead to each event, and events described in the words of commands
dialect   the kind of SDK that wrote a history
"""
