"""
Writes token files, for every data/NAME/prepare.py. data/tokens.py describes the files, and reads them.

A corpus is a list of parts (files or URLs), and each part is read as a sequence of documents (str). About 100 MB of
documents, a chunk, are read at a time. They are encoded, shuffled, divided into the two splits, and added to the file
of each. So memory is bounded by the size of a chunk.

Until the end the folder has a file .unfinished, which then becomes meta.json. A script that was killed before that
begins again when it is next run: nothing half-made is taken for whole.
"""

import argparse
import hashlib
import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data import tokens
from data.encode import make_encode
from data.tokens import SPLITS, TOKENIZERS, DataError

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


def require_range(args):
    lowest = dict(num_proc=1, seed=0, val_fraction=0, max_tokens=0, chunk_size=1)
    for name, low in lowest.items():
        value = getattr(args, name)
        high = 1 if name == "val_fraction" else inf
        if not low <= value <= high:
            raise DataError(f"--{name}={value}, expected a number from {low} to {high}")


def find_folder(args):
    """The folder of the token files: --out_dir, or data/DATASET/TOKENIZER of this repository."""
    if args.out_dir:
        return Path(args.out_dir)
    name = f"{args.tokenizer}_spaced" if args.spaced else args.tokenizer
    return Path(os.path.relpath(Path(__file__).parent / args.dataset / name))


def run_script(main):
    """Run main() of a prepare script. An error that a user can mend ends in one line and exit status 1."""
    import httpx2  # datasets and huggingface_hub raise its errors when a download has failed several times

    if sys.stdout:  # a name may have bytes that the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        main()
    except (DataError, OSError, ValueError, httpx2.HTTPError) as error:
        sys.exit(f"error: {error}".splitlines()[0])
    except KeyboardInterrupt:
        sys.exit("stopped: no token files were made; the same command begins again")


# ---- a whole corpus ----------------------------------------------------------------------------------------------

OPTIONS = "dataset", "tokenizer", "spaced", "seed", "val_fraction", "max_tokens", "chunk_size"


def write(args, source, parts, read, total=None, files=(), whole_files=False, in_order=False):
    """
    Tokenise a corpus into args.out_dir, unless it is there, and return the folder. If another process is writing
    there, wait for it first.

    read(part): yields the documents (str) of a part. Empty ones are left out.
    total: the number of documents, if it is known, for the progress bar.
    files: the paths of the parts, if these are files of this machine. Then a later run sees whether one was edited.
    whole_files: put all documents of a file into the same split.
    in_order: write the documents as they come, not shuffled.
    """
    require_range(args)
    folder = find_folder(args)
    meta = {option: getattr(args, option) for option in OPTIONS} | TOKENIZERS[args.tokenizer]
    digests = [tokens.digest(path) for path in tqdm(files, "looking at files", leave=False, disable=None)]
    meta |= dict(source=source, parts=len(parts), contents=hashlib.sha256("".join(digests).encode()).hexdigest())
    order = range(len(parts)) if in_order else np.random.default_rng(args.seed).permutation(len(parts))
    # A text, and the SHA-256 by which its split is chosen, if that is not its own.
    texts = ((text, digests[i] if whole_files else None) for i in order for text in read(parts[i]) if text)
    with tokens.locked(folder, wait=True):
        if not is_finished(folder, meta):
            try:
                with ThreadPoolExecutor(args.num_proc) as pool, tqdm(texts, total=total, unit=" documents") as bar:
                    make(folder, meta, encode_all(iter(bar), meta, pool), in_order)
            finally:
                if not (folder / "meta.json").exists():
                    clear(folder)
    print(summary(folder))
    return folder


def is_finished(folder, asked):
    """Whether the folder holds the corpus that is asked for. DataError if it holds something else."""
    if (folder / "meta.json").exists():
        meta = tokens.read_meta(folder)
        for key, value in asked.items():
            if meta.get(key) != value:
                was = "other text" if key == "contents" else f"{key} = {meta.get(key)!r}, not {value!r}"
                raise DataError(f"{folder} was made with {was}: delete it, or choose another --out_dir")
        return True
    if any(folder.glob("*.bin")) and not (folder / ".unfinished").exists():
        raise DataError(f"{folder} holds .bin files that data/{asked['dataset']}/prepare.py has not written: "
                        "move them away, or choose another --out_dir")
    return False


