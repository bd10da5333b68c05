"""What a run did, as a story: a history in, spans and waits out, and pictures of them. Pure: no clock, file or network.

The map: `reading` makes events of JSON; `timeline` makes a `Story` of events, with `steps` and `messages` as its tables, `faults`
for failures, `attempts` for retries, `waits` for what the run waited for, `values` for payloads. `folding` makes many spans few.
`axis` is where a moment stands, long waits cut short; `columns` what is seen of a span there. `terminal` draws with characters,
`svg` and `html` for a browser or paper, `document` for programs.

Why a run stands as it does: `reasons` makes a `diagnosis` of a story and of what others tell about the run, with `reasons_tasks`,
`reasons_steps` and `reasons_closed` as its parts, `stacks` for the lines that code stands at, `advice` for what to do.

Knows Temporal's JSON form of a history and nothing of clients, engines or consoles.
"""
