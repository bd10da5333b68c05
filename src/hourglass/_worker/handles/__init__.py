"""The BridgeHolder: owner of every handle of one Application, and what keeps its handles honest.

It knows engines only by `_contract`. Lowest first:

    calls      calls that begin at once, one timer for all that take too long, a condition
    poll_line  one kind of poll on one handle: it owns the raw poll, and gives what comes to a receiver in the same turn
    life       the life of a handle and its limits, pure: which state follows which, what one that drains needs next
    handles    the record of a handle with the book of what is in flight: by run id and by task token, who has it and
               under which token it may be completed; registrations; the tables that outlive the holder
    sending    completions on their way to an engine: fenced, in order per run, never cancelled
    draining   the end of a handle
    registrar  registrations begin, get their handles, have them replaced, and end
    holder     `BridgeHolder`
    codec_edge a codec around a handle: payloads are decoded before the worker sees them, and encoded before the
               engine does
"""
