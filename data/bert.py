"""
The exchange of weights with the BERT of transformers, BertForMaskedLM and BertLMHeadModel, in both directions:

    config, state = to_hf(model)  # what their config.json and their model.safetensors hold
    load_hf(model, config, state)
    save_folder(model, folder)    # the same with the files themselves, which from_pretrained reads
    load_folder(model, folder)

Both store a Linear as (out, in), so the names change and the weights do not. BERT has one tensor more: the embeddings
of its token types, of which every token here has the type 0. to_hf writes zeros, and load_hf adds type 0 to pos_emb.
"""

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save as safetensors

from config import ConfigError
from data.pretrained.files import CheckpointError
from data.pretrained.sources import open_checkpoint
from data.tokens import replacing, write_json

HF_NAMES = {  # our name -> theirs, for every layer i and for the parts weight and bias
    "tok_emb.weight": "bert.embeddings.word_embeddings.weight",
    "pos_emb.weight": "bert.embeddings.position_embeddings.weight",
    "ln_emb.{part}": "bert.embeddings.LayerNorm.{part}",
    "blocks.{i}.attn.q.{part}": "bert.encoder.layer.{i}.attention.self.query.{part}",
    "blocks.{i}.attn.k.{part}": "bert.encoder.layer.{i}.attention.self.key.{part}",
    "blocks.{i}.attn.v.{part}": "bert.encoder.layer.{i}.attention.self.value.{part}",
    "blocks.{i}.attn.proj.{part}": "bert.encoder.layer.{i}.attention.output.dense.{part}",
    "blocks.{i}.ln_1.{part}": "bert.encoder.layer.{i}.attention.output.LayerNorm.{part}",
    "blocks.{i}.mlp.fc.{part}": "bert.encoder.layer.{i}.intermediate.dense.{part}",
    "blocks.{i}.mlp.proj.{part}": "bert.encoder.layer.{i}.output.dense.{part}",
    "blocks.{i}.ln_2.{part}": "bert.encoder.layer.{i}.output.LayerNorm.{part}",
    "head.dense.{part}": "cls.predictions.transform.dense.{part}",
    "head.ln.{part}": "cls.predictions.transform.LayerNorm.{part}",
    "head.bias": "cls.predictions.bias",
}
HF_TOKEN_TYPES = "bert.embeddings.token_type_embeddings.weight"
# A BERT may have more, which does not change what it predicts. Its decoder is a copy of the token embeddings.
HF_UNUSED = "bert.pooler.", "cls.seq_relationship.", "cls.predictions.decoder.", "bert.embeddings.position_ids"
# What the weights do not show. A config.json without one of these keys means this value.
HF_DEFAULTS = dict(model_type="bert", num_attention_heads=12, is_decoder=False, hidden_act="gelu",
                   layer_norm_eps=1e-12, position_embedding_type="absolute", tie_word_embeddings=True)
HF_PROBE_LENGTH = 256  # tokens: a window of 128, as some encoders have in most layers, makes a difference
HF_PROBE_LOSS = {False: 4.7460221, True: 4.7758097}  # causal -> the `probe_loss` of their BERT


@torch.no_grad()
def probe_loss(model):
    """
    The cross-entropy of a small model of the same class and switches, with weights that a formula gives. It shows
    whether blocks compute what BERT computes. Names and shapes do not: a LayerNorm may be used in another place.
    """
    T = HF_PROBE_LENGTH
    with torch.random.fork_rng(devices=[]):  # leave torch's random state as it is
        probe = type(model)(replace(model.cfg, vocab_size=11, block_size=T, n_layer=2, n_head=2, n_embd=8))
    for i, (_, weight) in enumerate(sorted(probe.double().state_dict().items())):
        n = torch.arange(weight.numel()).double()
        weight.copy_(torch.sin(i + n**2).view_as(weight))  # any fixed numbers
    idx = torch.arange(T) % 11
    logits = probe.eval()(idx[None])  # (1, T, V); a fork may have another loss
    return F.cross_entropy(logits[0], idx).item()


