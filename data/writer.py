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
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data.disk import locked, write_json, writing
from data.split import choose, first_8_bytes, look_at
from data.tokens import TOKENIZERS, DataError, open_gpt2, read_meta, require_size

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
    cli.add_argument("--seed", type=int, default=0, help="of the order and the splits (%(default)s)")
    cli.add_argument("--val_fraction", type=float, default=0.005, help="share to validate on (%(default)s)")
    cli.add_argument("--max_tokens", type=int, default=0, help="stop where so many are reached, 0: never")
    cli.add_argument("--chunk_size", type=int, default=10**8, help="bytes of text shuffled together (%(default)s)")

    _, changing_tokens = free.parse_known_args(argv)
    command = shlex.join(["python", f"data/{dataset}/prepare.py", *changing_tokens])
    cli.set_defaults(dataset=dataset, command=command, **defaults)
    return cli


def find_folder(args):
    """The folder of the token files: --out_dir, or data/DATASET/TOKENIZER of this repository."""
    if args.out_dir:
        return Path(args.out_dir)
    name = f"{args.tokenizer}_spaced" if args.spaced else args.tokenizer
    return Path(os.path.relpath(Path(__file__).parent / args.dataset / name))


def run_script(main):
    """Run main() of a prepare script. An error that a user can mend ends in one line and exit status 1."""
    import httpx2

    sys.stdout.reconfigure(errors="replace")  # the name of a file may be no UTF-8
    try:
        main()
    except (DataError, OSError, ValueError, httpx2.HTTPError) as error:
        sys.exit(f"error: {error}".splitlines()[0])
    except KeyboardInterrupt:
        sys.exit("stopped; the same command will go on from here")


# ---- a whole corpus ----------------------------------------------------------------------------------------------


def write(args, source, parts, read, total=None, files=(), whole_files=False):
    """
    Tokenise a corpus into args.out_dir, going on where an interrupted run stopped, and return the folder. If another
    process is writing there, wait for it first.

    read(part, note): yields the documents (str) of a part, the same ones at every call. Empty ones are left out.
        Inside of it, note(kind, n) reports a count, such as how many characters could not be decoded.
    total: the number of documents, if it is known, for the progress bar.
    files: the paths of the parts, if these are files of this machine. Then a later run sees whether one was edited.
    whole_files: put all documents of a file into the same split.
    """
    folder = find_folder(args)
    digests = look_at(files)
    new = new_state(args, source, len(parts), digests)
    order = np.random.default_rng(args.seed).permutation(len(parts))
    parts = [parts[i] for i in order]
    val_parts = None  # which parts to validate on, (parts,) bool; None: decided for each document
    if whole_files:
        sizes = np.array([os.path.getsize(path) for path in files])
        val_parts = choose(digests, sizes, sizes.sum(), new)[0][order]
    with locked(folder, wait=True):
        state = resume(folder, new)
        if not (folder / "meta.json").exists():
            write_chunks(folder, state, parts, read, val_parts, args.num_proc, total)
            for kind, counts in state["notes"].items():
                print(f"{sum(counts.values()):,} {kind}: {some(counts)}")
            finish(folder, state)
    print(summary(folder, state))
    if whole_files:
        print(f"validation is of other files than training: {some(itertools.compress(parts, val_parts))}")
    return folder


def summary(folder, state):
    """What is in a finished folder, in a line, and in another one if the splits are not as they were asked for."""
    docs, tokens = state["n_docs"], state["n_tokens"]
    megabytes = tokens * np.dtype(state["dtype"]).itemsize / 1e6
    share = state["tokens"]["val"] / tokens
    text = (f"{folder}: {docs:,} documents, {tokens:,} tokens, {tokens / docs:,.0f} a document, "
            f"{share:.2%} to validate on, {megabytes:,.1f} MB")
    wanted = state["val_fraction"]
    if share < wanted / 2 or share > wanted * 2:
        text += f"\n{share:.2%} is far from --val_fraction={wanted}: documents are few, or some are very long"
    return text


