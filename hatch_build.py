"""Build hook that makes the links of the README absolute for the package index.

In the repository, links and images of the README are relative, so that they work in every checkout. The package index does not
host the files of the repository: there the links point to the repository URL, `Source` in `[project.urls]`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[(?:[^\[\]]|\\.)*\])\((?!https?://|mailto:|#)([^)\s]+)\)")


def absolute(readme: str, repository: str) -> str:
    """Return the README with absolute links: images link to the raw file, everything else to its page."""

    def replace(match: re.Match[str]) -> str:
        picture, label, path = match.groups()
        view = "raw" if picture else "blob"
        return f"{picture}{label}({repository}/{view}/main/{path.removeprefix('./')})"

    return _LINK.sub(replace, readme)


class ReadmeHook(MetadataHookInterface):
    """Metadata hook that sets the `readme` of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme to README.md with absolute links."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, metadata["urls"]["Source"]),
        }
