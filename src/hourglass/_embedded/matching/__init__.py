"""Matching: task queues, and the assignment of tasks to workers.

priority_queue     the backlog of one queue, by priority and fairness
pollers            a task queue, its workers with their slots, and the choice among them
task_queues        additions to the backlog of each queue, and the moment at which tasks are assigned
deployments        worker versions, and the rules for which worker may receive which task
task_dispatch      workflow tasks and queries, between runs and workers
activity_dispatch  activity attempts, between runs and workers
update_dispatch    updates, between clients and workers
"""
