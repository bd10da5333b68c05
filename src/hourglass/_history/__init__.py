"""Temporal's history as typed data. Pure.

events    each kind of event once, as frozen data
codec     a history to and from Temporal's JSON form
tables    the name and the shape of each field in that form, by one table
shapes    how values stand in that form
times     moments and durations in that form
encoding  stored bytes: MessagePack
walk      a history walked task by task, and the rules that it keeps
words     which commands lead to which events, and these in the words of the commands
dialect   which SDK wrote a history
"""
