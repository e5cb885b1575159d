"""
Writes token files, for every data/NAME/prepare.py. data/tokens.py describes the files, and reads them.

A corpus is a list of parts (files or URLs), and each part is read as a sequence of documents (str). About 100 MB of
documents, a chunk, are read at a time. They are encoded, shuffled, divided into the two splits, and added to the file
of each.

progress.json says which documents are in the files so far. A script that was stopped, however hard, goes on from there
and ends with the same bytes. Memory is bounded by the size of a chunk.
"""

import argparse
import hashlib
import itertools
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data.tokens import (TOKENIZERS, DataError, digest, locked, open_gpt2, read_meta, require_sizes, write_json,
                         writing)

# ---- the command line --------------------------------------------------------------------------------------------


def command_line(dataset, doc, **defaults):
    """The options that all prepare scripts share. defaults: a script's own defaults for some of them."""
    cli = argparse.ArgumentParser(prog=f"data/{dataset}/prepare.py", description=doc, allow_abbrev=False,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--out_dir", help=f"(data/{dataset}/TOKENIZER, or TOKENIZER_spaced)")
    cli.add_argument("--num_proc", type=int, default=os.cpu_count(), help="threads that encode (%(default)s)")
    cli.add_argument("--tokenizer", choices=TOKENIZERS, default="gpt2", help="(%(default)s)")
    cli.add_argument("--spaced", action="store_true", help="put a space between all characters before tokenising")
    cli.add_argument("--seed", type=int, default=0, help="of the order and the splits (%(default)s)")
    cli.add_argument("--val_fraction", type=float, default=0.005, help="share to validate on (%(default)s)")
    cli.add_argument("--max_tokens", type=int, default=0, help="stop where so many are reached, 0: never")
    cli.add_argument("--chunk_size", type=int, default=10**8, help="bytes of text shuffled together (%(default)s)")
    cli.set_defaults(dataset=dataset, **defaults)
    return cli


def find_folder(args):
    """The folder of the token files: --out_dir, or data/DATASET/TOKENIZER of this repository."""
    if args.out_dir:
        return Path(args.out_dir)
    name = f"{args.tokenizer}_spaced" if args.spaced else args.tokenizer
    return Path(os.path.relpath(Path(__file__).parent / args.dataset / name))


def run_script(main):
    """Run main() of a prepare script. An error that a user can mend ends in one line and exit status 1."""
    import httpx2  # datasets and huggingface_hub raise its errors when a download has failed several times

    try:
        main()
    except (DataError, OSError, ValueError, httpx2.HTTPError) as error:
        sys.exit(f"error: {error}".splitlines()[0])
    except KeyboardInterrupt:
        sys.exit("stopped; the same command will go on from here")


# ---- a whole corpus ----------------------------------------------------------------------------------------------


def write(args, source, parts, read, total=None, files=(), whole_files=False, in_order=False):
    """
    Tokenise a corpus into args.out_dir, going on where an interrupted run stopped, and return the folder. If another
    process is writing there, wait for it first.

    read(part): yields the documents (str) of a part, the same ones at every call. Empty ones are left out.
    total: the number of documents, if it is known, for the progress bar.
    files: the paths of the parts, if these are files of this machine. Then a later run sees whether one was edited.
    whole_files: put all documents of a file into the same split.
    in_order: write the documents as they come, not shuffled.
    """
    folder = find_folder(args)
    digests = look_at(files)
    order = np.arange(len(parts)) if in_order else np.random.default_rng(args.seed).permutation(len(parts))
    parts = [parts[i] for i in order]
    with locked(folder, wait=True):
        meta = begin(folder, args, source, len(parts), digests)
        val_parts = None  # which parts to validate on, (parts,) bool; None: decided for each document
        if whole_files:
            chosen, _ = choose(digests, meta)  # (files,) bool
            val_parts = chosen[order]
        if not (folder / "meta.json").exists():
            found = unwritten(parts, read, meta)
            with ThreadPoolExecutor(args.num_proc) as pool, \
                    tqdm(found, total=total, initial=sum(meta["docs"].values()), unit=" documents") as bar:
                documents = encode_all(iter(bar), meta, pool)
                while chunk := next_chunk(documents, meta):
                    add(folder, meta, chunk, val_parts, in_order)
            finish(folder, meta)
    print(summary(folder, meta))
    return folder


def look_at(paths):
    """The SHA-256 digests of files. All of them are read once before anything is written."""
    digests = []
    for path in tqdm(paths, desc="looking at files", leave=False):
        with open(path, "rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").digest())
    return digests


