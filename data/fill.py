"""
What a trained model makes of a text: an encoder fills in blanks, and a decoder goes on.

    python -m data.fill out/tiny "    ret?rn self.x + s?lf.y"                # each ? is a blank
    python -m data.fill out/tiny_decoder "    def __init__(" --tokens 200
"""

import argparse
import json
import pickle
import sys
from pathlib import Path

import tiktoken
import torch

from config import ConfigError, end_with_pipe, require
from data.tokens import TOKENIZERS


@torch.no_grad()
def fill(model, meta, encode, decode, text, blank):
    """Yields for each blank of a text what the model puts there, and how sure it is."""
    ids = []
    for piece in text.split(blank):
        ids += [*encode(piece), meta["mask_token"]]
    ids.pop()  # behind the last piece
    most = model.cfg.block_size
    require(len(ids) <= most, f"{len(ids)} tokens are more than the {most} of this model")
    shares, guesses = model(torch.tensor([ids]))[0].softmax(-1).topk(3)  # (T, 3) each
    for at, token in enumerate(ids):
        if token == meta["mask_token"]:
            found = [f"{decode([i])!r} {p:.0%}" for i, p in zip(guesses[at].tolist(), shares[at].tolist())]
            before = f"...{decode(ids[at - 12 : at])}" if at > 12 else decode(ids[:at])
            yield f"{before}{blank}    {', '.join(found)}"


@torch.no_grad()
def go_on(model, meta, encode, decode, text, n_tokens):
    """Returns a text, and so many tokens that the model adds to it, each drawn as likely as the model finds it."""
    ids = encode(text) or [meta["eot_token"]]
    for _ in range(n_tokens):
        logits = model(torch.tensor([ids[-model.cfg.block_size :]]))[0, -1]  # (V,), for the next token
        ids.append(logits.softmax(-1).multinomial(1).item())
    return decode(ids)


def main(argv=None):
    cli = argparse.ArgumentParser(prog="python -m data.fill", description=__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("run", help="the folder of a run, such as out/tiny")
    cli.add_argument("text", help="with blanks for an encoder; what a decoder begins with")
    cli.add_argument("--blank", default="?", help="what stands for a blank (?)")
    cli.add_argument("--tokens", type=int, default=100, help="that a decoder adds (100)")
    cli.add_argument("--seed", type=int, default=0, help="another number gives another text of a decoder (0)")
    args = cli.parse_args(argv)
    if not args.blank:
        cli.error("--blank is empty")
    from data.runs.model import open_run

    try:
        # the weights do not say how their text was made into tokens: the record of the run does
        model, cfg = open_run(args.run)
        data = json.loads(Path(args.run, "run.json").read_text("utf-8"))["data"]
        given = model, TOKENIZERS[data["tokenizer"]], *make_coder(data["tokenizer"])
        text = " ".join(args.text) if data["spaced"] else args.text
        torch.manual_seed(args.seed)  # the same text each time
        if cfg.predicts_next:
            return print(go_on(*given, text, args.tokens))
        require(args.blank in text, f"the text has no blank: write {args.blank} where one is")
        print(*fill(*given, text, args.blank), sep="\n")
    except (EOFError, pickle.UnpicklingError):
        sys.exit(f"python -m data.fill: {args.run}/ckpt.pt is damaged, or no checkpoint")
    except (ConfigError, OSError, RuntimeError) as error:  # no run there; a fork's weights
        sys.exit(f"python -m data.fill: {str(error).splitlines()[0]}")


def make_coder(tokenizer):
    """Returns two functions: a text -> its ids, a list; and ids -> a text, without marks such as the end of a text."""
    if tokenizer == "bytes":
        return lambda text: [*text.encode()], lambda ids: bytes(i for i in ids if i < 256).decode(errors="replace")
    encoding = tiktoken.get_encoding(tokenizer)
    n_vocab = TOKENIZERS[tokenizer]["n_vocab"]
    return encoding.encode_ordinary, lambda ids: encoding.decode([i for i in ids if i < n_vocab])


if __name__ == "__main__":
    end_with_pipe()
    main()
