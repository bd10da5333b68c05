"""What clients ask of the engine. Answers and refusals leave only when what they rest on is durable.

answering          what all handlers share: the run that is meant, the answer, the wait for something
worker_requests    workers: their versions and pollers, attempts ended from outside, progress
activity_requests  activities without a workflow; pauses and options of any
update_requests    updates
schedule_requests  schedules
view_requests      descriptions, lists, counts, histories: what changes nothing
requests           all others, and the table of handlers
connection         a connection to an engine in this process
"""
