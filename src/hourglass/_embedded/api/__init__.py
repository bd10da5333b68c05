"""The requests of clients. Answers and rejections leave only when the changes behind them are durable.

answering          shared by all handlers: finding the run, answering, waiting
worker_requests    workers: versions and pollers, attempts completed by clients, progress
activity_requests  activities without a workflow; pauses and options of any activity
update_requests    updates
schedule_requests  schedules
view_requests      read-only requests: descriptions, lists, counts, histories
requests           all other requests, and the table of handlers
connection         a connection to an engine in this process
"""
