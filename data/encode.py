"""
Text to ids and back, with the tokenizers of data/tokens.py. meta: a dict such as meta.json with the key tokenizer.
"""

import re

import numpy as np

from data.tokens import TOKENIZERS, DataError

# A very long text may overflow the stack of tiktoken's regex engine. So it is cut into pieces of 100,000 characters where
# a word ends, because gpt2 begins a new token at the space or newline that follows. Without such a place it is cut before
# another space, and without any space anywhere: then a token or two may differ from those of the whole text.
PIECES = re.compile(r".{1,100000}(?:(?<=\S)(?=[ \n])|\Z)|.{1,100000}(?= )|.{1,100000}", re.DOTALL)


def make_encode(meta):
    """A function that turns a text into ids: (N,). DataError if the files of gpt2 cannot be fetched."""
    if meta["tokenizer"] == "bytes":
        return lambda text: np.frombuffer(text.encode(), np.uint8)
    gpt2 = open_gpt2()

    def encode(text):
        # disallowed_special=(): the characters "<|endoftext|>" inside a document are ordinary text
        pieces = [gpt2.encode_to_numpy(piece, disallowed_special=()) for piece in PIECES.findall(text)]
        return np.concatenate([np.empty(0, np.uint32), *pieces])  # of an empty text there are none
    return encode


def make_decode(meta):
    """A function that turns ids into a text. DataError if the files of gpt2 cannot be fetched."""
    known = TOKENIZERS[meta["tokenizer"]]
    special = {known["eot_token"]: b" ", known["mask_token"]: b"_"}
    # An id below 256 is a byte.
    to_bytes = int.to_bytes if meta["tokenizer"] == "bytes" else open_gpt2().decode_single_token_bytes
    return lambda ids: b"".join(special.get(i) or to_bytes(i) for i in ids).decode(errors="replace")


def open_gpt2():
    """tiktoken's gpt2. DataError if it can neither find nor fetch its two files."""
    import tiktoken

    try:
        return tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:
        raise DataError(f"tiktoken cannot fetch the files of gpt2 ({error}): data/README.md says how to give it these, "
                        "or use --tokenizer=bytes, which needs none") from None
