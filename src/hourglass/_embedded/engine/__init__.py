"""The engine: applies steps, lets time pass, is ahead of its store. Thin.

engine                              all of these put together
ledger, record, alarms, together, others, awaiting      runs in memory, and what they do to each other
offers, task_desk, update_desk, attempt_desk, schedule_desk, upkeep     who takes what, and when
activity_tasks, queries, starting   what is handed out, asked and begun
attributes                          which search attributes there are, of which types
deployments                         which versions of workers there are, which is current
unserved                            waits that nobody would end
"""
