"""
A trained model as a BERT of Hugging Face's transformers (BertForMaskedLM or BertLMHeadModel).

    config, state = to_hf(model)  # what their config.json and model.safetensors hold
    save_folder(model, folder)    # writes both files, which from_pretrained and analyze.py --hf read

Both sides store a Linear as (out, in), so only the names of the weights change. BERT has one tensor more, a vector for
each token type. It is written as zeros. A fork's model may compute something else than BERT does. So a narrow model of
the same class is compared with `bert_logits`, which is BERT in a few lines, before anything is exported.
"""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save as safetensors

from data.atomic import replacing, write_json

HF_TENSORS = {  # our name -> theirs
    "tok_emb.weight": "bert.embeddings.word_embeddings.weight",
    "pos_emb.weight": "bert.embeddings.position_embeddings.weight",
    "head.bias": "cls.predictions.bias",
}
HF_MODULES = {  # the same of modules with a weight and a bias; {i} is the number of a block
    "ln_emb": "bert.embeddings.LayerNorm",
    "blocks.{i}.attn.q": "bert.encoder.layer.{i}.attention.self.query",
    "blocks.{i}.attn.k": "bert.encoder.layer.{i}.attention.self.key",
    "blocks.{i}.attn.v": "bert.encoder.layer.{i}.attention.self.value",
    "blocks.{i}.attn.proj": "bert.encoder.layer.{i}.attention.output.dense",
    "blocks.{i}.ln_1": "bert.encoder.layer.{i}.attention.output.LayerNorm",
    "blocks.{i}.mlp.fc": "bert.encoder.layer.{i}.intermediate.dense",
    "blocks.{i}.mlp.proj": "bert.encoder.layer.{i}.output.dense",
    "blocks.{i}.ln_2": "bert.encoder.layer.{i}.output.LayerNorm",
    "head.dense": "cls.predictions.transform.dense",
    "head.ln": "cls.predictions.transform.LayerNorm",
}


def hf_names(n_layer):
    """Returns {our name: theirs} for all tensors of a model with n_layer blocks."""
    names = dict(HF_TENSORS)
    for i in range(n_layer):
        for ours, theirs in HF_MODULES.items():
            for kind in "weight", "bias":
                names[f"{ours}.{kind}".format(i=i)] = f"{theirs}.{kind}".format(i=i)
    return names


def bert_logits(w, cfg, idx):
    """Returns the logits (B, T, V) of BERT for idx (B, T). w: {our name: weight}."""
    def linear(x, name, n_out=cfg.n_embd):
        if len(w[f"{name}.bias"]) != n_out:
            raise RuntimeError(f"{name} has a size that no config.json tells")
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps=1e-12)

    def heads(x):
        return x.unflatten(-1, (cfg.n_head, -1)).transpose(1, 2)  # (B, H, T, D)

    n_mlp = len(w["blocks.0.mlp.fc.bias"])  # one number for all blocks
    x = norm(w["tok_emb.weight"][idx] + w["pos_emb.weight"][: idx.shape[1]], "ln_emb")
    for i in range(cfg.n_layer):
        block = f"blocks.{i}"
        q, k, v = [heads(linear(x, f"{block}.attn.{part}")) for part in "qkv"]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cfg.causal)
        x = norm(x + linear(y.transpose(1, 2).flatten(2), f"{block}.attn.proj"), f"{block}.ln_1")
        y = linear(F.gelu(linear(x, f"{block}.mlp.fc", n_mlp)), f"{block}.mlp.proj")
        x = norm(x + y, f"{block}.ln_2")
    x = norm(F.gelu(linear(x, "head.dense")), "head.ln")
    return x @ w["tok_emb.weight"].T + w["head.bias"]


@lru_cache(maxsize=1)  # of a large vocabulary it takes seconds, and a run asks at every checkpoint
@torch.no_grad()
def computes_what_bert_computes(model):
    """Returns whether a narrow model of the same class and with the same switches has the logits of BERT."""
    cfg = replace(model.cfg, n_embd=4 * model.cfg.n_head)
    # (1, T): all positions, as attention may be to a window, and the last ids, where the end of a document is.
    idx = (cfg.vocab_size - 1 - torch.arange(cfg.block_size)[None]) % cfg.vocab_size
    try:
        with torch.random.fork_rng(devices=[]):  # leave torch's random state as it is
            torch.manual_seed(0)
            narrow = type(model)(cfg).double().eval()
            for weight in narrow.parameters():
                weight.uniform_(-1, 1)
        return torch.allclose(narrow(idx), bert_logits(narrow.state_dict(), cfg, idx), rtol=1e-6, atol=1e-6)
    except (RuntimeError, ValueError, ArithmeticError, AssertionError):  # of other shapes, or none is so narrow
        return False


def to_hf(model):
    """
    Returns config.json, as a dict, and the state dict of the same model in transformers.

    Raises ValueError if their BERT would not have all of its weights, or would compute something else.
    """
    cfg, ours = model.cfg, model.state_dict()
    names = hf_names(cfg.n_layer)
    not_in_both = sorted(ours.keys() ^ names.keys())
    if not_in_both:
        raise ValueError(f"this model and a Hugging Face BERT do not both have {not_in_both[0]}")
    if not computes_what_bert_computes(model):
        raise ValueError("a Hugging Face BERT would compute something else with these weights, because it has no "
                         "qk_norm, and no other block or attention than BERT's")
    state = {names[name]: tensor for name, tensor in ours.items()}
    state["bert.embeddings.token_type_embeddings.weight"] = torch.zeros_like(ours["tok_emb.weight"][:1])  # (1, C)
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


def save_folder(model, folder):
    """Writes config.json and model.safetensors into a folder. Returns why not, if no BERT is this model, or ""."""
    try:
        config, state = to_hf(model)
    except ValueError as e:
        return str(e)
    # Copies, because safetensors takes no two names for one tensor.
    state = {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
    with replacing(Path(folder) / "model.safetensors") as temporary:
        temporary.write_bytes(safetensors(state, {"format": "pt"}))
    write_json(Path(folder) / "config.json", config)
    return ""
