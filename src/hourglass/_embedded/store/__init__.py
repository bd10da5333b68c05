"""What remembers runs, and what can be found in it.

A store is what implements `store.Store`. There are two: in memory (`memory`), and in one SQLite file (`sqlite`). What another one
needs is on a page of the manual (docs/stores.md), and held by `tests/embedded/store_conformance.py`.

search_attributes  their types, payloads as values that can be compared, what an engine takes
store              the interface between the engine, which decides, and a store, which remembers
filters            Temporal's list filters: the text of one as data
fork_safety        no fork in the middle of a store's work
memory             the store in memory
sqlite             the durable store: one SQLite file; and lists, in memory too
"""
