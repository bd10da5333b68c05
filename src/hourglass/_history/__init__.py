"""Temporal's history as typed data. Pure.

events    each kind of event once, as frozen data
json      a history in Temporal's JSON form
encoding  stored bytes: MessagePack
"""
