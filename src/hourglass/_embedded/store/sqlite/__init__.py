"""The durable store: one SQLite file. Nothing outside of this package knows SQLite, but for those who choose it.

filter_sql     a filter as SQL
visibility     the list of runs, kept in SQLite
list_reader    lists and counts, on threads and connections of their own
listing        lists of runs that are kept in memory
disk_faults    what can go wrong with the file, and what it means
inherited      connections that are open, and a child that must leave them alone
database       opening a file, its tables and formats, copies of it
log_mark       a mark on the log that names the database that it belongs to
file_watch     whether the file, its log and the log's index are still those that were opened; what is saved if not
records        runs, events and schedules as rows
file_reads     the reads of a file; a file that can only be read now, for want of room on its disk
writer         batches of changes into the tables
commit_thread  the thread that commits what was queued while the last commit ran; which changes are durable
store          the store itself: what the engine asks for, over all of these
"""
