"""Names and texts that somebody else has given, as they can be printed and written."""

import os


def printable(text: str) -> str:
    """Returns the text with ? for control characters, because it may come from a file that somebody else has made."""
    return "".join(c if c.isprintable() else "?" for c in text)


def as_text(path: str) -> str:
    """Returns a path as a text that can be written to a file. A byte that is not UTF-8 becomes its number."""
    return os.fsencode(path).decode(errors="backslashreplace")
