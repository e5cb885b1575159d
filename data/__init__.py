"""Every program imports this package before what needs Python 3.11, such as hashlib.file_digest."""

import sys

if sys.version_info < (3, 11):
    sys.exit(f"This needs Python 3.11 or newer, and {sys.executable} is {sys.version.split()[0]}")
