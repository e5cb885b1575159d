"""
Writes token files, for every data/NAME/prepare.py. data/tokens.py describes the files, and reads them.

A corpus is a list of parts (files or URLs), and each part is read as a sequence of documents (str). A chunk of them at
a time is encoded, shuffled, divided into the two splits, and added to the file of each. So memory is bounded by
chunk_size, or 10^8 tokens. A file gets its name when it is complete, and meta.json comes last: a script that was killed
begins again.
"""

import argparse
import hashlib
import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data import tokens
from data.encode import make_encode
from data.tokens import SPLITS, TOKENIZERS, DataError

OPTIONS = "dataset", "tokenizer", "spaced", "seed", "val_fraction", "max_tokens", "chunk_size"  # of the corpus
TRIAL = 10**8  # tokens, which decide up to which draw documents are validated on


class CommandLine(argparse.ArgumentParser):
    """A mistake ends in one line, and exit status 1."""

    def error(self, message):
        sys.exit(f"error: {message}")


def number(kind, expected, is_allowed):
    """A type for add_argument: an int or a float, if it is allowed."""
    def parse(text):
        if not is_allowed(value := kind(text)):
            raise argparse.ArgumentTypeError(f"{text}, expected {expected}")
        return value
    parse.__name__ = kind.__name__  # for the message about what is no number
    return parse


