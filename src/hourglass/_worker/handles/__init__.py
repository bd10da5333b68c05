"""The BridgeHolder: owner of every handle of one Application, and the parts that open, watch and end its handles.

The package knows engines only through `_contract`. Lowest first:

    calls      a shared timer for overdue calls, a condition variable, a timeout that costs nothing without a limit
    inbox      the items of one kind from one handle: passed to a receiver immediately, or kept for the next one
    life       the life cycle of a handle and its limits, pure: state transitions, and the next step of a draining handle
    handles    the record of a handle with the books of its open items (by run id and by task token, each with its job and
              its fencing token); registrations; the tables that outlive the holder
    sending    completions on their way to an engine: fenced, in order per run, never cancelled
    draining   the drain of a handle, until it is closed or abandoned
    registrar  registrations of task queues: begins and ends them, and opens and replaces their handles
    holder     `BridgeHolder`
    codec_edge a codec between a handle and its worker: payloads are decoded before the worker sees them, and encoded
               before the engine sees them
"""
