"""How names and numbers are printed. Somebody else may have chosen a name, so it can hold any characters."""


def printable(text):
    """Returns the text with ? for control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def fixed(number, digits, sign=""):
    """Returns a number as a text with so many digits, and without a minus if they are all 0."""
    return f"{round(float(number), digits) + 0.0:{sign}.{digits}f}"  # float: numpy rounds 2.675 up