def make(folder, meta, documents, in_order):
    """Write train.bin and val.bin, and at the end meta.json."""
    clear(folder)  # what a run that was killed has left
    tokens.write_json(folder / ".unfinished", meta)  # so that a later run knows the files as its own
    docs = dict.fromkeys(SPLITS, 0)
    for i, chunk in enumerate(in_chunks(documents, meta)):
        draws = draw([document.digest for document in chunk], meta["seed"])  # (N,)
        if i == 0:
            lowest = draws.min()  # this one validates in any case: even a small corpus needs a validation split
        to_val = (draws < meta["val_fraction"]) | (draws == lowest)  # (N,) bool
        order = range(len(chunk)) if in_order else np.random.default_rng([meta["seed"], i]).permutation(len(chunk))
        for split, chosen in ("train", ~to_val), ("val", to_val):
            append(folder / f"{split}.bin", [chunk[j].ids for j in order if chosen[j]])
            docs[split] += int(chosen.sum())
    if not all(docs.values()):
        raise DataError(f"{meta['source']}: {docs['train']} documents to train on and {docs['val']} to validate on, "
                        "expected at least one of each: give more text, or raise --max_tokens, or lower "
                        "--val_fraction")
    meta |= dict(docs=docs, tokens={}, sha256={}, files={})
    for split in SPLITS:
        path = folder / f"{split}.bin"
        stat = path.stat()
        meta["tokens"][split] = stat.st_size // np.dtype(meta["dtype"]).itemsize
        meta["sha256"][split] = tokens.digest(path)
        meta["files"][split] = dict(size=stat.st_size, mtime_ns=stat.st_mtime_ns)
    tokens.write_json(folder / ".unfinished", meta)
    os.replace(folder / ".unfinished", folder / "meta.json")


def clear(folder):
    for name in "train.bin", "val.bin", ".unfinished":
        (folder / name).unlink(missing_ok=True)


def append(path, arrays):
    with tokens.writing(path, "mend that and run this again"), open(path, "ab") as file:
        file.writelines(arrays)
        file.flush()
        os.fsync(file.fileno())  # before meta.json, or after a power cut that could be there without the bytes


def draw(digests, seed):
    """A number in [0, 1) for each SHA-256: (N,). Equal texts have equal ones, so they are in the same split."""
    first_8_bytes = b"".join(bytes.fromhex(digest)[:8] for digest in digests)
    secret = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    return (np.frombuffer(first_8_bytes, "<u8") ^ secret) / 2.0**64


def summary(folder):
    """What is in a finished folder, in a line."""
    meta = tokens.read_meta(folder)
    n_docs, n_tokens = sum(meta["docs"].values()), sum(meta["tokens"].values())
    megabytes = n_tokens * np.dtype(meta["dtype"]).itemsize / 1e6
    share = meta["tokens"]["val"] / n_tokens
    return (f"{folder}: {n_docs:,} documents, {n_tokens:,} tokens, {n_tokens / n_docs:,.0f} a document, "
            f"{share:.2%} to validate on, {megabytes:,.1f} MB")


# ---- documents ---------------------------------------------------------------------------------------------------


class Document(NamedTuple):
    n_bytes: int  # of its text
    digest: str  # SHA-256 of its text or of its file, by which its split is chosen
    ids: np.ndarray  # its tokens, with the end-of-text token


def encode_all(texts, meta, pool):
    """A Document for each pair of a text and the SHA-256 of its file (None: that of the text is taken)."""
    encode = make_encode(meta)

    def make_document(pair):
        text, digest = pair
        utf8 = text.encode("utf-8", "replace")  # JSON can hold half of a surrogate pair, which is not a character
        text = utf8.decode()
        ids = encode(" ".join(text) if meta["spaced"] else text)
        ids = np.append(ids, meta["eot_token"]).astype(meta["dtype"])
        return Document(len(utf8), digest or hashlib.sha256(utf8).hexdigest(), ids)

    while batch := list(itertools.islice(texts, 256)):  # not all of them, because pool.map reads its whole input
        yield from pool.map(make_document, batch)


def in_chunks(documents, meta):
    """Lists of documents with chunk_size bytes of text each, until max_tokens are reached."""
    chunk, n_bytes, n_tokens = [], 0, 0
    for document in documents:
        chunk.append(document)
        n_bytes += document.n_bytes
        n_tokens += len(document.ids)
        is_last = n_tokens >= (meta["max_tokens"] or inf)
        if n_bytes >= meta["chunk_size"] or is_last:
            yield chunk
            chunk, n_bytes = [], 0
        if is_last:
            return
    if chunk:
        yield chunk
