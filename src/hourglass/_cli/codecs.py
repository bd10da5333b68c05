"""The codec of `--codec MODULE:OBJECT`: imports what the person at the command line named, never what a wire names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeGuard

from hourglass.errors import UsageError

if TYPE_CHECKING:
    from hourglass.converter import Codec

VARIABLE = "HOURGLASS_CODEC"


def codec_named(named: str | None) -> Codec | None:
    """The codec that is meant: what is named, else what the environment names, else none. Raises `UsageError`."""
    chosen = os.environ.get(VARIABLE) if named is None else named
    if not chosen:
        return None
    from hourglass._cli.loading import load_object

    found = load_object(chosen, "codec")
    made = found() if callable(found) and not _is_codec(found) else found
    if not _is_codec(made):
        raise UsageError(
            f"{chosen} is no codec: a codec has encode(payloads) and decode(payloads), "
            "and what is named is one, or makes one when it is called"
        )
    return made


def _is_codec(found: Any) -> TypeGuard[Codec]:
    """A codec, not a class of them."""
    named = (getattr(found, each, None) for each in ("encode", "decode"))
    return not isinstance(found, type) and all(callable(each) for each in named)
