"""Stores: the persistent data of the embedded engine, and the lists and filters over it.

A store implements `store.Store`. There are two: in memory (`memory`), and in one SQLite file (`sqlite`). docs/stores.md
describes the requirements of another one; `tests/embedded/store/store_conformance.py` checks them.

search_attributes  search attributes: their types, values for comparison, validation
store              the interface between the engine and a store
filters            Temporal's list filters: parsed into data
fork_safety        a lock that prevents forks during the work of a store
memory             the store in memory
sqlite             the durable store in one SQLite file; also lists over memory
"""
