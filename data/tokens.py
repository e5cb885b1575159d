"""
Token files: the one writer, behind data/NAME/prepare.py, and the one reader, behind train.py.

A folder (data/NAME/TOKENIZER, e.g. data/stdlib/bytes) holds train.bin, train.1.bin, ... and val.bin, val.1.bin, ...:
token ids as little-endian unsigned integers and nothing else. meta.json says what they are and comes last, so a folder
that has it is whole. Until then it is called progress.json and says which documents the shards written so far hold: a
run that was stopped, however hard, goes on from there and ends with the same bytes.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shlex
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path

import numpy as np
from tqdm import tqdm

# Ids below n_vocab stand for text. vocab_size is what the model is built with: gpt2's 50,258 ids are padded, with ids
# that never occur, to a multiple of 64, as nanoGPT pads them, because matrix products of such sizes are faster.
# dtype is the smallest that holds all ids: beyond 65,536 of them "<u4".
TOKENIZERS = {
    "bytes": dict(n_vocab=256, eot_token=256, mask_token=257, vocab_size=258, dtype="<u2"),
    "gpt2": dict(n_vocab=50256, eot_token=50256, mask_token=50257, vocab_size=50304, dtype="<u2"),
}


class DataError(Exception):
    """What a user can cause and mend: one line that says what to do."""


# ---- the reader --------------------------------------------------------------------------------------------------

class Stream:
    """The shards of a split as one sequence of tokens."""

    def __init__(self, folder, split, meta):
        self.meta, self.shards = meta, [shard for shard in shards(folder, split, meta) if shard[1]]
        self.ends = np.cumsum([count for _, count in self.shards])
        self.times = [path.stat().st_mtime_ns for path, _ in self.shards]

    def __len__(self):
        return int(self.ends[-1])

    def rows(self, starts, length):
        """`length` tokens from each of `starts` (B,): (B, length) int64. DataError when the files have changed."""
        assert (starts >= 0).all() and (starts + length <= len(self)).all()
        rows = np.empty((len(starts), length), self.meta["dtype"])
        with contextlib.ExitStack() as stack:
            files = {}
            for row, start, i in zip(rows, starts.tolist(), np.searchsorted(self.ends, starts, side="right").tolist()):
                while len(row):  # not a memmap: one of a file that is cut ends in SIGBUS
                    path, count = self.shards[i]
                    if i not in files:
                        check(path, count, self.meta)
                        files[i] = stack.enter_context(open(path, "rb", buffering=0))
                    end = int(self.ends[i])
                    piece, row = row[: end - start], row[end - start :]  # as far as the shard goes, and beyond it
                    files[i].seek((start - end + count) * row.itemsize)
                    if files[i].readinto(piece) < piece.nbytes:
                        check(path, count, self.meta)
                    start, i = end, i + 1
            for i, file in files.items():
                if os.fstat(file.fileno()).st_mtime_ns != self.times[i]:
                    raise broken(path.parent, f"has another {self.shards[i][0].name} than a moment ago", self.meta)
        if rows.max(initial=0) > self.meta["eot_token"]:
            raise broken(path.parent, f"has the id {rows.max()}, which {self.meta['tokenizer']} has not", self.meta)
        return rows.astype(np.int64)


Corpus = namedtuple("Corpus", "meta train val")  # dict, Stream, Stream


def load(folder):
    """The corpus in a folder, meta.json checked against the sizes of the files: no file is read, however large."""
    folder = Path(folder)
    try:
        meta = json.loads((folder / "meta.json").read_text())
        for key, value in TOKENIZERS[meta["tokenizer"]].items():
            if meta[key] != value:
                raise broken(folder, f"has {key} = {meta[key]}, but {meta['tokenizer']} has {value}", meta)
        for path, count in shards(folder, "train", meta) + shards(folder, "val", meta):
            check(path, count, meta)
        return Corpus(meta, Stream(folder, "train", meta), Stream(folder, "val", meta))
    except FileNotFoundError:
        begun = folder / "progress.json"
        meta = json.loads(begun.read_text()) if begun.exists() else {}
        raise DataError(f"{folder} has no finished token files: run {command(folder, meta)}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise broken(folder, f"has a meta.json that cannot be understood ({error!r})", {}) from None


def shards(folder, split, meta):
    return [(folder / (f"{split}.{i}.bin" if i else f"{split}.bin"), n) for i, n in enumerate(meta["tokens"][split])]


def check(path, count, meta):
    size, found = count * np.dtype(meta["dtype"]).itemsize, path.stat().st_size if path.exists() else 0
    if found != size:
        raise broken(path.parent, f"has {found:,} bytes of {path.name}, not {size:,}", meta)


def broken(folder, what, meta):
    return DataError(f"{folder} {what}: delete it and run {command(folder, meta)}")


def command(folder, meta):
    """What makes the files of a folder: as meta has it, else as the path tells."""
    name, tokenizer = folder.absolute().parts[-2:]
    known = tokenizer in TOKENIZERS and (Path(__file__).parent / name / "prepare.py").exists()
    guess = f"python data/{name}/prepare.py --tokenizer={tokenizer}" if known else "python data/NAME/prepare.py"
    return f"{meta.get('command', guess)} --out_dir={folder}"


# ---- the writer --------------------------------------------------------------------------------------------------

def command_line(dataset, doc, argv, **defaults):
    """The parser that every prepare script begins with; defaults: its own for the options below."""
    place = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # the options that do not change the tokens
    place.add_argument("--out_dir", help=f"(data/{dataset}/TOKENIZER, or TOKENIZER_spaced)")
    place.add_argument("--num_proc", type=int, default=os.cpu_count(), help="threads that encode (%(default)s)")
    cli = argparse.ArgumentParser(prog=f"data/{dataset}/prepare.py", description=doc, parents=[place],
                                  formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    cli.add_argument("--tokenizer", choices=TOKENIZERS, default="gpt2", help="(%(default)s)")
    cli.add_argument("--spaced", action="store_true", help="put a space between all characters before tokenising")
    for name, default, text in (("seed", 0, "of the order and of the choice for validation"),
                                ("val_fraction", 0.005, "of the documents, to validate on"),
                                ("max_docs", 0, "stop after so many documents, 0: never"),
                                ("max_tokens", 0, "stop with the document that reaches so many, 0: never"),
                                ("shard_size", 10**8, "bytes of text in a file")):
        cli.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} (%(default)s)")
    command = shlex.join(["python", f"data/{dataset}/prepare.py", *place.parse_known_args(argv)[1]])
    cli.set_defaults(dataset=dataset, command=command, **defaults)
    return cli


def write(args, source, parts, read, total=inf):
    """
    Tokenise a corpus into args.out_dir, going on where an interrupted run stopped, and return the folder.

    A corpus is a list of parts (files, URLs); read(part, note) yields the documents (str) of one, always the same;
    empty ones are left out. note(kind, n) sets a count of that part for the summary. total: documents, where known.
    """
    if args.seed < 0 or min(args.shard_size, args.num_proc) < 1 or not 0 <= args.val_fraction < 1:
        raise DataError("--seed must be at least 0, --shard_size and --num_proc 1, --val_fraction in [0, 1)")
    folder = Path(args.out_dir or Path(__file__).parent / args.dataset / (args.tokenizer + "_spaced" * args.spaced))
    state = resume(folder, args, source, len(parts))
    if not (folder / "meta.json").exists():
        encode, total = encoder(args.tokenizer), min(total, args.max_docs or inf)
        with ThreadPoolExecutor(args.num_proc) as pool, tqdm(
                read_on(parts, read, state), total=total, initial=state["n_docs"], unit=" documents") as bar:
            documents = iter(bar)
            while texts := gather(documents, state):
                write_shard(folder, state, texts, encode, pool)
                bar.set_postfix_str(f"{state['n_tokens']:,} tokens")
    for kind, counts in state["notes"].items():
        print(f"{sum(counts.values()):,} {kind}: {', '.join([*counts][:5])}{', ...' * (len(counts) > 5)}")
    if not state["docs"]["train"]:
        for path, _ in shards(folder, "train", state) + shards(folder, "val", state) + [(folder / "progress.json", 0)]:
            path.unlink(missing_ok=True)
        raise DataError(f"{source}: {state['n_docs']} documents; it takes two different ones to train and validate on")
    if not (folder / "meta.json").exists():
        save(folder / "progress.json", [json.dumps(state, indent=1).encode()])
        os.replace(folder / "progress.json", folder / "meta.json")
    docs, n, size = state["n_docs"], state["n_tokens"], state["n_tokens"] * np.dtype(state["dtype"]).itemsize / 1e6
    print(f"{folder}: {docs:,} documents, {n:,} tokens, {n / docs:,.0f} a document, "
          f"{sum(state['tokens']['val']) / n:.2%} to validate on, {size:,.1f} MB")
    return folder


def resume(folder, args, source, parts):
    """What an earlier run with the same options has done, or the state of a new one."""
    keys = "dataset", "tokenizer", "spaced", "seed", "val_fraction", "max_docs", "max_tokens", "shard_size"
    options = dict({key: getattr(args, key) for key in keys}, source=source, parts=parts)
    for path in folder / "meta.json", folder / "progress.json":
        if path.exists():
            state = json.loads(path.read_text())
            for key, value in options.items():
                if state[key] != value:
                    raise DataError(f"{folder} was begun with {key} = {state[key]!r}, not {value!r}: delete it, or "
                                    "choose another --out_dir")
            for shard, count in shards(folder, "train", state) + shards(folder, "val", state):
                check(shard, count, state)
            return state
    return dict(options, command=args.command, **TOKENIZERS[args.tokenizer], docs=dict(train=0, val=0),
                tokens=dict(train=[], val=[]), n_docs=0, n_tokens=0, checksum="0", part=0, row=0, notes={})


def read_on(parts, read, state):
    """(part, row, text) of the documents that are in no shard yet; the order of the parts is one of the seed."""
    import httpx2  # whose errors are those of datasets and huggingface_hub when they have tried again in vain
    first, done = state["part"], state["row"]
    order = np.random.default_rng(state["seed"]).permutation(len(parts))
    for i in range(first, len(parts)):
        part = parts[order[i]]
        note = lambda kind, n: state["notes"].setdefault(kind, {}).update({str(part): n})
        try:
            for row, text in enumerate(read(part, note), 1):
                if text and (i > first or row > done):
                    yield i, row, text
        except (OSError, ValueError, httpx2.HTTPError) as error:
            raise DataError(f"{part} cannot be read ({error!r}); the same command will go on from there") from None


def gather(documents, state):
    """The documents (UTF-8) of the next shard; none when there are no more, or there need not be."""
    room, left, texts = state["shard_size"], (state["max_docs"] or inf) - state["n_docs"], []
    if state["max_tokens"]:  # a token is rarely longer than 8 bytes: do not read much more than is wanted
        room = min(room, 8 * (state["max_tokens"] - state["n_tokens"]))
    while room > 0 and len(texts) < left and (document := next(documents, None)):
        state["part"], state["row"], text = document
        texts.append(text.encode("utf-8", "replace"))  # replace: JSON can hold half of a surrogate pair
        room -= len(texts[-1])
    return texts


def write_shard(folder, state, texts, encode, pool):
    """Encode, shuffle, split and save some documents, and what has been done so far."""
    hashes = np.frombuffer(b"".join(hashlib.sha256(text).digest()[:8] for text in texts), "<u8")
    if state["spaced"]:
        texts = [" ".join(text.decode()).encode() for text in texts]
    eot, kind = np.array([state["eot_token"]]), dict(dtype=state["dtype"], casting="unsafe")
    encode_all = lambda batch: [np.concatenate([*encode(text), eot], **kind) for text in batch]
    batches = [texts[i : i + 64] for i in range(0, len(texts), 64)]
    ids = [document for batch in pool.map(encode_all, batches) for document in batch]
    if state["max_tokens"]:
        ends = np.cumsum([len(document) for document in ids])
        ids = ids[: 1 + np.searchsorted(ends, state["max_tokens"] - state["n_tokens"])]
        hashes = hashes[: len(ids)]
    # The text decides its split, so that a text which occurs twice is not in both. The lowest draw of the first shard
    # validates in any case, so that a small corpus has something to validate on.
    draws = (hashes ^ np.random.SeedSequence(state["seed"]).generate_state(1, np.uint64)) / 2.0**64
    val = (draws < state["val_fraction"]) | (draws == state.setdefault("lowest", float(draws.min())))
    order = np.random.default_rng([state["seed"], len(state["tokens"]["train"])]).permutation(len(ids))
    for split, members in ("train", order[~val[order]]), ("val", order[val[order]]):
        chosen = [ids[i] for i in members]
        state["docs"][split] += len(chosen)
        state["tokens"][split].append(sum(map(len, chosen)))
        save(shards(folder, split, state)[-1][0], chosen)
    state["n_docs"] += len(ids)
    state["n_tokens"] += sum(map(len, ids))
    state["checksum"] = f"{(int(state['checksum'], 16) + int(hashes.sum())) % 2**64:x}"
    save(folder / "progress.json", [json.dumps(state, indent=1).encode()])


def encoder(tokenizer):
    """A function from a document (UTF-8) to its ids, in arrays that follow each other."""
    if tokenizer == "bytes":
        return lambda text: [np.frombuffer(text, np.uint8)]
    import tiktoken
    try:
        gpt2 = tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:
        base = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
        files = " and ".join(f"{base}{name} as {hashlib.sha1((base + name).encode()).hexdigest()}"
                             for name in ("vocab.bpe", "encoder.json"))
        raise DataError(f"tiktoken cannot fetch its files ({error}): save {files} in a folder and set "
                        "TIKTOKEN_CACHE_DIR to it, or use --tokenizer=bytes, which needs none") from None
    # On a very long text tiktoken's regex engine overflows the stack. Cut before a space, where gpt2 begins a token in
    # any case, or anywhere if there is none: decoding gives the text back exactly.
    pieces = re.compile(r".{1,100000}(?= |\Z)|.{1,100000}", re.DOTALL)
    # disallowed_special=(): "<|endoftext|>" inside a document is text like any other
    return lambda text: [gpt2.encode_to_numpy(piece, disallowed_special=()) for piece in pieces.findall(text.decode())]


def save(path, chunks):
    """Under a temporary name first, so that a file is there whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", 1 << 20) as file:
            file.writelines(chunks)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DataError(f"{path} cannot be written ({error.strerror}); the same command will go on there") from None


def rows(builder, path, column, **options):
    """One column of a file that `datasets` can read (builder: parquet, json, csv), local or hf://, piece by piece."""
    from datasets import load_dataset
    for batch in load_dataset(builder, data_files=path, split="train", streaming=True, **options).iter(1000):
        if column not in batch:
            raise DataError(f"{path} has no column {column}, only {', '.join(batch)}")
        yield from batch[column]


def run(main):
    """A script's main(): what a user can mend ends in one line and exit status 1."""
    import httpx2
    try:
        main()
    except (DataError, OSError, httpx2.HTTPError) as error:
        sys.exit(f"error: {error}".splitlines()[0])
    except KeyboardInterrupt:
        sys.exit("stopped; the same command will go on from here")
