"""
Writes token files, for every data/NAME/prepare.py. data/tokens.py describes the files, and reads them.

A corpus is a list of files or URLs, and each of them is read as a sequence of documents (str). Documents are encoded,
and added to the file of their split, in the order in which they come: data/batches.py shuffles. train.bin and val.bin
get their names when they are complete, and meta.json comes last. So a script that was killed begins again.

A document is validated on if a number in [0, 1), which is made of its SHA-256, is below --val_fraction. So it is in the
same split in every order, and equal documents are in one split.
"""

import argparse
import hashlib
import itertools
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from config import prepare_streams
from data import tokens
from data.atomic import locked, replacing, write_json
from data.tokens import SPLITS, TOKENIZERS, DataError

SECRET = 0xDB2CD7E7B0F478BE  # another number would make other splits


def command_line(dataset, doc, **defaults):
    """Returns a parser with the options that all prepare scripts share. defaults: a script's own for some of them."""
    cli = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--out_dir", help=f"(data/{dataset}/TOKENIZER, or TOKENIZER_spaced)")
    cli.add_argument("--tokenizer", choices=TOKENIZERS, default="gpt2", help="(%(default)s)")
    cli.add_argument("--spaced", action="store_true", help="put a space between all characters before tokenising")
    cli.add_argument("--val_fraction", type=float, default=0.005, help="share to validate on (%(default)s)")
    cli.add_argument("--max_tokens", type=int, default=0, help="stop where so many are reached, 0: never")
    cli.set_defaults(dataset=dataset, **defaults)
    return cli


def run_script(main):
    """Runs main() of a prepare script. An error that a user can mend ends in one line and exit status 1."""
    import httpx2  # huggingface_hub raises its errors when a download has failed several times

    prepare_streams()
    try:
        main()
    except (DataError, OSError, ValueError, httpx2.HTTPError) as error:
        sys.exit(f"error: {error}".splitlines()[0])
    except KeyboardInterrupt:
        sys.exit("stopped: no token files were made; the same command begins again")


def write(cli, args, files, read, whole_files=False, total=None):
    """
    Tokenises a corpus into args.out_dir, unless it was made before, and returns the folder.

    cli, args: the parser of a script and what it has found, which is all that tells this corpus from another one.
    read(file): yields the documents (str) of a file or URL. Empty ones are left out.
    whole_files: put all documents of a file, which is on this machine, into the same split.
    total: the number of documents, if it is known, for the progress bar.
    """
    folder = find_folder(args)
    asked = vars(args) | TOKENIZERS[args.tokenizer] | dict(out_dir=None, parts=len(files))
    with locked(folder, wait=True):
        if (folder / "meta.json").exists():
            meta = tokens.load(folder).meta
            for key, value in asked.items():
                before = meta.get(key, cli.get_default(key))  # an option that is newer than the folder
                if before != value:
                    raise DataError(f"{folder} was made with {key} = {before!r}, not {value!r}: delete it, or choose "
                                    "another --out_dir")
            print(f"{folder} was made before, and is left as it is: delete it to make it anew")
        else:
            split_of = split_files(files, args.val_fraction) if whole_files else {}
            documents = encode_all(read_all(files, read, split_of), asked)
            meta = write_splits(folder, asked, tqdm(documents, total=total, unit=" documents"))
    n_docs, n_tokens = sum(meta["docs"].values()), sum(meta["tokens"].values())
    share = meta["tokens"]["val"] / n_tokens
    print(f"{folder}: {n_docs:,} documents, {n_tokens:,} tokens, {share:.2%} to validate on")
    if meta.get("empty"):
        print(f"{meta['empty']:,} empty documents are left out")
    if not 0.8 < share / args.val_fraction < 1.25:
        print(f"--val_fraction={args.val_fraction} does not come out, because a document is in one split only, and "
              "these are few or of unequal length")
    return folder