def hf_names(n_layer):
    """{our name: theirs} of all tensors of a model with n_layer blocks."""
    names = {}
    for i in range(n_layer):
        for part in "weight", "bias":
            for ours, theirs in HF_NAMES.items():
                names[ours.format(i=i, part=part)] = theirs.format(i=i, part=part)
    return names


def to_hf(model):
    """
    The same model as a BertForMaskedLM or BertLMHeadModel of transformers -> (config.json as a dict, state dict).
    ValueError: theirs would not have all of its weights, or would compute something else, and nobody would notice.
    """
    cfg, ours = model.cfg, model.state_dict()
    names = hf_names(cfg.n_layer)
    for name in sorted(ours.keys() ^ names.keys()):  # not in both
        raise ValueError(f"{'this model' if name in ours else 'a Hugging Face BERT'} alone has a weight {name}")
    if abs(probe_loss(model) - HF_PROBE_LOSS[cfg.causal]) > 1e-6:
        raise ValueError("a Hugging Face BERT with these weights computes something else: it has no qk_norm "
                         "and no other kind of block")
    state = {names[name]: tensor for name, tensor in ours.items()}
    state[HF_TOKEN_TYPES] = torch.zeros_like(ours["tok_emb.weight"][:1])  # (1, C)
    config = HF_DEFAULTS | dict(
        architectures=["BertLMHeadModel" if cfg.causal else "BertForMaskedLM"],
        is_decoder=cfg.causal,  # this gives their BERT a causal mask
        vocab_size=cfg.vocab_size,
        max_position_embeddings=cfg.block_size,
        num_hidden_layers=cfg.n_layer,
        num_attention_heads=cfg.n_head,
        hidden_size=cfg.n_embd,
        intermediate_size=4 * cfg.n_embd,
        hidden_dropout_prob=cfg.dropout,
        attention_probs_dropout_prob=cfg.attn_dropout,
        type_vocab_size=1,
        pad_token_id=None,
    )
    return config, state


def load_hf(model, config, state):
    """Load a Hugging Face BERT: its config.json as a dict, its state dict. ValueError: what does not fit our model."""
    our_config, ours = to_hf(model)  # what that BERT must have
    for key, default in HF_DEFAULTS.items():
        there, here = config.get(key, default), our_config[key]
        if there != here:
            raise ValueError(f"{key} is {there} there and {here} here")
    theirs = {}
    for name, tensor in state.items():
        if not name.startswith(HF_UNUSED):
            theirs[name] = tensor[:1] if name == HF_TOKEN_TYPES else tensor
    for name in sorted(ours.keys() | theirs.keys()):
        there = tuple(theirs[name].shape) if name in theirs else "missing"
        here = tuple(ours[name].shape) if name in ours else "missing"
        if there != here:
            raise ValueError(f"{name} is {there} there and {here} here")
    weights = {our_name: theirs[name] for our_name, name in hf_names(model.cfg.n_layer).items()}
    weights["pos_emb.weight"] = weights["pos_emb.weight"] + theirs[HF_TOKEN_TYPES][0]  # BERT adds both to every token
    model.load_state_dict(weights)


def save_folder(model, folder):
    """Write the files that from_pretrained of transformers reads. ValueError: as to_hf."""
    config, state = to_hf(model)
    state = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
    with replacing(Path(folder) / "model.safetensors") as temporary:
        temporary.write_bytes(safetensors(state, {"format": "pt"}))
    write_json(Path(folder) / "config.json", config)


def load_folder(model, folder):
    """Give the model the weights of a Hugging Face BERT of the same sizes. ConfigError: it is not there, or another."""
    if not Path(folder).is_dir():
        raise ConfigError(f"init_from = {folder!r}, expected scratch, resume, or a folder with a model")
    try:
        with open_checkpoint(folder) as checkpoint:
            names = [name for name in checkpoint.tensors if not name.startswith(HF_UNUSED)]
            (state,) = checkpoint.stream([names])  # one group of tensors
        load_hf(model, checkpoint.config, state)
    except (CheckpointError, ValueError) as e:
        raise ConfigError(f"init_from = {folder} is not the BERT that this configuration describes: {e}")
