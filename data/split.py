"""
Which documents, or whole files, of a corpus are kept to validate on. writer.py asks this of every chunk.
"""

import hashlib

import numpy as np
from tqdm import tqdm


def choose(digests, sizes, total, state):
    """
    Choose documents (or files) to validate on -> (N,) bool, and the lowest draw so far.

    Each gets a draw in [0, 1) from the SHA-256 of its text, so a text that occurs twice is in the same split both
    times. Draws below val_fraction validate. So does the lowest draw of all: even a small corpus needs a validation
    split. What is, with its copies, more than half of the corpus never validates: sizes (N,) of `total`, in any unit.
    """
    hashes = first_8_bytes(digests)  # (N,)
    secret = np.random.SeedSequence(state["seed"]).generate_state(1, np.uint64)
    draws = (hashes ^ secret) / 2.0**64  # uniform in [0, 1)
    _, text_id = np.unique(hashes, return_inverse=True)  # (N,): a number for each text, the same for its copies
    size_of_text = np.bincount(text_id, weights=sizes)  # of all its copies together
    allowed = size_of_text[text_id] <= total / 2  # (N,)
    lowest = state["lowest"]
    if lowest == 1 and allowed.any():
        lowest = float(draws[allowed].min())
    chosen = (draws < state["val_fraction"]) | (draws == lowest)
    return chosen & allowed, lowest


def first_8_bytes(digests):
    """The first 8 bytes of SHA-256 digests, as integers: (N,) uint64."""
    return np.frombuffer(b"".join(digest[:8] for digest in digests), "<u8")


def look_at(paths):
    """The SHA-256 digests of files. All of them are read once before anything is written."""
    digests = []
    for path in tqdm(paths, desc="looking at files", leave=False):
        with open(path, "rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").digest())
    return digests
