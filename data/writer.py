"""
The writer of token files, behind every data/NAME/prepare.py; data/tokens.py describes the files, and reads them.

A corpus is a list of parts (files, URLs), each read as a sequence of documents (str). About 100 MB of documents at a
time are encoded, shuffled, split into those to train and those to validate on, and saved as a shard of each split.

progress.json says which documents the shards written so far hold: a run that was stopped, however hard, goes on from
there and ends with the same bytes. Memory is bounded by the size of a shard.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data.tokens import TOKENIZERS, DataError, check_size, damaged, read_meta, shards, size_of

# ---- the command line --------------------------------------------------------------------------------------------


def command_line(dataset, doc, argv, **defaults):
    """The parser that every prepare script begins with; defaults: the script's own for the options below."""
    place = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # the options that do not change the tokens
    place.add_argument("--out_dir", help=f"(data/{dataset}/TOKENIZER, or TOKENIZER_spaced)")
    place.add_argument("--num_proc", type=int, default=os.cpu_count(), help="threads that encode (%(default)s)")
    cli = argparse.ArgumentParser(prog=f"data/{dataset}/prepare.py", description=doc, parents=[place],
                                  formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    cli.add_argument("--tokenizer", choices=TOKENIZERS, default="gpt2", help="(%(default)s)")
    cli.add_argument("--spaced", action="store_true", help="put a space between all characters before tokenising")

    def number(name, default, text):
        cli.add_argument(name, type=type(default), default=default, help=f"{text} (%(default)s)")
    number("--seed", 0, "of the order and of the choice for validation")
    number("--val_fraction", 0.005, "of the documents, to validate on")
    number("--max_docs", 0, "stop after so many documents, 0: never")
    number("--max_tokens", 0, "stop with the document that reaches so many, 0: never")
    number("--shard_size", 10**8, "bytes of text in a file")

    _, changing_tokens = place.parse_known_args(argv)
    command = shlex.join(["python", f"data/{dataset}/prepare.py", *changing_tokens])
    cli.set_defaults(dataset=dataset, command=command, **defaults)
    return cli


def check_options(args):
    for name, smallest in ("seed", 0), ("max_docs", 0), ("max_tokens", 0), ("shard_size", 1), ("num_proc", 1):
        value = getattr(args, name)
        if value < smallest:
            raise DataError(f"--{name}={value}, expected at least {smallest}")
    if not 0 <= args.val_fraction < 1:
        raise DataError(f"--val_fraction={args.val_fraction}, expected 0 or more, and less than 1")


def default_folder(args):
    name = f"{args.tokenizer}_spaced" if args.spaced else args.tokenizer
    return Path(os.path.relpath(Path(__file__).parent / args.dataset / name))


# ---- a whole corpus ----------------------------------------------------------------------------------------------


def write(args, source, parts, read, total=inf, files=None, whole_files=False):
    """
    Tokenise a corpus into args.out_dir, going on where an interrupted run stopped, and return the folder.

    read(part, note) yields the documents (str) of a part, always the same; empty ones are left out. note(kind, n) sets
    a count of that part for the summary. total: documents, where known. files: a LocalFile for each part, where parts
    are files of this machine, so that it is noticed when one was edited. whole_files: all documents of a file go to
    the same split.
    """
    check_options(args)
    folder = Path(args.out_dir or default_folder(args))
    new = new_state(args, source, len(parts), files)
    state = resume(folder, new)
    finished = (folder / "meta.json").exists()
    if not finished:
        order = np.random.default_rng(args.seed).permutation(len(parts))
        parts = [parts[i] for i in order]
        validates = None  # or, for each part, whether all of it does
        if whole_files:
            validates = choose_files(files, new)[order]
        state = write_shards(folder, state, parts, read, validates, args.num_proc, total)
    for kind, counts in state["notes"].items():
        print(f"{sum(counts.values()):,} {kind}: {some(counts)}")
    if not finished:
        finish(folder, state)
    docs, tokens = state["n_docs"], state["n_tokens"]
    megabytes = tokens * np.dtype(state["dtype"]).itemsize / 1e6
    print(f"{folder}: {docs:,} documents, {tokens:,} tokens, {tokens / docs:,.0f} a document, "
          f"{sum(state['tokens']['val']) / tokens:.2%} to validate on, {megabytes:,.1f} MB")
    return folder


def some(names):
    """The first five, for a line that may not grow with their number."""
    names = list(names)
    more = ", ..." if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


OPTIONS = ("dataset", "tokenizer", "spaced", "seed", "val_fraction", "max_docs", "max_tokens", "shard_size",
           "source", "parts", "contents")  # of a state: what has to be the same when a run goes on


def new_state(args, source, n_parts, files):
    """Of a corpus of which nothing has been written: what progress.json, and in the end meta.json, holds."""
    return dict(
        dataset=args.dataset, tokenizer=args.tokenizer, spaced=args.spaced, seed=args.seed,
        val_fraction=args.val_fraction, max_docs=args.max_docs, max_tokens=args.max_tokens, shard_size=args.shard_size,
        source=source, parts=n_parts, contents=checksum_of(files), command=args.command, **TOKENIZERS[args.tokenizer],
        docs=dict(train=0, val=0), tokens=dict(train=[], val=[]), crc32=dict(train=[], val=[]), n_docs=0, n_tokens=0,
        checksum="0",  # of the documents, whatever their order
        part=0, row=0,  # of the last document that a shard holds
        lowest=1.0,  # the draw that validates in any case; no draw is as high as 1
        notes={})


def resume(folder, new):
    """The state in which an earlier run with the same options left the folder, or else the new one."""
    for path in folder / "meta.json", folder / "progress.json":
        if path.exists():
            state = read_state(path, new)
            if state["contents"] != new["contents"]:
                raise DataError(f"{folder} was begun with other text than {new['source']} holds now: delete it, or "
                                "choose another --out_dir")
            for key in OPTIONS:
                if state[key] != new[key]:
                    raise DataError(f"{folder} was begun with {key} = {state[key]!r}, not {new[key]!r}: delete it, or "
                                    "choose another --out_dir")
            for shard in shards(folder, "train", state) + shards(folder, "val", state):
                check_size(shard, size_of(shard.path), state)
            return state
    return new


def read_state(path, new):
    """read_meta, and what the writer needs as well: all that a new state has, in numbers that agree."""
    state = read_meta(path)
    try:
        wrong = [key for key in new if type(state[key]) is not type(new[key])]
        if wrong:
            raise ValueError(f"{wrong[0]} = {state[wrong[0]]!r}")
        for total, counts in ("n_docs", state["docs"].values()), ("n_tokens", sum(state["tokens"].values(), [])):
            if sum(counts) != state[total]:
                raise ValueError(f"{total} is not the sum of what it counts")
        if not 0 <= state["part"] <= state["parts"] or state["row"] < 0:
            raise ValueError("part or row is out of range")
        int(state["checksum"], 16)
        for counts in state["notes"].values():
            sum(counts.values())
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise damaged(path) from error
    return state


def write_shards(folder, state, parts, read, validates, n_threads, total):
    """Write what is missing, shard by shard -> the state at the end, which progress.json holds as well."""
    encode = encoder(state["tokenizer"])
    total = min(total, state["max_docs"] or inf)
    documents = unwritten(parts, read, state)
    with ThreadPoolExecutor(n_threads) as pool, \
            tqdm(documents, total=total, initial=state["n_docs"], unit=" documents") as bar:
        documents = iter(bar)
        while gathered := gather(documents, state):
            state = write_shard(folder, state, gathered, validates, encode, pool)
            bar.set_postfix_str(f"{state['n_tokens']:,} tokens")
    return state


def finish(folder, state):
    """Give a whole folder its meta.json; one with nothing to train or to validate on is emptied and refused."""
    n_train, n_val = state["docs"]["train"], state["docs"]["val"]
    if n_train == 0 or n_val == 0:
        for shard in shards(folder, "train", state) + shards(folder, "val", state):
            shard.path.unlink(missing_ok=True)
        (folder / "progress.json").unlink(missing_ok=True)
        raise DataError(f"{state['source']}: {n_train} documents to train on and {n_val} to validate on, expected at "
                        "least one of each: give more text, or another --val_fraction or --seed")
    save_state(folder, state)
    os.replace(folder / "progress.json", folder / "meta.json")


# ---- what is read ------------------------------------------------------------------------------------------------


class Document(NamedTuple):
    part: int  # the place of its part in the order in which parts are read
    row: int  # its number within the part, from 1
    text: bytes  # UTF-8


def unwritten(parts, read, state):
    """The documents that are in no shard yet."""
    import httpx2  # whose errors are those of datasets and huggingface_hub when they have tried again in vain

    first_part, last_row = state["part"], state["row"]
    notes = state["notes"]  # filled while documents are read; saved with the next shard
    for i in range(first_part, len(parts)):
        part = parts[i]

        def note(kind, n):
            notes.setdefault(kind, {})[str(part)] = n
        try:
            for row, text in enumerate(read(part, note), 1):
                written = i == first_part and row <= last_row
                if text and not written:
                    # "replace": JSON can hold half of a surrogate pair, which is no character
                    yield Document(i, row, text.encode("utf-8", "replace"))
        except (OSError, ValueError, httpx2.HTTPError) as error:
            raise DataError(f"{part} cannot be read ({error!r}); the same command will go on from there") from None


def gather(documents, state):
    """The documents of the next shard; none when there are no more, or there need not be."""
    room = state["shard_size"]  # [bytes]
    if state["max_tokens"] > 0:  # a token is rarely longer than 8 bytes: do not read much more than is wanted
        room = min(room, 8 * (state["max_tokens"] - state["n_tokens"]))
    wanted = inf
    if state["max_docs"] > 0:
        wanted = state["max_docs"] - state["n_docs"]
    gathered = []
    while room > 0 and len(gathered) < wanted:
        document = next(documents, None)
        if document is None:
            break
        gathered.append(document)
        room -= len(document.text)
    return gathered


# ---- a shard -----------------------------------------------------------------------------------------------------


def write_shard(folder, state, documents, validates, encode, pool):
    """Encode, split, shuffle and save some documents -> the state after them, saved as well."""
    last = documents[-1]
    hashes = first_8_bytes(hashlib.sha256(document.text).digest() for document in documents)
    ids = encode_all(documents, state, encode, pool)
    if state["max_tokens"] > 0:  # up to and with the document that reaches it
        ends = np.cumsum([len(document) for document in ids])
        n_wanted = 1 + np.searchsorted(ends, state["max_tokens"] - state["n_tokens"])
        documents, hashes, ids = documents[:n_wanted], hashes[:n_wanted], ids[:n_wanted]
    n_tokens = state["n_tokens"] + sum(len(document) for document in ids)
    checksum = int(state["checksum"], 16) + int(hashes.sum())  # a sum, so that the order does not matter
    lowest = state["lowest"]
    if validates is None:
        shares = np.array([len(document) / n_tokens for document in ids])
        to_val, lowest = choose(hashes, shares, state)
    else:
        to_val = validates[[document.part for document in documents]]
    n_shards = len(state["tokens"]["train"])
    order = np.random.default_rng([state["seed"], n_shards]).permutation(len(ids))

    state = dict(state, n_docs=state["n_docs"] + len(ids), n_tokens=n_tokens, checksum=f"{checksum % 2**64:x}",
                 part=last.part, row=last.row, lowest=lowest)
    state = save_shard(folder, "train", state, [ids[i] for i in order if not to_val[i]])
    state = save_shard(folder, "val", state, [ids[i] for i in order if to_val[i]])
    save_state(folder, state)
    return state


def save_shard(folder, split, state, ids):
    """One more shard of a split, of these documents -> the state with it."""
    crc32 = 0
    for document in ids:
        crc32 = zlib.crc32(document, crc32)
    n_tokens = sum(len(document) for document in ids)
    state = dict(state, docs=state["docs"] | {split: state["docs"][split] + len(ids)},
                 tokens=state["tokens"] | {split: state["tokens"][split] + [n_tokens]},
                 crc32=state["crc32"] | {split: state["crc32"][split] + [crc32]})
    save(shards(folder, split, state)[-1].path, ids)
    return state


def encode_all(documents, state, encode, pool):
    """The ids of each document with its end-of-text token: a list of arrays. Threads take 64 documents at a time."""
    eot = np.array([state["eot_token"]])

    def encode_some(some):
        found = []
        for document in some:
            text = document.text
            if state["spaced"]:
                text = " ".join(text.decode()).encode()
            found.append(np.concatenate([*encode(text), eot], dtype=state["dtype"], casting="unsafe"))
        return found
    batches = [documents[i : i + 64] for i in range(0, len(documents), 64)]
    return [ids for batch in pool.map(encode_some, batches) for ids in batch]


# ---- what validates ----------------------------------------------------------------------------------------------


def choose(hashes, shares, state):
    """
    Which documents, or files, validate: (N,) bool, and the lowest draw, which validates in any case, so that a small
    corpus has something to validate on. None does that, with its copies, is more than half of the corpus: shares (N,).

    The text decides, by its hash (N,), so that one which occurs twice is not in both splits.
    """
    secret = np.random.SeedSequence(state["seed"]).generate_state(1, np.uint64)
    draws = (hashes ^ secret) / 2.0**64  # uniform in [0, 1)
    _, text = np.unique(hashes, return_inverse=True)  # (N,): a number for each text, the same for its copies
    allowed = np.bincount(text, weights=shares)[text] <= 0.5  # share of all copies
    lowest = state["lowest"]
    if lowest == 1 and allowed.any():
        lowest = float(draws[allowed].min())
    chosen = (draws < state["val_fraction"]) | (draws == lowest)
    return chosen & allowed, lowest


def choose_files(files, state):
    """The same for LocalFiles that go to one split as a whole: (N,) bool."""
    sizes = np.array([file.size for file in files])
    shares = sizes / max(1, sizes.sum())
    validates, _ = choose(first_8_bytes(file.digest for file in files), shares, state)
    return validates


def first_8_bytes(digests):
    """Of SHA-256 digests, as integers: (N,) uint64."""
    return np.frombuffer(b"".join(digest[:8] for digest in digests), "<u8")


class LocalFile(NamedTuple):
    size: int  # bytes
    digest: bytes  # SHA-256 of its contents


def look_at(paths):
    """A LocalFile for each path: all files are read, once, before anything is written."""
    found = []
    for path in tqdm(paths, desc="looking at files", unit="", leave=False):
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
            found.append(LocalFile(file.tell(), digest.digest()))
    return found


def checksum_of(files):
    """Of the contents of LocalFiles, not of their times: a file that was only touched is the same. "" without files."""
    if not files:
        return ""
    return hashlib.sha256(b"".join(file.digest for file in files)).hexdigest()


# ---- tokens and files --------------------------------------------------------------------------------------------


def encoder(tokenizer):
    """A function from a document (UTF-8) to its ids, in arrays that follow each other."""
    if tokenizer == "bytes":
        return lambda text: [np.frombuffer(text, np.uint8)]
    import tiktoken

    try:
        gpt2 = tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:
        raise DataError(f"tiktoken cannot fetch its files ({error}): save {tiktoken_files()} in a folder and set "
                        "TIKTOKEN_CACHE_DIR to it, or use --tokenizer=bytes, which needs none") from None
    # On a very long text tiktoken's regex engine overflows the stack. Cut before a space, where gpt2 begins a token in
    # any case, or anywhere if there is none: decoding gives the text back exactly.
    pieces = re.compile(r".{1,100000}(?= |\Z)|.{1,100000}", re.DOTALL)

    def encode(text):
        # disallowed_special=(): "<|endoftext|>" inside a document is text like any other
        return [gpt2.encode_to_numpy(piece, disallowed_special=()) for piece in pieces.findall(text.decode())]
    return encode


def tiktoken_files():
    """Where the two files of gpt2 are fetched from, and the names under which tiktoken looks for them in its cache."""
    base = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
    named = [f"{base}{name} as {hashlib.sha1((base + name).encode()).hexdigest()}"
             for name in ("vocab.bpe", "encoder.json")]
    return " and ".join(named)


def save_state(folder, state):
    save(folder / "progress.json", [json.dumps(state, indent=1).encode()])


def save(path, chunks):
    """Under a temporary name first, so that a file is there whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", buffering=1 << 20) as file:
            file.writelines(chunks)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DataError(f"{path} cannot be written ({error.strerror}); the same command will go on there") from None


# ---- for the scripts ---------------------------------------------------------------------------------------------


def read_column(builder, path, column, **options):
    """One column of a file that `datasets` can read (builder: parquet, json, csv), local or hf://, piece by piece."""
    from datasets import load_dataset

    table = load_dataset(builder, data_files=path, split="train", streaming=True, **options)
    for batch in table.iter(1000):
        if column not in batch:
            raise DataError(f"{path} has no column {column}, only {', '.join(batch)}")
        yield from batch[column]


def run_script(main):
    """A script's main(): what a user can mend ends in one line and exit status 1."""
    import httpx2

    try:
        main()
    except (DataError, OSError, httpx2.HTTPError) as error:
        sys.exit(f"error: {error}".splitlines()[0])
    except KeyboardInterrupt:
        sys.exit("stopped; the same command will go on from here")
