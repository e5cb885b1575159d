"""
Writes token files, for every data/NAME/prepare.py. data/tokens.py describes the files, and reads them.

Documents are added to the file of their split in the order in which they come: data/batches.py shuffles. A document
goes to val.bin if its hash (or its file's), read as a number in [0, 1), is below --val_fraction. So equal documents, or
copies of a file, are in one split, whatever the order.
"""

import argparse
import hashlib
import itertools
import os
import re
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np
import tiktoken
from tqdm import tqdm

from data import tokens
from data.atomic import locked, remove_leftovers, replacing, write_json
from data.tokens import TOKENIZERS, DataError

# The salt of the splits: another number would make others, and so another benchmark. This one is what numpy draws from
# seed 0, np.random.SeedSequence(0).generate_state(1, np.uint64).
SALT = 0xDB2CD7E7B0F478BE
BROKEN = OSError, EOFError, ValueError, zlib.error, httpx2.HTTPError  # what a missing or truncated file raises
# A very long text may overflow the stack of tiktoken's regex engine, so it is cut after at most 100,000 characters:
# before a space or a line break, where gpt2 begins a new token anyway. A text without one is cut anywhere, and then a
# token or two may differ.
PIECES = re.compile(r".{1,100000}(?:(?<=\S)(?=[ \n])|\Z)|.{1,100000}", re.DOTALL)


def command_line(dataset, doc, **defaults):
    """Returns a parser with the options that all prepare scripts share. defaults: what this script sets otherwise."""
    cli = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--out_dir", help=f"(data/{dataset}/TOKENIZER, or TOKENIZER_spaced)")
    cli.add_argument("--tokenizer", choices=TOKENIZERS, default="gpt2", help="(%(default)s)")
    cli.add_argument("--spaced", action="store_true", help="put a space between all characters before tokenising")
    cli.add_argument("--val_fraction", type=float, default=0.005, help="share to validate on (%(default)s)")
    cli.add_argument("--max_tokens", type=int, default=0, help="stop where so many are reached, 0: never")
    cli.set_defaults(dataset=dataset, **defaults)
    return cli


def run(main):
    """Runs a prepare script's main(). An error that a user can mend is one line, with exit status 1."""
    try:
        main()
    except (DataError, OSError) as error:
        sys.exit(f"error: {error}")


def write(args, files, read, by_file=False, of_host=False):
    """
    Tokenises a corpus into args.out_dir, unless it was made before, and returns the folder.

    read(file): yields the documents (str) in a file or URL. by_file: all documents in a file go to one split.
    of_host: leave out a file that cannot be read, because a host has thousands, and some are broken.
    """
    # refuse a folder with another program's files, such as nanoGPT's train.bin. Ours has a lock before it has tokens
    name = f"{args.tokenizer}_spaced" if args.spaced else args.tokenizer
    folder = Path(args.out_dir or os.path.relpath(Path(__file__).parent / args.dataset / name))
    is_ours = (folder / ".lock").exists() or (folder / "meta.json").exists()
    if any(folder.glob("*.bin")) and not is_ours:
        raise DataError(f"{folder} holds .bin files that no prepare.py of ours has written: choose another --out_dir")

    # write the tokens, unless somebody has done so, maybe while we waited for the lock
    asked = vars(args) | TOKENIZERS[args.tokenizer] | dict(out_dir=None)  # a folder may be moved
    with locked(folder, wait=True):
        if (folder / "meta.json").exists():
            print(f"{folder} was made before, and is left as it is: delete it to make it anew")
        else:
            broken = []  # read_all adds to it while write_splits reads the texts
            texts = read_all(files, read, by_file, broken if of_host else None)
            write_splits(folder, asked | dict(broken=broken), texts)

    # these may be the tokens of an earlier call with other options: refuse them, and name the option
    meta = tokens.load(folder).meta
    for key, value in asked.items():
        if meta.get(key) != value:
            raise DataError(f"{folder} was made with {key} = {meta.get(key)!r}, not {value!r}: delete it, or choose "
                            "another --out_dir")

    total = sum(meta["tokens"].values())
    print(f"{folder}: {total:,} tokens, {meta['tokens']['val'] / total:.2%} to validate on")
    if broken := meta.get("broken"):
        print(f"{len(broken)} of {len(files)} files could not be read, or not to their end, such as {broken[-1]}")
    return folder


