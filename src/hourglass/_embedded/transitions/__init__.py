"""What follows from what happened: `(run, occurrence, now) -> Step`. Pure. The rules are a Temporal server's.

run             a run as the engine knows it: frozen data that follows from its history, and what it is tied to
limits          how large things may grow, in Temporal's words
draft           the pen of a transition: writes events, keeps the run in step; what begins when a worker takes work
problems        what lists say of a run whose workflow task keeps failing
versioning      which version of worker a run belongs to
activities      decisions about one activity: when it is due, whether it is tried again, how it ended
standalone      an activity that belongs to no workflow, as a run of its own kind
steps           the two steps that most runs take most of the time, each in one piece
calendars       the times that calendars name, as sets of days and of seconds of a day
schedule_times  when a schedule, or a workflow with a cron string, acts
children        what happens between a run and others: children, signals, the run that follows (continue-as-new, retry, cron)
updates         the updates of one run
command_checks  which of a worker's commands cannot be accepted, and why
tasks           a worker's handling of a workflow task: start, answer, failure, timeout
transitions     what happens from outside, from time passing, and from a crash
resetting       a run begins anew from a task of another
schedules       a schedule, and what it does as time passes
"""
