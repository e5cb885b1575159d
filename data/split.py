"""
Which documents, or whole files, of a corpus are kept to validate on. writer.py asks this of every shard.
"""

import hashlib
from typing import NamedTuple

import numpy as np
from tqdm import tqdm


def choose(hashes, shares, state):
    """
    Choose documents (or files) to validate on -> (N,) bool, and the lowest draw so far.

    Each gets a draw in [0, 1) from the hash of its text, so a text that occurs twice is in the same split both times.
    Draws below val_fraction validate. So does the lowest draw of all: even a small corpus needs a validation split.
    shares (N,): the share of each, with its copies, in the corpus. What is more than half of it never validates.
    """
    secret = np.random.SeedSequence(state["seed"]).generate_state(1, np.uint64)
    draws = (hashes ^ secret) / 2.0**64  # uniform in [0, 1)
    _, text_id = np.unique(hashes, return_inverse=True)  # (N,): a number for each text, the same for its copies
    share_of_text = np.bincount(text_id, weights=shares)  # of all its copies together
    allowed = share_of_text[text_id] <= 0.5  # (N,)
    lowest = state["lowest"]
    if lowest == 1 and allowed.any():
        lowest = float(draws[allowed].min())
    chosen = (draws < state["val_fraction"]) | (draws == lowest)
    return chosen & allowed, lowest


def first_8_bytes(digests):
    """The first 8 bytes of SHA-256 digests, as integers: (N,) uint64."""
    return np.frombuffer(b"".join(digest[:8] for digest in digests), "<u8")


# ---- whole files -------------------------------------------------------------------------------------------------


class LocalFile(NamedTuple):
    size: int  # bytes
    digest: bytes  # SHA-256 of its contents


def look_at(paths):
    """A LocalFile for each path. All files are read once before anything is written."""
    found = []
    for path in tqdm(paths, desc="looking at files", unit="", leave=False):
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
            found.append(LocalFile(file.tell(), digest))
    return found


def choose_files(files, state):
    """The same as choose, for whole files -> (N,) bool."""
    sizes = np.array([file.size for file in files])
    validates, _ = choose(first_8_bytes(file.digest for file in files), sizes / sizes.sum(), state)
    return validates


def checksum_of(files):
    """A checksum of the contents of all files, "" without files. A file that was only touched does not change it."""
    if not files:
        return ""
    return hashlib.sha256(b"".join(file.digest for file in files)).hexdigest()
