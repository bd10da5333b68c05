"""Core's part, for one worker: histories become activations, a worker's commands become answers to its tasks.

outcomes          what became of the activities, timers and updates that a run asked for
child_outcomes    the same of children, and of what was sent to other workflows
local_activities  the same of local activities, and the decisions about one
matching          a worker's commands with the events that they led to
cursor            walks a history and turns it into activations
activity_slots    the attempts that one handle has taken, and their heartbeats
local_attempts    the attempts of local activities
cache             the runs that one worker knows, and what is out for each
handle            both polls of a worker, and the ends of what it was given
"""
