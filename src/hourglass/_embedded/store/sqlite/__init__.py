"""The durable store: one SQLite file. Only this package, and code that selects it, depends on SQLite.

filter_sql     filters as SQL
visibility     the index for lists of runs
list_reader    lists and counts, on separate threads and connections
listing        lists of runs that are kept in memory
disk_faults    failures of the file and the reaction to each
inherited      open connections, and their protection in a forked child
tables         the tables and formats of a file
copies         copies of a database in use
database       opening or creating a file, and its connections
log_mark       a mark on the write-ahead log that identifies its database
file_watch     checks that the file, its log and the log's index are still those that were opened; rescue
records        runs, events and schedules as rows
file_reads     the read methods for a file; a read-only store for a file whose disk is full
run_rows       the rows of all tables about runs, written by few statements
batches        the changes of a commit, merged and as rows
writer         writes batches, in one transaction each
commit_thread  the thread that commits queued changes
commit_sink    the work of this thread on the file: commits, deletions, checkpoints
durability     the durability of changes, and the calls that wait for it
store          the store itself, composed of these parts
"""
