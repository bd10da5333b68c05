"""What remembers runs, and what can be found in it.

A store is what implements `store.Store`. There are two: in memory (`memory`), and in one SQLite file (`sqlite`, over all
that stands below `memory`). Lists and counts are SQLite's in both: over the file, or over an index in memory.

search_attributes  their types, payloads as values that can be compared, what an engine takes
store              the interface between the engine, which decides, and a store, which remembers
filters            Temporal's list filters: the text of one as data
filter_sql         a filter as SQL
visibility         the list of runs, kept in SQLite
list_reader        lists and counts, on threads and connections of their own
memory             the store in memory
fork_safety        no fork in the middle of SQLite's work
disk_faults        what can go wrong with the file, and what it means
database           opening a file, its tables and formats, copies of it
records            runs, events and schedules as rows
file_reads         the reads of a file; a file that can only be read now, for want of room on its disk
writer             batches of changes into the tables
commit_thread      the thread that commits what was queued while the last commit ran
sqlite             the durable store
"""