def summary(folder, meta):
    """What is in a finished folder, in a line."""
    n_docs = sum(meta["docs"].values())
    n_tokens = sum(meta["tokens"].values())
    megabytes = n_tokens * np.dtype(meta["dtype"]).itemsize / 1e6
    share = meta["tokens"]["val"] / n_tokens
    return (f"{folder}: {n_docs:,} documents, {n_tokens:,} tokens, {n_tokens / n_docs:,.0f} a document, "
            f"{share:.2%} to validate on, {megabytes:,.1f} MB")


# ---- where a run begins, and how it ends -------------------------------------------------------------------------

OPTIONS = "dataset", "tokenizer", "spaced", "seed", "val_fraction", "max_tokens", "chunk_size"


def begin(folder, args, source, n_parts, digests):
    """
    What an earlier run has left in the folder (DataError if it was asked for something else), or a new beginning, as
    a dict. progress.json holds it while the corpus grows, and in the end meta.json does.
    """
    asked = {option: getattr(args, option) for option in OPTIONS}
    asked |= dict(source=source, parts=n_parts, contents="")
    if digests:
        asked["contents"] = hashlib.sha256(b"".join(digests)).hexdigest()  # changes if a file is edited
    for path in folder / "meta.json", folder / "progress.json":
        if path.exists():
            meta = read_meta(path)
            for key, value in asked.items():
                if meta[key] != value:
                    was = "other text" if key == "contents" else f"{key} = {meta[key]!r}, not {value!r}"
                    raise DataError(f"{folder} was begun with {was}: delete it, or choose another --out_dir")
            is_finished = path.name == "meta.json"
            require_sizes(folder, meta, at_least=not is_finished)  # a run that was killed may have written more
            return meta
    # `add` saves progress.json before the first chunk, so without it the files are from somewhere else.
    if any(folder.glob("*.bin")):
        raise DataError(f"{folder} holds .bin files that data/{args.dataset}/prepare.py has not written: "
                        "move them away, or choose another --out_dir")
    return asked | TOKENIZERS[args.tokenizer] | dict(
        docs=dict(train=0, val=0),
        tokens=dict(train=0, val=0),
        sha256={},  # of both files, once they are complete
        files={},
        chunks=0,  # how many have been written
        part=0,  # the part and the row of the last document that has been written
        row=0,
        lowest=1.0,  # the lowest draw of choose(); 1 means that there was none yet
    )


def finish(folder, meta):
    """Give a complete folder its meta.json. If a split has no document, delete the files and refuse."""
    n_train, n_val = meta["docs"]["train"], meta["docs"]["val"]
    if n_train == 0 or n_val == 0:
        for name in "train.bin", "val.bin", "progress.json":
            (folder / name).unlink(missing_ok=True)
        raise DataError(f"{meta['source']}: {n_train} documents to train on and {n_val} to validate on, expected at "
                        "least one of each: give more text, or raise --max_tokens, or lower --val_fraction")
    for split in "train", "val":
        path = folder / f"{split}.bin"
        meta["sha256"][split] = digest(path)
        meta["files"][split] = dict(size=path.stat().st_size, mtime_ns=path.stat().st_mtime_ns)
    write_json(folder / "progress.json", meta)
    os.replace(folder / "progress.json", folder / "meta.json")


# ---- documents ---------------------------------------------------------------------------------------------------


def unwritten(parts, read, meta):
    """The documents that are in no file yet: the number of the part, the row within the part, the text as UTF-8."""
    first_part, last_row = meta["part"], meta["row"]
    for i in range(first_part, len(parts)):
        for row, text in enumerate(read(parts[i]), 1):
            written = i == first_part and row <= last_row
            if text and not written:
                # "replace", because JSON can hold half of a surrogate pair, which is not a character
                yield i, row, text.encode("utf-8", "replace")


def read_column(builder, path, column):
    """Yield one column of a file that `datasets` can read (builder: parquet, json, csv or arrow), local or hf://."""
    from datasets import load_dataset

    # A comment that says "NA" or "null" is a text, and not a missing value.
    options = dict(keep_default_na=False) if builder == "csv" else {}
    table = load_dataset(builder, data_files=path, split="train", streaming=True, **options)
    for batch in table.iter(1000):
        if column not in batch:
            raise DataError(f"{path} has no column {column}, only {', '.join(batch)}")
        for text in batch[column]:
            if not isinstance(text, str | None):
                raise DataError(f"{path}: column {column} holds {text!r:.40}, expected text")
            yield text