def find_folder(args):
    """Returns the folder to write to. Raises DataError if it has files of another program, or if a number is wrong."""
    if args.max_tokens < 0 or not 0 < args.val_fraction < 1:
        raise DataError(f"--max_tokens={args.max_tokens} and --val_fraction={args.val_fraction}, expected 0 or more, "
                        "and a share between 0 and 1")
    if args.out_dir == "":  # as of an unset variable of a shell
        raise DataError("--out_dir= is empty, expected a path")
    name = f"{args.tokenizer}_spaced" if args.spaced else args.tokenizer
    folder = Path(args.out_dir or os.path.relpath(Path(__file__).parent / args.dataset / name)).expanduser()
    is_ours = (folder / ".lock").exists() or (folder / "meta.json").exists()  # the lock is there before we write
    if any(folder.glob("*.bin")) and not is_ours:  # such as the train.bin of nanoGPT
        raise DataError(f"{folder} holds .bin files that no prepare.py of ours has written: move them away, or choose "
                        "another --out_dir")
    return folder


def split_files(files, val_fraction):
    """
    Returns {file: its split}, such that about val_fraction of all bytes are to validate on.

    Files come in the order of their SHA-256. One is validated on if this brings the share nearer to val_fraction.
    """
    digest_of = {file: tokens.digest(file) for file in files}
    sizes = Counter()  # SHA-256 -> the bytes of all files that have it, which are in one split
    for file, digest in digest_of.items():
        sizes[digest] += os.path.getsize(file)
    missing = val_fraction * sizes.total()  # bytes
    val = set()
    for digest, n_bytes in sorted(sizes.items()):
        if n_bytes < 2 * missing:
            val.add(digest)
            missing -= n_bytes
    return {file: "val" if digest in val else "train" for file, digest in digest_of.items()}


def read_all(files, read, split_of):
    """Yields each text, and the split of its file, or None if each of its texts has its own."""
    for file in files:
        try:
            for text in read(file):
                yield text, split_of.get(file)
        except OSError as error:  # or it would be taken for one of writing
            raise DataError(f"{file}: {error}") from error


def encode_all(texts, meta):
    """Yields the split and the ids (N,) of each text. texts: as read_all yields them."""
    encode = tokens.make_encode(meta)

    def encode_one(pair):
        text, split = pair
        utf8 = text.encode("utf-8", "replace")  # JSON can hold half of a surrogate pair, which is not a character
        text = utf8.decode()
        ids = encode(" ".join(text) if meta["spaced"] else text)
        if np.max(ids, initial=0) >= meta["n_vocab"]:
            raise DataError(f"{meta['tokenizer']} has made a token {max(ids)}, expected less than its n_vocab = "
                            f"{meta['n_vocab']} in data/tokens.py")
        if split is None:
            first_8_bytes = hashlib.sha256(utf8).digest()[:8]
            draw = (int.from_bytes(first_8_bytes, "little") ^ SECRET) / 2.0**64
            split = "val" if draw < meta["val_fraction"] else "train"
        return split, np.append(ids, meta["eot_token"]).astype(meta["dtype"])

    with ThreadPoolExecutor() as pool:
        while batch := list(itertools.islice(texts, 256)):  # not all of them, because pool.map reads its whole input
            yield from pool.map(encode_one, batch)


def write_splits(folder, meta, documents):
    """Writes train.bin and val.bin, and at the end meta.json. Returns what is in it."""
    n_docs, n_tokens, n_empty = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0), 0
    with (replacing(folder / "train.bin") as train, open(train, "wb") as train_file,
          replacing(folder / "val.bin") as val, open(val, "wb") as val_file):
        files = dict(train=train_file, val=val_file)
        for split, ids in documents:
            if len(ids) == 1:  # nothing but the end of a document
                n_empty += 1
                continue
            files[split].write(ids)
            n_docs[split] += 1
            n_tokens[split] += len(ids)
            if 0 < meta["max_tokens"] <= sum(n_tokens.values()):
                break
        if not all(n_docs.values()):
            raise DataError(f"{n_docs['train']} documents to train on and {n_docs['val']} to validate on, expected at "
                            "least one of each: give more text, or another --val_fraction, or raise --max_tokens")
    sha256 = {split: tokens.digest(folder / f"{split}.bin") for split in SPLITS}
    meta |= dict(docs=n_docs, tokens=n_tokens, empty=n_empty, sha256=sha256)
    write_json(folder / "meta.json", meta)
    return meta
