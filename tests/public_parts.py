"""
W_qk of public models on the directions of position and on the rest (data/results/parts.py): of those models of
tests/public.py that transformers opens, from the folder into which pip put them.

    python -m tests.public_parts models --csv data/results/csv/public_parts.csv [--text english.txt]
    python -m data.results.parts data/results/csv/public_parts.csv --plot public_parts.png

A model sees 1,024 sequences of 64 tokens. Those of proteins, bacteria and reactions see tokens drawn at random, so that
no content belongs to a position; those of English a text, and are skipped without one. That of public_parts.csv was
WikiText-2's, of validation and test.
"""

import argparse
from pathlib import Path

import torch
import transformers

from data.results import parts
from tests.public import SOURCES, find_models, open_layers

N, T = parts.N_SEQUENCES, 64


def tokens_of(folder, text):
    """(N, T) tokens: of the text, or, without one, at random."""
    if text:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"][: N * T]).view(N, T)
    n_vocab = transformers.AutoConfig.from_pretrained(folder).vocab_size
    return torch.randint(n_vocab, (N, T), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def inputs_of_layers(folder, idx):
    """What the attention of each layer takes, a list of (N, T, C). GPT-2 normalises it before; BERT does not."""
    model, info = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    missing = [key for key in info["missing_keys"] if "pooler" not in key]
    assert not missing, f"{folder}: {missing}"
    found = []
    for part in idx.split(128):
        states = model.eval()(part, output_hidden_states=True).hidden_states
        found.append([block.ln_1(x) for block, x in zip(model.h, states)] if hasattr(model, "h") else states)
    return [torch.cat(of_layer) for of_layer in zip(*found)]


def main():
    cli = argparse.ArgumentParser(description="Split W_qk of public models by position.")
    cli.add_argument("models", type=Path, help="the folder into which pip put the packages")
    cli.add_argument("--text", type=Path, help="English, for the models that read it")
    cli.add_argument("--csv", type=Path, required=True)
    args = cli.parse_args()
    text = args.text and args.text.read_text()
    rows = []
    for source in SOURCES:
        if not source.reads or source.reads == "English" and not text:  # transformers does not open it, or has no text
            continue
        paths = find_models(source, args.models)
        for path in paths:
            xs = inputs_of_layers(path, tokens_of(path, text if source.reads == "English" else None))
            layers = ((x, *layer) for x, layer in zip(xs, open_layers(path)))  # of ALBERT one, that all others repeat
            rows += parts.split_layers(layers, arm=source.model if len(paths) == 1 else path.name, seed=0)
    parts.write(rows, args.csv)


if __name__ == "__main__":
    main()
