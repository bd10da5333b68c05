"""Matching: task queues, and the assignment of tasks to workers.

priority_queue     the backlog of one queue, by priority and fairness
pollers            a task queue, its workers with their slots, and the choice among them
task_queues        what is added to the backlog of each queue, and when it is assigned
deployments        worker versions, and which worker may receive which task
task_dispatch      workflow tasks and queries, between runs and workers
activity_dispatch  attempts of activities, between runs and workers
update_dispatch    updates, from clients to workers and back
"""
