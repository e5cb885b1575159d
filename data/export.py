"""
A trained model as a BERT of Hugging Face's transformers (BertForMaskedLM, or BertLMHeadModel for a decoder).

    python -m data.export out/tiny    # writes out/tiny/bert: config.json and model.safetensors

It is written only if theirs has the same logits. So what is no BERT is refused: other positions than learned ones,
qk_norm, or a block of your own.
"""

import argparse
import copy
import sys
from pathlib import Path

import torch
from safetensors.torch import save

from data.atomic import replacing, write_json
from data.results.runs import RunError, open_run

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
    config = dict(  # all else is as in a new BertConfig
        model_type="bert",
        architectures=["BertLMHeadModel" if cfg.causal else "BertForMaskedLM"],
        is_decoder=cfg.causal,  # this gives their BERT causal attention
        vocab_size=cfg.vocab_size,
        max_position_embeddings=cfg.block_size,
        num_hidden_layers=cfg.n_layer,
        num_attention_heads=cfg.n_head,
        hidden_size=cfg.n_embd,
        intermediate_size=len(ours["blocks.0.mlp.fc.weight"]),
        hidden_dropout_prob=cfg.dropout,
        attention_probs_dropout_prob=cfg.attn_dropout,
        type_vocab_size=1,
        pad_token_id=None,
    )
    return config, state


@torch.no_grad()
def require_bert(model, special_ids):
    """Raises RunError unless the same model in transformers has the same logits for random ids and for special ones."""
    from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

    config, state = to_hf(model)
    theirs = (BertLMHeadModel if model.cfg.causal else BertForMaskedLM)(BertConfig(**config)).eval()
    idx = torch.randint(model.cfg.vocab_size, (2, model.cfg.block_size))  # all positions
    idx[0, : len(special_ids)] = torch.tensor(special_ids)[: model.cfg.block_size]
    try:
        _, unknown = theirs.load_state_dict(state, strict=False)  # they have a name more, for the tied output layer
        ours = copy.deepcopy(model).double()(idx)  # (2, T, V)
        same = not unknown and torch.allclose(ours, theirs.double()(idx).logits, rtol=1e-8, atol=1e-8)
    except RuntimeError:  # a tensor has another shape
        same = False
    if not same:
        raise RunError("a Hugging Face BERT would compute something else with its weights")


def main(argv=None):
    cli = argparse.ArgumentParser(prog="python -m data.export", description="Write the model of a run as a BERT.")
    cli.add_argument("run", help="the folder of a run, such as out/tiny")
    run = cli.parse_args(argv).run
    try:
        model, _, meta = open_run(run)
        config, state = to_hf(model)
        require_bert(model, [meta["eot_token"], meta["mask_token"]])
    except (ImportError, RunError) as error:  # transformers may not be installed
        sys.exit(f"error: {run} is not exported: {error}")
    state = {name: tensor.clone() for name, tensor in state.items()}  # safetensors takes no two names for one tensor
    with replacing(Path(run, "bert", "model.safetensors")) as temporary:
        temporary.write_bytes(save(state, {"format": "pt"}))
    write_json(Path(run, "bert", "config.json"), config)
    print(f"{run}/bert is a model for transformers")


if __name__ == "__main__":
    main()
