"""
Writes token files, for every data/NAME/prepare.py. data/tokens.py describes the files, and reads them.

A corpus is a list of parts (files or URLs), and each part is read as a sequence of documents (str). About 100 MB of
documents are read at a time. They are encoded, shuffled, divided into the two splits, and saved as a shard of each.

progress.json says which documents are in the shards so far. A script that was stopped, however hard, goes on from there
and ends with the same bytes. Memory is bounded by the size of a shard.
"""

import argparse
import contextlib
import hashlib
import itertools
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

from data.split import checksum_of, choose, choose_files, first_8_bytes
from data.tokens import TOKENIZERS, DataError, check_size, open_gpt2, read_meta, shards

# ---- the command line --------------------------------------------------------------------------------------------


def command_line(dataset, doc, argv, **defaults):
    """The options that all prepare scripts share. defaults: a script's own defaults for some of them."""
    free = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # the options that do not change the tokens
    free.add_argument("--out_dir", help=f"(data/{dataset}/TOKENIZER, or TOKENIZER_spaced)")
    free.add_argument("--num_proc", type=int, default=os.cpu_count(), help="threads that encode (%(default)s)")
    cli = argparse.ArgumentParser(prog=f"data/{dataset}/prepare.py", description=doc, parents=[free],
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

    _, changing_tokens = free.parse_known_args(argv)
    command = shlex.join(["python", f"data/{dataset}/prepare.py", *changing_tokens])
    cli.set_defaults(dataset=dataset, command=command, **defaults)
    return cli


def check_options(args):
    for name, smallest in ("seed", 0), ("max_docs", 0), ("max_tokens", 0), ("shard_size", 1), ("num_proc", 1):
        value = getattr(args, name)
        if value < smallest:
            raise DataError(f"--{name}={value}, expected at least {smallest}")


def find_folder(args):
    """The folder of the token files: --out_dir, or data/DATASET/TOKENIZER of this repository."""
    if args.out_dir:
        return Path(args.out_dir)
    name = f"{args.tokenizer}_spaced" if args.spaced else args.tokenizer
    return Path(os.path.relpath(Path(__file__).parent / args.dataset / name))


# ---- a whole corpus ----------------------------------------------------------------------------------------------


def write(args, source, parts, read, total=inf, files=None, whole_files=False):
    """
    Tokenise a corpus into args.out_dir, going on where an interrupted run stopped, and return the folder. If another
    process is writing there, wait for it first.

    read(part, note): yields the documents (str) of a part, the same ones at every call. Empty ones are left out.
        Inside of it, note(kind, n) reports a count, such as how many characters could not be decoded.
    total: the number of documents, if it is known, for the progress bar.
    files: a LocalFile for each part, if the parts are files of this machine. It shows whether one was edited.
    whole_files: put all documents of a file into the same split.
    """
    check_options(args)
    folder = find_folder(args)
    new = new_state(args, source, len(parts), files)
    order = np.random.default_rng(args.seed).permutation(len(parts))
    parts = [parts[i] for i in order]
    val_parts = None  # which parts to validate on, (parts,) bool; None: decided for each document
    if whole_files:
        val_parts = choose_files(files, new)[order]
    with locked(folder):
        state = resume(folder, new)
        if not (folder / "meta.json").exists():
            write_shards(folder, state, parts, read, val_parts, args.num_proc, total)
            finish(folder, state)
    report(folder, state)
    if whole_files:
        print(f"validation is of other files than training: {some(itertools.compress(parts, val_parts))}")
    return folder


def report(folder, state):
    """Print what was written, in a line or a few."""
    for kind, counts in state["notes"].items():
        print(f"{sum(counts.values()):,} {kind}: {some(counts)}")
    docs, tokens = state["n_docs"], state["n_tokens"]
    megabytes = tokens * np.dtype(state["dtype"]).itemsize / 1e6
    share, wanted = sum(state["tokens"]["val"]) / tokens, state["val_fraction"]
    print(f"{folder}: {docs:,} documents, {tokens:,} tokens, {tokens / docs:,.0f} a document, "
          f"{share:.2%} to validate on, {megabytes:,.1f} MB")
    if not wanted / 2 <= share <= 2 * wanted:
        print(f"that is far from --val_fraction={wanted}: documents are few, or some are much longer than others")


def some(names):
    """The first five names, so that a line of output stays short."""
    names = list(names)
    more = ", ..." if len(names) > 5 else ""
    return ", ".join(map(str, names[:5])) + more


@contextlib.contextmanager
def locked(folder):
    """Lock a folder, so that one process at a time writes there. The system unlocks it when the process ends."""
    import fcntl  # in here, because Windows does not have it, and can still read what is there

    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)  # the folder itself, so that no other file is left in it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{folder}: another process is writing token files there; this one waits for it", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        pass  # this file system has no locks
    try:
        yield
    finally:
        os.close(lock)