def command_line(dataset, doc, **defaults):
    """The options that all prepare scripts share. defaults: a script's own defaults for some of them."""
    from_0, from_1 = number(int, "0 or more", lambda x: x >= 0), number(int, "1 or more", lambda x: x >= 1)
    share = number(float, "a share between 0 and 1", lambda x: 0 < x < 1)
    cli = CommandLine(description=doc, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--out_dir", help=f"(data/{dataset}/TOKENIZER, or TOKENIZER_spaced)")
    cli.add_argument("--num_proc", type=from_1, default=os.cpu_count(), help="threads that encode (%(default)s)")
    cli.add_argument("--tokenizer", choices=TOKENIZERS, default="gpt2", help="(%(default)s)")
    cli.add_argument("--spaced", action="store_true", help="put a space between all characters before tokenising")
    cli.add_argument("--seed", type=from_0, default=0, help="of the order and the splits (%(default)s)")
    cli.add_argument("--val_fraction", type=share, default=0.005, help="share to validate on (%(default)s)")
    cli.add_argument("--max_tokens", type=from_0, default=0, help="stop where so many are reached, 0: never")
    cli.add_argument("--chunk_size", type=from_1, default=10**8, help="tokens shuffled together (%(default)s)")
    cli.set_defaults(dataset=dataset, **defaults)
    return cli


def run_script(main):
    """Run main() of a prepare script. An error that a user can mend ends in one line and exit status 1."""
    import httpx2  # huggingface_hub raises its errors when a download has failed several times

    if sys.stdout:  # a name may have bytes that the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        main()
    except (DataError, OSError, ValueError, httpx2.HTTPError) as error:
        sys.exit(f"error: {error}".splitlines()[0])
    except KeyboardInterrupt:
        sys.exit("stopped: no token files were made; the same command begins again")


def write(args, source, parts, read, total=None, whole_files=False, in_order=False):
    """
    Tokenises a corpus into args.out_dir, unless it was made before, and returns the folder.

    read(part): yields the documents (str) of a part. Empty ones are left out.
    total: the number of documents, if it is known, for the progress bar.
    whole_files: put all documents of a part, which is a file of this machine, into the same split.
    in_order: write the documents as they come, not shuffled.
    """
    name = f"{args.tokenizer}_spaced" if args.spaced else args.tokenizer
    folder = Path(args.out_dir or os.path.relpath(Path(__file__).parent / args.dataset / name))
    asked = {option: getattr(args, option) for option in OPTIONS} | TOKENIZERS[args.tokenizer]
    asked |= dict(source=source, parts=len(parts))
    is_ours = (folder / ".lock").exists() or (folder / "meta.json").exists()  # the first is there before we write
    if any(folder.glob("*.bin")) and not is_ours:
        raise DataError(f"{folder} holds .bin files that data/{args.dataset}/prepare.py has not written: "
                        "move them away, or choose another --out_dir")
    with tokens.locked(folder, wait=True):
        if (folder / "meta.json").exists():
            require_same(folder, asked)
            print(f"{folder} was made before, and is left as it is: delete it to make it anew")
        else:
            order = range(len(parts)) if in_order else np.random.default_rng(args.seed).permutation(len(parts))
            texts = read_all(parts, read, order, whole_files)
            with ThreadPoolExecutor(args.num_proc) as pool, tqdm(texts, total=total, unit=" documents") as bar:
                make(folder, asked, encode_all(iter(bar), asked, pool), in_order)
    meta = tokens.read_meta(folder)
    n_docs, n_tokens = sum(meta["docs"].values()), sum(meta["tokens"].values())
    share, asked = meta["tokens"]["val"] / n_tokens, meta["val_fraction"]
    print(f"{folder}: {n_docs:,} documents, {n_tokens:,} tokens, {share:.2%} to validate on")
    if not 0.8 < share / asked < 1.25:
        print(f"--val_fraction={asked} does not come out, because a document is in one split only, and these are long")
    return folder


def read_all(parts, read, order, whole_files):
    """Yields each text with the SHA-256 that chooses its split. It is that of its file, or "" for its own."""
    for i in order:
        try:
            digest = tokens.digest(parts[i]) if whole_files else ""
            for text in read(parts[i]):
                if text:
                    yield text, digest
        except OSError as error:  # or it would be taken for one of writing
            raise DataError(f"{parts[i]}: {error}") from error


def require_same(folder, asked):
    """DataError if the folder does not hold the corpus that is asked for."""
    meta = tokens.read_meta(folder)
    for key, value in asked.items():
        if meta.get(key) != value:
            raise DataError(f"{folder} was made with {key} = {meta.get(key)!r}, not {value!r}: delete it, or choose "
                            "another --out_dir")


def make(folder, meta, documents, in_order):
    """Write train.bin and val.bin, and at the end meta.json."""
    docs = dict.fromkeys(SPLITS, 0)
    with tokens.replacing(folder / "train.bin") as train, tokens.replacing(folder / "val.bin") as val:
        trial = next(in_chunks(documents, meta | dict(chunk_size=TRIAL)), [])
        limit = highest_val_draw(trial, meta["val_fraction"])
        for i, chunk in enumerate(in_chunks(itertools.chain(trial, documents), meta)):
            draws, ids = zip(*chunk)
            draws = np.array(draws)  # (N,)
            to_val = draws <= limit  # (N,) bool
            order = range(len(chunk)) if in_order else np.random.default_rng([meta["seed"], i]).permutation(len(chunk))
            for split, path, chosen in ("train", train, ~to_val), ("val", val, to_val):
                with tokens.writing(folder / f"{split}.bin"), open(path, "ab") as file:
                    file.writelines(ids[j] for j in order if chosen[j])
                docs[split] += int(chosen.sum())
        if not all(docs.values()):
            raise DataError(f"{meta['source']}: {docs['train']} documents to train on and {docs['val']} to validate "
                            "on, expected at least one of each: give more text, or raise --max_tokens, or lower "
                            "--val_fraction")
    stats = {split: (folder / f"{split}.bin").stat() for split in SPLITS}
    tokens.write_json(folder / "meta.json", meta | dict(
        docs=docs,
        tokens={split: stat.st_size // np.dtype(meta["dtype"]).itemsize for split, stat in stats.items()},
        sha256={split: tokens.digest(folder / f"{split}.bin") for split in SPLITS},
        files={split: dict(size=stat.st_size, mtime_ns=stat.st_mtime_ns) for split, stat in stats.items()},
    ))


def highest_val_draw(documents, share):
    """
    Returns the draw up to which documents are validated on.

    The draw of a document is below 0.05 in 5 of 100 cases. Another limit is chosen if 0.05 misses 5 % of the tokens by
    more than a document. (Corpora that were made with 0.05 itself stay as they are.)
    """
    draws, group = np.unique([draw for draw, _ in documents], return_inverse=True)
    if len(draws) < 2:
        return share
    sizes = np.bincount(group, [len(ids) for _, ids in documents])  # tokens: of equal texts, or of a whole file
    wanted = share * sizes.sum()
    found = sizes[draws <= share].sum()
    if found > 0 and abs(found - wanted) <= min(sizes.max(), wanted / 5):
        return share
    below = sizes.cumsum()[:-1]  # tokens up to each draw; the last document is left to train on
    return draws[abs(below - wanted).argmin()]


def encode_all(texts, meta, pool):
    """
    Yields for each pair of a text and a SHA-256 ("": that of the text) its draw, a number in [0, 1), and its ids (N,).
    The draw decides on the split. Equal texts have equal ones.
    """
    encode = make_encode(meta)
    secret = int(np.random.SeedSequence(meta["seed"]).generate_state(1, np.uint64)[0])

    def encode_one(pair):
        text, digest = pair
        utf8 = text.encode("utf-8", "replace")  # JSON can hold half of a surrogate pair, which is not a character
        text = utf8.decode()
        ids = encode(" ".join(text) if meta["spaced"] else text)
        first_8_bytes = bytes.fromhex(digest or hashlib.sha256(utf8).hexdigest())[:8]
        draw = (int.from_bytes(first_8_bytes, "little") ^ secret) / 2.0**64
        return draw, np.append(ids, meta["eot_token"]).astype(meta["dtype"])

    while batch := list(itertools.islice(texts, 256)):  # not all of them, because pool.map reads its whole input
        yield from pool.map(encode_one, batch)


def in_chunks(documents, meta):
    """Lists of documents with chunk_size tokens each, until there are max_tokens in all."""
    left = meta["max_tokens"] or inf
    chunk, size = [], 0
    for draw, ids in documents:
        chunk.append((draw, ids))
        size += len(ids)
        if size >= min(meta["chunk_size"], left):
            yield chunk
            left -= size
            chunk, size = [], 0
        if left <= 0:
            return
    if chunk:
        yield chunk
