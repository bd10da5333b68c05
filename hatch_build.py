"""Build hook: the README as the package index shows it.

In the repository the README's links and pictures are relative, so that they work in every checkout. The package index knows no
files of the repository: there they lead to the repository's address, which is `Source` of `[project.urls]`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[(?:[^\[\]]|\\.)*\])\((?!https?://|mailto:|#)([^)\s]+)\)")


def absolute(readme: str, repository: str) -> str:
    """Return the text with its relative links made absolute: pictures to their raw files, everything else to its page."""

    def replace(match: re.Match[str]) -> str:
        picture, label, path = match.groups()
        view = "raw" if picture else "blob"
        return f"{picture}{label}({repository}/{view}/main/{path.removeprefix('./')})"

    return _LINK.sub(replace, readme)


class ReadmeHook(MetadataHookInterface):
    """Sets the `readme` of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Read README.md, and make its links absolute."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, metadata["urls"]["Source"]),
        }