def read_all(files, read, by_file, broken):
    """Yields texts and the SHA-256 that decides their split. broken: gets a line per unreadable file; None: raise."""
    for file in files:
        of_file = tokens.digest(file) if by_file else None
        try:
            for text in read(file):
                # JSON can hold half of a surrogate pair, which is no character, so it becomes a question mark
                text = text.encode("utf-8", "replace")
                yield text.decode(), of_file or hashlib.sha256(text).hexdigest()
        except BROKEN as error:
            if broken is None:
                raise
            broken.append(f"{file}: {error}".splitlines()[0])
            tqdm.write(f"left out: {broken[-1]}")


def write_splits(folder, meta, texts):
    """Writes train.bin, val.bin and at the end meta.json, which makes the folder complete."""
    for split in tokens.SPLITS:
        remove_leftovers(folder / f"{split}.bin")

    # write to temporary files: a training may be reading older ones with the final names, and keeps them
    n_tokens = dict(train=0, val=0)
    with (replacing(folder / "train.bin") as train_bin, replacing(folder / "val.bin") as val_bin,
          open(train_bin, "wb") as train, open(val_bin, "wb") as val):
        files = dict(train=train, val=val)
        for split, ids in tqdm(encode_all(texts, meta), unit=" documents"):
            if len(ids) > 1:  # an empty document has nothing but its end
                files[split].write(ids)
                n_tokens[split] += len(ids)
            if 0 < meta["max_tokens"] <= sum(n_tokens.values()):
                break

        # an error in this block leaves no files. A file that could not be read may be why there is no text
        if not all(n_tokens.values()):
            why = f"; {meta['broken'][-1]}" if meta["broken"] else ""
            raise DataError(f"{n_tokens} tokens, expected some for each: give more text, or another --val_fraction, or "
                            f"raise --max_tokens{why}")

    sha256 = {split: tokens.digest(folder / f"{split}.bin") for split in tokens.SPLITS}
    write_json(folder / "meta.json", meta | dict(tokens=n_tokens, sha256=sha256))


def encode_all(texts, meta):
    """Yields the split and the ids (N,) of each text, in order. texts: what read_all yields. meta: for meta.json."""
    if meta["tokenizer"] != "bytes":
        encoding = tiktoken.get_encoding(meta["tokenizer"])  # OSError: its files can be neither found nor fetched

    def encode(pair):
        text, sha256 = pair
        if meta["spaced"]:
            text = " ".join(text)
        if meta["tokenizer"] == "bytes":
            ids = np.frombuffer(text.encode(), np.uint8)
        else:
            # disallowed_special=(): the characters "<|endoftext|>" inside a document are ordinary text
            pieces = PIECES.findall(text) or [""]
            ids = np.concatenate([encoding.encode_to_numpy(piece, disallowed_special=()) for piece in pieces])
        # otherwise an id would wrap around in the file
        assert np.max(ids, initial=0) < meta["n_vocab"] < np.iinfo(meta["dtype"]).max, "dtype is too small for the ids"

        # the first 64 bits of the hash, salted, are a number that looks random, and is the same for equal texts
        draw = int.from_bytes(bytes.fromhex(sha256)[:8], "little") ^ SALT
        split = "val" if draw / 2.0**64 < meta["val_fraction"] else "train"
        return split, np.append(ids, meta["eot_token"]).astype(meta["dtype"])

    with ThreadPoolExecutor() as pool:
        # 256 texts at a time, because pool.map reads its whole input first
        while batch := list(itertools.islice(texts, 256)):
            yield from pool.map(encode, batch)
