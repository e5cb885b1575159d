"""
Writes a trained model as a BERT of Hugging Face's transformers (BertForMaskedLM or BertLMHeadModel).

    python -m data.export out/tiny    # writes out/tiny/bert: config.json and model.safetensors
"""

import argparse
import copy
import sys

import torch

from config import ConfigError
from data.runs.model import open_run

NAMES = {  # a part of our name -> theirs; both sides store a Linear as (out, in)
    "tok_emb": "bert.embeddings.word_embeddings",
    "pos_emb": "bert.embeddings.position_embeddings",
    "ln_emb": "bert.embeddings.LayerNorm",
    "blocks": "bert.encoder.layer",
    "attn.q": "attention.self.query",
    "attn.k": "attention.self.key",
    "attn.v": "attention.self.value",
    "attn.proj": "attention.output.dense",
    "ln_1": "attention.output.LayerNorm",
    "mlp.fc": "intermediate.dense",
    "mlp.proj": "output.dense",
    "ln_2": "output.LayerNorm",
    "head.dense": "cls.predictions.transform.dense",
    "head.ln": "cls.predictions.transform.LayerNorm",
    "head.bias": "cls.predictions.bias",
}


def to_hf(model):
    """Returns config.json, as a dict, and the state dict of the same model in transformers."""
    cfg, ours = model.cfg, model.state_dict()
    state = {"bert.embeddings.token_type_embeddings.weight": torch.zeros_like(ours["tok_emb.weight"][:1])}  # (1, C)
    for name, tensor in ours.items():
        for part, theirs in NAMES.items():
            name = name.replace(part, theirs)
        state[name] = tensor
    # is_decoder gives their BERT causal attention. All else is as in a new BertConfig.
    return dict(is_decoder=cfg.causal, pad_token_id=None, vocab_size=cfg.vocab_size, type_vocab_size=1,
                max_position_embeddings=cfg.block_size, hidden_size=cfg.n_embd, num_hidden_layers=cfg.n_layer,
                num_attention_heads=cfg.n_head, intermediate_size=len(ours.get("blocks.0.mlp.fc.weight", ())),
                hidden_dropout_prob=cfg.dropout, attention_probs_dropout_prob=cfg.attn_dropout), state


@torch.no_grad()
def to_bert(model):
    """Returns the same model in transformers. ConfigError: no BERT, so it has other logits (rotary, your own block)."""
    from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

    config, state = to_hf(model)
    theirs = (BertLMHeadModel if model.cfg.causal else BertForMaskedLM)(BertConfig(**config)).eval()
    _, unknown = theirs.load_state_dict(state, strict=False)  # they have a name more, for the tied output layer
    idx = torch.randint(model.cfg.vocab_size, (2, model.cfg.block_size))  # all positions
    logits = copy.deepcopy(model).double().eval()(idx)  # (2, T, V)
    if unknown or not torch.allclose(logits, copy.deepcopy(theirs).double()(idx).logits, rtol=1e-8, atol=1e-8):
        raise ConfigError("a Hugging Face BERT would compute something else with its weights")
    return theirs


def main(argv=None):
    cli = argparse.ArgumentParser(prog="python -m data.export", description="Write the model of a run as a BERT.")
    cli.add_argument("run", help="the folder of a run, such as out/tiny")
    run = cli.parse_args(argv).run
    try:
        to_bert(open_run(run)[0]).save_pretrained(f"{run}/bert")
    # transformers is not there; other shapes; and what else goes wrong if a fork's model is another one
    except (ImportError, OSError, ConfigError, RuntimeError, ArithmeticError, AttributeError, LookupError, TypeError,
            ValueError) as error:
        sys.exit(f"error: {run} is not exported: {(str(error) or repr(error)).splitlines()[-1]}")
    print(f"{run}/bert is a model for transformers")


if __name__ == "__main__":
    main()
