"""
Text to ids and back, with the tokenizers of data/tokens.py.
"""

import re

import numpy as np

from data.tokens import DataError

MASK = "░"  # a masked token in a text. Code is full of underscores

# A very long text may overflow the stack of tiktoken's regex engine. So it is cut into pieces of 100,000 characters
# where a word ends, because gpt2 begins a new token at the space or newline that follows. Without such a place it is
# cut anywhere: then a token or two may differ from those of the whole text.
PIECES = re.compile(r".{1,100000}(?:(?<=\S)(?=[ \n])|\Z)|.{1,100000}", re.DOTALL)


def make_encode(meta):
    """A function that turns a text into ids: (N,)."""
    if meta["tokenizer"] == "bytes":
        return lambda text: np.frombuffer(text.encode(), np.uint8)
    gpt2 = open_gpt2()
    # disallowed_special=(): the characters "<|endoftext|>" inside a document are ordinary text
    return lambda text: np.concatenate([gpt2.encode_to_numpy(piece, disallowed_special=())
                                        for piece in PIECES.findall(text) or [""]])


def make_decode(meta):
    """A function that turns ids into a text, in which documents end with a space, and MASK is a masked token."""
    special = {meta["eot_token"]: b" ", meta["mask_token"]: MASK.encode()}
    to_bytes = byte_of if meta["tokenizer"] == "bytes" else open_gpt2().decode_single_token_bytes
    return lambda ids: b"".join(special.get(i) or to_bytes(i) for i in ids).decode(errors="replace")


def byte_of(i):
    return bytes([i])


def open_gpt2():
    import tiktoken

    try:
        return tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:
        raise DataError(f"tiktoken cannot fetch the files of gpt2 ({error}): data/README.md says how to give it these, "
                        "or use --tokenizer=bytes, which needs none") from None