class Document(NamedTuple):
    part: int  # the number of its part, in the order in which parts are read
    row: int  # its number within the part, from 1
    n_bytes: int  # of its text
    digest: bytes  # SHA-256 of its text
    ids: np.ndarray  # its tokens, with the end-of-text token


def encode_all(found, meta, pool):
    """A Document for each (part, row, text) that `unwritten` found."""
    gpt2 = open_gpt2() if meta["tokenizer"] == "gpt2" else None
    # A very long text may overflow the stack of tiktoken's regex engine. So it is cut into pieces of 100,000 characters
    # before a space, where gpt2 begins a new token anyway, or anywhere if there is no space.
    pieces = re.compile(r".{1,100000}(?= |\Z)|.{1,100000}", re.DOTALL)

    def encode(one):
        part, row, utf8 = one
        text = utf8.decode()
        if meta["spaced"]:
            text = " ".join(text)
        if gpt2:
            # disallowed_special=(): the characters "<|endoftext|>" inside a document are ordinary text
            ids = [gpt2.encode_to_numpy(piece, disallowed_special=()) for piece in pieces.findall(text)]
        else:
            ids = [np.frombuffer(text.encode(), np.uint8)]
        ids = np.concatenate([*ids, [meta["eot_token"]]]).astype(meta["dtype"])
        return Document(part, row, len(utf8), hashlib.sha256(utf8).digest(), ids)

    while batch := list(itertools.islice(found, 256)):  # not all of them, because pool.map reads its whole input
        yield from pool.map(encode, batch)


# ---- chunks ------------------------------------------------------------------------------------------------------


def next_chunk(documents, meta):
    """The next documents, chunk_size bytes of text. There are none at the end of the corpus, or at --max_tokens."""
    chunk = []
    n_bytes = 0
    n_tokens = sum(meta["tokens"].values())
    while n_bytes < meta["chunk_size"] and n_tokens < (meta["max_tokens"] or inf):
        document = next(documents, None)
        if document is None:
            break
        chunk.append(document)
        n_bytes += document.n_bytes
        n_tokens += len(document.ids)
    return chunk


def add(folder, meta, chunk, val_parts, in_order):
    """Shuffle a chunk (unless in_order), divide it into the splits, and add it to the files and to meta."""
    if meta["chunks"] == 0:
        write_json(folder / "progress.json", meta)  # before any token, so that `begin` knows the files as its own
    digests = [document.digest for document in chunk]
    lengths = np.array([len(document.ids) for document in chunk])  # (N,)
    if val_parts is None:
        to_val, meta["lowest"] = choose(digests, meta)
    else:
        to_val = val_parts[[document.part for document in chunk]]  # (N,) bool
    order = range(len(chunk))
    if not in_order:
        order = np.random.default_rng([meta["seed"], meta["chunks"]]).permutation(len(chunk))
    for split, chosen in ("train", ~to_val), ("val", to_val):
        path = folder / f"{split}.bin"
        with writing(path), open(path, "ab") as file:
            # A run that was killed may have written more.
            file.truncate(meta["tokens"][split] * np.dtype(meta["dtype"]).itemsize)
            file.writelines(chunk[i].ids for i in order if chosen[i])
            file.flush()
            os.fsync(file.fileno())  # before progress.json, or after a power cut that could know of more
        meta["docs"][split] += int(chosen.sum())
        meta["tokens"][split] += int(lengths[chosen].sum())
    meta["chunks"] += 1
    meta["part"] = chunk[-1].part
    meta["row"] = chunk[-1].row
    write_json(folder / "progress.json", meta)


def choose(digests, meta):
    """
    Choose documents (or files) to validate on -> (N,) bool, and the lowest draw so far.

    Each gets a draw in [0, 1) from the SHA-256 of its text, so a text that occurs twice is in the same split both
    times. Draws below val_fraction validate. So does the lowest draw of the first chunk: even a small corpus needs a
    validation split.
    """
    hashes = first_8_bytes(digests)  # (N,)
    secret = np.random.SeedSequence(meta["seed"]).generate_state(1, np.uint64)
    draws = (hashes ^ secret) / 2.0**64  # uniform in [0, 1)
    lowest = meta["lowest"]
    if lowest == 1:
        lowest = float(draws.min())
    return (draws < meta["val_fraction"]) | (draws == lowest), lowest


def first_8_bytes(digests):
    """The first 8 bytes of SHA-256 digests, as integers: (N,) uint64."""
    return np.frombuffer(b"".join(digest[:8] for digest in digests), "<u8")