def some(names):
    """The first five names, so that a line of output stays short."""
    names = [str(name) for name in names]
    more = ", ..." if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


# ---- the state ---------------------------------------------------------------------------------------------------

OPTIONS = "dataset", "tokenizer", "spaced", "seed", "val_fraction", "max_tokens", "chunk_size"


def new_state(args, source, n_parts, digests):
    """The state of a corpus before its first chunk. progress.json holds the state, and in the end meta.json does."""
    contents = hashlib.sha256(b"".join(digests)).hexdigest() if digests else ""  # changes if a file is edited
    return dict(
        **{option: getattr(args, option) for option in OPTIONS},
        source=source, parts=n_parts, contents=contents, command=args.command, **TOKENIZERS[args.tokenizer],
        docs=dict(train=0, val=0), tokens=dict(train=0, val=0), n_docs=0, n_tokens=0,
        chunks=0,  # how many have been written
        checksum="0",  # of all documents; it does not depend on their order
        part=0, row=0,  # up to which document the parts have been read
        lowest=1.0,  # the lowest draw of choose(); 1 means that there was none yet
        notes={})


def resume(folder, new):
    """The state that an earlier run has left in the folder, or the new one. DataError if they do not agree."""
    for path in folder / "meta.json", folder / "progress.json":
        if path.exists():
            state = read_meta(path)
            for key in "contents", *OPTIONS, "source", "parts":
                if state.get(key) != new[key]:
                    was = f"{key} = {state.get(key)!r}, not {new[key]!r}"
                    if key == "contents":
                        was = "other text"
                    raise DataError(f"{folder} was begun with {was}: delete it, or choose another --out_dir")
            for split in "train", "val":
                # A run that was killed may have written more.
                require_size(folder, split, state, at_least=path.name == "progress.json")
            return state
    # save_chunk saves progress.json before the first chunk, so without it the files are from somewhere else.
    if any(folder.glob("*.bin")):
        raise DataError(f"{folder} holds .bin files that data/{new['dataset']}/prepare.py has not written: "
                        "move them away, or choose another --out_dir")
    return new


def finish(folder, state):
    """Give a complete folder its meta.json. If a split has no document, delete the files and refuse."""
    n_train, n_val = state["docs"]["train"], state["docs"]["val"]
    if n_train == 0 or n_val == 0:
        for name in "train.bin", "val.bin", "progress.json":
            (folder / name).unlink(missing_ok=True)
        raise DataError(f"{state['source']}: {n_train} documents to train on and {n_val} to validate on, expected at "
                        "least one of each: give more text, or raise --max_tokens, or lower --val_fraction")
    write_json(folder / "progress.json", state)
    os.replace(folder / "progress.json", folder / "meta.json")


# ---- documents ---------------------------------------------------------------------------------------------------


class Document(NamedTuple):
    part: int  # the number of its part, in the order in which parts are read
    row: int  # its number within the part, from 1
    text: bytes  # UTF-8


def unwritten(parts, read, state):
    """The documents that are in no file yet."""
    import httpx2  # datasets and huggingface_hub raise its errors when a download has failed several times

    first_part, last_row = state["part"], state["row"]
    for i in range(first_part, len(parts)):
        part = parts[i]

        def note(kind, n):  # saved with the next chunk
            state["notes"].setdefault(kind, {})[str(part)] = n
        try:
            for row, text in enumerate(read(part, note), 1):
                written = i == first_part and row <= last_row
                if text and not written:
                    # "replace", because JSON can hold half of a surrogate pair, which is not a character
                    yield Document(i, row, text.encode("utf-8", "replace"))
        except (OSError, ValueError, httpx2.HTTPError) as error:
            raise DataError(f"{part} cannot be read ({error!r}); the same command will go on from there") from None


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


