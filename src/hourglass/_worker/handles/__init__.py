"""The BridgeHolder: owner of every handle of one Application, and the parts that open, watch and end its handles.

It knows engines only by `_contract`. Lowest first:

    calls      one timer for all calls that take too long, a condition, a timeout that costs nothing where there is no limit
    inbox      the items of one kind from one handle: passed to a receiver in the same turn, or kept for the next one
    life       the life of a handle and its limits, pure: which state follows which, and the next step of a draining handle
    handles    the record of a handle with the book of the items in flight: by run id and by task token, which job works on
               each and under which token it may be completed; registrations; the tables that outlive the holder
    sending    completions on their way to an engine: fenced, in order per run, never cancelled
    draining   the end of a handle
    registrar  registrations begin, get their handles, have them replaced, and end
    holder     `BridgeHolder`
    codec_edge a codec around a handle: payloads are decoded before the worker sees them, and encoded before the
               engine does
"""
