"""Text from files and users, for a terminal: escape sequences are shown, not obeyed."""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """The text with every letter that is not printable, the end of a line too, as JSON writes it: \\u001b."""
    return text if text.isprintable() else "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(letter: str) -> str:
    return json.dumps(letter)[1:-1] if ord(letter) != 0x7F else "\\u007f"
