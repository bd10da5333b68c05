"""The requests of clients. Answers and rejections are sent only when the changes that they depend on are durable.

answering          parts shared by all handlers: finding the run, answering, waiting
worker_requests    workers: versions and pollers, attempts completed by clients, progress
activity_requests  standalone activities; pauses and options of any activity
update_requests    updates
schedule_requests  schedules
view_requests      read-only requests: descriptions, lists, counts, histories
requests           all other requests, and the table of handlers
connection         a connection to an engine in this process
"""
