"""Text from files and users, for a terminal: escape sequences are shown, not obeyed."""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """The text with every letter that is not printable, the end of a line too, as JSON writes it: \\u001b."""
    escaped = (each if each.isprintable() else json.dumps(each)[1:-1].replace("\x7f", "\\u007f") for each in text)
    return text if text.isprintable() else "".join(escaped)