# The keys of a state that must be the same when a script goes on in a folder.
SAME_KEYS = ("contents", "dataset", "tokenizer", "spaced", "seed", "val_fraction", "max_docs", "max_tokens",
             "shard_size", "source", "parts")


def new_state(args, source, n_parts, files):
    """The state of a corpus before its first shard. progress.json holds the state, and in the end meta.json does."""
    return dict(
        dataset=args.dataset, tokenizer=args.tokenizer, spaced=args.spaced, seed=args.seed,
        val_fraction=args.val_fraction, max_docs=args.max_docs, max_tokens=args.max_tokens, shard_size=args.shard_size,
        source=source, parts=n_parts, contents=checksum_of(files), command=args.command, **TOKENIZERS[args.tokenizer],
        docs=dict(train=0, val=0), tokens=dict(train=[], val=[]), crc32=dict(train=[], val=[]), n_docs=0, n_tokens=0,
        checksum="0",  # of all documents; it does not depend on their order
        part=0, row=0,  # up to which document the parts have been read
        lowest=1.0,  # the lowest draw of choose(); 1 means that there was none yet
        notes={})


def resume(folder, new):
    """The state that an earlier run with the same options has left in the folder, or the new state if there is none."""
    for path in folder / "meta.json", folder / "progress.json":
        if path.exists():
            state = read_meta(path)
            for key in SAME_KEYS:
                if state.get(key) != new[key]:
                    begun = f"{key} = {state.get(key)!r}, not {new[key]!r}"
                    if key == "contents":
                        begun = f"other text than {new['source']} holds now"
                    raise DataError(f"{folder} was begun with {begun}: delete it, or choose another --out_dir")
            for shard in shards(folder, "train", state) + shards(folder, "val", state):
                check_size(shard, state)
            return state
    # write_shard saves progress.json before the first shard, so without it the shards are from somewhere else.
    for pattern in "train.bin", "train.*.bin", "val.bin", "val.*.bin":
        if any(folder.glob(pattern)):
            raise DataError(f"{folder} holds token files that data/{new['dataset']}/prepare.py has not written "
                            f"({pattern}): move them away, or choose another --out_dir")
    return new


def write_shards(folder, state, parts, read, val_parts, n_threads, total):
    """Write the missing shards. The state, which progress.json holds as well, is brought up to date with each."""
    encode = encoder(state["tokenizer"])
    total = min(total, state["max_docs"] or inf)
    documents = unwritten(parts, read, state)
    with ThreadPoolExecutor(n_threads) as pool, \
            tqdm(documents, total=total, initial=state["n_docs"], unit=" documents") as bar:
        documents = iter(bar)
        while gathered := gather(documents, state):
            write_shard(folder, state, gathered, val_parts, encode, pool)
            bar.set_postfix_str(f"{state['n_tokens']:,} tokens")


def finish(folder, state):
    """Give a complete folder its meta.json. If one of the splits has no document, delete the files and refuse."""
    n_train, n_val = state["docs"]["train"], state["docs"]["val"]
    if n_train == 0 or n_val == 0:
        for shard in shards(folder, "train", state) + shards(folder, "val", state):
            shard.path.unlink(missing_ok=True)
        (folder / "progress.json").unlink(missing_ok=True)
        raise DataError(f"{state['source']}: {n_train} documents to train on and {n_val} to validate on, expected at "
                        "least one of each: give more text, or raise --max_docs and --max_tokens, or lower "
                        f"--val_fraction; python data/{state['dataset']}/prepare.py --help says what a document is")
    save_state(folder, state)
    os.replace(folder / "progress.json", folder / "meta.json")


# ---- what is read ------------------------------------------------------------------------------------------------


class Document(NamedTuple):
    part: int  # the number of its part, in the order in which parts are read
    row: int  # its number within the part, from 1
    text: bytes  # UTF-8


def unwritten(parts, read, state):
    """The documents that are in no shard yet."""
    import httpx2  # datasets and huggingface_hub raise its errors when a download has failed several times

    first_part, last_row = state["part"], state["row"]
    notes = state["notes"]  # filled while documents are read, and saved with the next shard
    for i in range(first_part, len(parts)):
        part = parts[i]

        def note(kind, n):
            notes.setdefault(kind, {})[str(part)] = n
        try:
            for row, text in enumerate(read(part, note), 1):
                written = i == first_part and row <= last_row
                if text and not written:
                    # "replace", because JSON can hold half of a surrogate pair, which is not a character
                    yield Document(i, row, text.encode("utf-8", "replace"))
        except (OSError, ValueError, httpx2.HTTPError) as error:
            raise DataError(f"{part} cannot be read ({error!r}); the same command will go on from there") from None


