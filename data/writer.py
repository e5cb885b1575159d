"""
Writes token files, for every data/NAME/prepare.py. data/tokens.py describes the files, and reads them.

A corpus is a list of parts (files or URLs), and each part is read as a sequence of documents (str). Documents are
encoded, and added to the file of their split, in the order in which they come: data/batches.py shuffles. A file gets
its name when it is complete, and meta.json comes last. So a script that was killed begins again.
"""

import argparse
import hashlib
import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data import tokens
from data.atomic import locked, replacing, write_json
from data.tokens import SPLITS, TOKENIZERS, DataError

TRIAL = 10**8  # tokens, kept in memory: they decide up to which draw documents are validated on
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

    sys.stdout.reconfigure(errors="backslashreplace")  # a name may have bytes that the terminal cannot show
    try:
        main()
    except (DataError, OSError, ValueError, httpx2.HTTPError) as error:
        sys.exit(f"error: {error}".splitlines()[0])
    except KeyboardInterrupt:
        sys.exit("stopped: no token files were made; the same command begins again")


def write(args, parts, read, whole_files=False, total=None):
    """
    Tokenises a corpus into args.out_dir, unless it was made before, and returns the folder.

    args: all that tells this corpus from another one.
    read(part): yields the documents (str) of a part. Empty ones are left out.
    whole_files: put all documents of a part, which is a file of this machine, into the same split.
    total: the number of documents, if it is known, for the progress bar.
    """
    if args.max_tokens < 0 or not 0 < args.val_fraction < 1:
        raise DataError(f"--max_tokens={args.max_tokens} and --val_fraction={args.val_fraction}, expected 0 or more, "
                        "and a share between 0 and 1")
    if args.out_dir == "":  # as of an unset variable of a shell
        raise DataError("--out_dir= is empty, expected a path")
    name = f"{args.tokenizer}_spaced" if args.spaced else args.tokenizer
    folder = Path(args.out_dir or os.path.relpath(Path(__file__).parent / args.dataset / name))
    asked = vars(args) | TOKENIZERS[args.tokenizer] | dict(out_dir=None, parts=len(parts))
    is_ours = (folder / ".lock").exists() or (folder / "meta.json").exists()  # the lock is there before we write
    if any(folder.glob("*.bin")) and not is_ours:  # such as the train.bin of nanoGPT
        raise DataError(f"{folder} holds .bin files that no prepare.py of ours has written: move them away, or choose "
                        "another --out_dir")
    with locked(folder, wait=True):
        if (folder / "meta.json").exists():
            meta = tokens.load(folder).meta
            for key, value in asked.items():
                if meta.get(key) != value:
                    raise DataError(f"{folder} was made with {key} = {meta.get(key)!r}, not {value!r}: delete it, or "
                                    "choose another --out_dir")
            print(f"{folder} was made before, and is left as it is: delete it to make it anew")
        else:
            texts = read_all(parts, read, whole_files)
            documents = up_to(args.max_tokens or np.inf, encode_all(texts, asked))
            meta = write_splits(folder, asked, iter(tqdm(documents, total=total, unit=" documents")))
    n_docs, n_tokens = sum(meta["docs"].values()), sum(meta["tokens"].values())
    share = meta["tokens"]["val"] / n_tokens
    print(f"{folder}: {n_docs:,} documents, {n_tokens:,} tokens, {share:.2%} to validate on")
    if not 0.8 < share / args.val_fraction < 1.25:
        print(f"--val_fraction={args.val_fraction} does not come out, because a document is in one split only, and "
              "these are long")
    return folder


def read_all(parts, read, whole_files):
    """Yields each text, and the SHA-256 that chooses its split: of its file, or None for its own."""
    for part in parts:
        try:
            digest = tokens.digest(part) if whole_files else None
            for text in read(part):
                if text:
                    yield text, digest
        except OSError as error:  # or it would be taken for one of writing
            raise DataError(f"{part}: {error}") from error


def encode_all(texts, meta):
    """
    Yields the draw and the ids (N,) of each text. texts: as read_all yields them.

    The draw is a number in [0, 1), which decides on the split. It is made of the SHA-256: equal texts have equal draws.
    """
    encode = tokens.make_encode(meta)

    def encode_one(pair):
        text, digest = pair
        utf8 = text.encode("utf-8", "replace")  # JSON can hold half of a surrogate pair, which is not a character
        text = utf8.decode()
        ids = encode(" ".join(text) if meta["spaced"] else text)
        first_8_bytes = bytes.fromhex(digest or hashlib.sha256(utf8).hexdigest())[:8]
        draw = (int.from_bytes(first_8_bytes, "little") ^ SECRET) / 2.0**64
        return draw, np.append(ids, meta["eot_token"]).astype(meta["dtype"])

    with ThreadPoolExecutor() as pool:
        while batch := list(itertools.islice(texts, 256)):  # not all of them, because pool.map reads its whole input
            yield from pool.map(encode_one, batch)


def up_to(n_tokens, documents):
    """Yields documents until they have n_tokens."""
    for draw, ids in documents:
        yield draw, ids
        n_tokens -= len(ids)
        if n_tokens <= 0:
            return


def highest_val_draw(documents, share):
    """
    Returns the highest draw of the documents to validate on, so that they have about a share of all tokens.

    The draw of a document is below 0.05 in 5 of 100 cases. Another limit is chosen if 0.05 misses 5 % of the tokens by
    more than a document. (Corpora that were made with 0.05 itself stay as they are.)
    """
    draws, group = np.unique([draw for draw, _ in documents], return_inverse=True)
    if len(draws) < 2:
        return share
    sizes = np.bincount(group, [len(ids) for _, ids in documents])  # tokens: of equal texts, or of a whole file
    wanted = share * sizes.sum()
    found = sizes[draws <= share].sum()
    if abs(found - wanted) <= min(sizes.max(), wanted / 5):
        return share
    below = sizes.cumsum()[:-1]  # tokens up to each draw; the last document is left to train on
    return draws[abs(below - wanted).argmin()]


def write_splits(folder, meta, documents):
    """Writes train.bin and val.bin, and at the end meta.json. Returns what is in it."""
    n_docs, n_tokens = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
    with (replacing(folder / "train.bin") as train, open(train, "wb") as train_file,
          replacing(folder / "val.bin") as val, open(val, "wb") as val_file):
        files = dict(train=train_file, val=val_file)
        trial = list(up_to(TRIAL, documents))
        limit = highest_val_draw(trial, meta["val_fraction"])
        for draw, ids in itertools.chain(trial, documents):
            split = "val" if draw <= limit else "train"
            files[split].write(ids)
            n_docs[split] += 1
            n_tokens[split] += len(ids)
        if not all(n_docs.values()):
            raise DataError(f"{n_docs['train']} documents to train on and {n_docs['val']} to validate on, expected at "
                            "least one of each: give more text, or raise --max_tokens, or lower --val_fraction")
    sha256 = {split: tokens.digest(folder / f"{split}.bin") for split in SPLITS}
    meta |= dict(docs=n_docs, tokens=n_tokens, sha256=sha256)
    write_json(folder / "meta.json", meta)
    return meta
