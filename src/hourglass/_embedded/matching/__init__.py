"""Matching: task queues, and the assignment of tasks to handles.

priority_queue  the tasks of one queue, by priority and fairness
task_queues     the backlog of all queues, and the handles that can receive from them
deployments     worker versions, and which worker may receive which task
dispatch        tasks, queries, attempts and updates between runs and handles
"""