def gather(documents, state):
    """The documents of the next shard. None are left at the end of the corpus, or at --max_docs or --max_tokens."""
    room = state["shard_size"]  # [bytes]
    if state["max_tokens"] > 0:  # 8 bytes a token are nearly always enough; if not, there is another shard
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


def write_shard(folder, state, documents, val_parts, encode, pool):
    """Encode, split, shuffle and save the documents of a shard, and bring the state up to date."""
    n_shards = len(state["tokens"]["train"])
    if n_shards == 0:
        save_state(folder, state)  # before any shard, so that resume knows the shards as its own
    last = documents[-1]  # before some are dropped below: if so, the corpus is complete, and nothing is read again
    hashes = first_8_bytes(hashlib.sha256(document.text).digest() for document in documents)  # (N,)
    ids = list(pool.map(lambda document: encode_document(document.text, encode, state), documents))  # N arrays
    lengths = np.array([len(tokens) for tokens in ids])  # (N,)
    if state["max_tokens"] > 0:  # drop the documents after the one that reaches it
        n_wanted = 1 + np.searchsorted(lengths.cumsum(), state["max_tokens"] - state["n_tokens"])
        documents, hashes = documents[:n_wanted], hashes[:n_wanted]
        ids, lengths = ids[:n_wanted], lengths[:n_wanted]
    checksum = int(state["checksum"], 16) + int(hashes.sum())  # a sum does not depend on the order
    state.update(n_docs=state["n_docs"] + len(ids), n_tokens=state["n_tokens"] + int(lengths.sum()),
                 checksum=f"{checksum % 2**64:x}", part=last.part, row=last.row)
    if val_parts is None:
        to_val, state["lowest"] = choose(hashes, lengths / state["n_tokens"], state)
    else:
        to_val = val_parts[[document.part for document in documents]]
    order = np.random.default_rng([state["seed"], n_shards]).permutation(len(ids))
    save_shard(folder, "train", state, [ids[i] for i in order if not to_val[i]])
    save_shard(folder, "val", state, [ids[i] for i in order if to_val[i]])
    save_state(folder, state)


def save_shard(folder, split, state, ids):
    """Save documents as the next shard of a split. ids: a list of arrays, one for each document."""
    crc32 = 0
    for tokens in ids:
        crc32 = zlib.crc32(tokens, crc32)
    state["docs"][split] += len(ids)
    state["tokens"][split].append(sum(len(tokens) for tokens in ids))
    state["crc32"][split].append(crc32)
    save(shards(folder, split, state)[-1].path, ids)


def encode_document(text, encode, state):
    """The ids of a document (UTF-8), with its end-of-text token."""
    if state["spaced"]:
        text = " ".join(text.decode()).encode()
    return np.concatenate([*encode(text), [state["eot_token"]]], dtype=state["dtype"], casting="unsafe")


# ---- tokens and files --------------------------------------------------------------------------------------------


def encoder(tokenizer):
    """A function that turns a document (UTF-8) into its ids: a list of arrays, one after the other."""
    if tokenizer == "bytes":
        return lambda text: [np.frombuffer(text, np.uint8)]
    gpt2 = open_gpt2()
    # A very long text overflows the stack of tiktoken's regex engine, so it is cut into pieces of 100,000 characters:
    # before a space, where gpt2 begins a new token anyway, or anywhere if there is no space.
    pieces = re.compile(r".{1,100000}(?= |\Z)|.{1,100000}", re.DOTALL)

    def encode(text):
        # disallowed_special=(): the characters "<|endoftext|>" inside a document are ordinary text
        return [gpt2.encode_to_numpy(piece, disallowed_special=()) for piece in pieces.findall(text.decode())]
    return encode


def save_state(folder, state):
    save(folder / "progress.json", [json.dumps(state, indent=1).encode()])


def save(path, chunks):
    """Write under a temporary name, then rename, so that the file is complete or not there at all."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb", buffering=1 << 20) as file:
            file.writelines(chunks)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DataError(f"{path} cannot be written ({error.strerror}); the same command will go on there") from None


# ---- for the scripts ---------------------------------------------------------------------------------------------


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


def run_script(main):
    """Run main() of a prepare script. An error that a user can mend ends in one line and exit status 1."""
    import httpx2

    try:
        main()
    except (DataError, OSError, httpx2.HTTPError) as error:
        sys.exit(f"error: {error}".splitlines()[0])
    except KeyboardInterrupt:
        sys.exit("stopped; the same command will go on from here")
