"""The `hourglass` command.

The map: `app` knows all commands by name and loads the one that is asked for; each command is one file with one function, whose
signature is its options; `loading` imports what people name on the command line; `console` is what they see; `logs` is how a
worker logs; `connecting` finds the engine, with the codec of `codecs`; `serving` is the worker of `hourglass worker`,
`dev_worker` that of `hourglass dev`, which `reloading` replaces; `telling` and `why_facts` ask what `show` and `why` tell,
through `unsealing` where a codec is set. What a history alone does not say, `why_limits` (slots that others hold), `why_added` (a
pause, a local activity) and `why_absent` (an id of no workflow) add.

Loading this package, or asking for help, loads neither Temporal's libraries nor our engine: a command imports what it needs when
it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        from hourglass._cli.app import prepare_program, run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write(
            "the hourglass command needs two more packages: pip install 'hourglass-temporal[cli]'\n"
        )
        return 1
    if arguments is not None:
        return run(list(arguments))
    prepare_program()
    return run(sys.argv[1:])
