"""Schedules and cron strings.

calendars    calendar specs as sets of days and of seconds of a day
times        the times of a schedule's spec, or of a cron string
transitions  a schedule as data, and its pure transitions as time passes
scheduler    the processing of each schedule when it is due, and a thread that computes the times of large schedules
"""
