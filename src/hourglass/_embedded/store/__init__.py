"""What remembers runs, and what can be found in it.

store, memory_store, read_only_store    the seam, the one in memory, and a file that cannot be written
sqlite_store, database, schema, stored_form, stored_reads, stored_steps, stored_schedules       the one in a file
store_thread, coalesce, batch_writer, written_runs, durability, disk_faults, known_ids   how it is written, what may fail
inherited, standstill, file_copy, backup    forks, and copies of a file in use
listing, visibility, memory_listing, list_reader         the lists, and the threads that make them
filter_tokens, filters, filter_sql, attribute_values        the list filter language
"""