def encoder(state):
    """A function that turns a document into its ids, with the end-of-text token."""
    gpt2 = open_gpt2() if state["tokenizer"] == "gpt2" else None
    # A very long text overflows the stack of tiktoken's regex engine, so it is cut into pieces of 100,000 characters:
    # before a space, where gpt2 begins a new token anyway, or anywhere if there is no space.
    pieces = re.compile(r".{1,100000}(?= |\Z)|.{1,100000}", re.DOTALL)

    def encode(document):
        text = document.text.decode()
        if state["spaced"]:
            text = " ".join(text)
        if gpt2:
            # disallowed_special=(): the characters "<|endoftext|>" inside a document are ordinary text
            ids = [gpt2.encode_to_numpy(piece, disallowed_special=()) for piece in pieces.findall(text)]
        else:
            ids = [np.frombuffer(text.encode(), np.uint8)]
        return np.concatenate([*ids, [state["eot_token"]]], dtype=state["dtype"], casting="unsafe")
    return encode


def encoded(documents, encode, pool):
    """Each document and its ids."""
    while batch := list(itertools.islice(documents, 256)):  # not all of them, because pool.map reads its whole input
        yield from zip(batch, pool.map(encode, batch))


# ---- chunks ------------------------------------------------------------------------------------------------------


def write_chunks(folder, state, parts, read, val_parts, n_threads, total):
    """Write the missing chunks, and bring the state up to date with each."""
    documents = unwritten(parts, read, state)
    with ThreadPoolExecutor(n_threads) as pool, \
            tqdm(documents, total=total, initial=state["n_docs"], unit=" documents") as bar:
        pairs = encoded(iter(bar), encoder(state), pool)
        while chunk := gather(pairs, state):
            save_chunk(folder, state, chunk, val_parts)
            bar.set_postfix_str(f"{state['n_tokens']:,} tokens")


def gather(pairs, state):
    """The next chunk: a list of (document, its ids). It is empty at the end of the corpus, or at --max_tokens."""
    found = []
    size = 0  # [bytes]
    n_tokens = state["n_tokens"]
    while size < state["chunk_size"] and n_tokens < (state["max_tokens"] or inf):
        document, ids = next(pairs, (None, None))
        if document is None:
            break
        found.append((document, ids))
        size += len(document.text)
        n_tokens += len(ids)
    return found


def save_chunk(folder, state, chunk, val_parts):
    """Split, shuffle and write a list of (document, its ids), and bring the state up to date."""
    if state["chunks"] == 0:
        write_json(folder / "progress.json", state)  # before any token, so that resume knows the files as its own
    documents, ids = zip(*chunk)
    digests = [hashlib.sha256(document.text).digest() for document in documents]
    lengths = np.array([len(tokens) for tokens in ids])  # (N,)
    checksum = int(state["checksum"], 16) + int(first_8_bytes(digests).sum())  # a sum does not depend on the order
    order = np.random.default_rng([state["seed"], state["chunks"]]).permutation(len(ids))
    state.update(n_docs=state["n_docs"] + len(ids), n_tokens=state["n_tokens"] + int(lengths.sum()),
                 checksum=f"{checksum % 2**64:x}", part=documents[-1].part, row=documents[-1].row,
                 chunks=state["chunks"] + 1)
    if val_parts is None:
        to_val, state["lowest"] = choose(digests, lengths, state["n_tokens"], state)
    else:
        to_val = val_parts[[document.part for document in documents]]  # (N,) bool
    for split, chosen in ("train", ~to_val), ("val", to_val):
        docs = [ids[i] for i in order if chosen[i]]
        tokens = np.concatenate([np.empty(0, state["dtype"]), *docs])  # np.empty: there may be no document
        path = folder / f"{split}.bin"
        with writing(path), open(path, "ab") as file:
            file.truncate(state["tokens"][split] * tokens.itemsize)  # a run that was killed may have written more
            file.write(tokens)
            file.flush()
            os.fsync(file.fileno())  # before progress.json, or after a power cut that could know of more
        state["docs"][split] += len(docs)
        state["tokens"][split] += len(tokens)
    write_json(folder / "progress.json", state)
