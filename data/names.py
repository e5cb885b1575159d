"""How names, lines and numbers are printed. Somebody else may have chosen a name, so it can hold any characters."""

import os
import sys

from tqdm import tqdm


def printable(text: str) -> str:
    """Returns the text with ? for control characters, because it may come from a file that somebody else has made."""
    return "".join(c if c.isprintable() else "?" for c in text)


def as_text(path: str) -> str:
    """Returns a path as a text that can be written to a file. A byte that is not UTF-8 becomes its number."""
    return os.fsencode(path).decode(errors="backslashreplace")


def ending(text: str, n: int) -> str:
    """Returns the last n characters of a text that is longer, with dots before them."""
    return text if len(text) <= n else f"...{text[3 - n:]}"


def fixed(number, digits, sign=""):
    """Returns a number as a text with so many digits, and without a minus if they are all 0."""
    return f"{round(float(number), digits) + 0.0:{sign}.{digits}f}"  # float: numpy rounds 2.675 up


def tell(line: str):
    """Prints a line on stderr, above any progress bar."""
    tqdm.write(printable(line), file=sys.stderr)


def bar(items, name: str, unit: str, n: int):
    """Yields the items, and shows a progress bar if stderr is a terminal."""
    return tqdm(items, printable(name), n, leave=False, unit=unit, disable=None)
