"""Where the runtime meets an engine: protocols and plain data, no engine.

`handle` is what a worker needs (poll, complete), `service` what a client needs (requests, answers), `connection` binds the
two for one target and namespace. Temporal and the embedded engine implement them; nothing above knows which one it has.
"""
