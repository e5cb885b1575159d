"""
One Transformer, one switch: the BERT of the paper (S2.1, Table S1) as an encoder (causal=False, masked-language
modelling) or, the same network with a causal mask, as a decoder (causal=True, next-token prediction).

Post-LN blocks, learned absolute positions, exact GELU, a head tied to the token embedding. Hidden states and logits
equal those of transformers' BertForMaskedLM and BertLMHeadModel (tests/test_model.py), and weights travel both ways.

Shapes: B sequences, T tokens, C = n_embd, H = n_head, D = C // H, V = vocab_size, K = predicted positions per row.
References: Devlin et al. 2019 (BERT); transformers/models/bert/modeling_bert.py for the names in `to_hf` and `from_hf`.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class ModelConfig:
    vocab_size: int
    block_size: int  # longest sequence
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float = 0.1  # on the embeddings and on both sublayers' outputs
    attn_dropout: float = 0.1  # on the attention weights
    causal: bool = False  # False: encoder; True: decoder


class SelfAttention(nn.Module):
    """Multi-head attention with separate q, k, v: W_qk = W_q W_k^T of q and k is what the paper is about."""

    def __init__(self, cfg):
        super().__init__()
        self.q, self.k, self.v, self.proj = (nn.Linear(cfg.n_embd, cfg.n_embd) for _ in range(4))
        self.n_head, self.causal, self.dropout = cfg.n_head, cfg.causal, cfg.attn_dropout

    def forward(self, x, context):
        """x (B, Q, C) attends to context (B, T, C) -> (B, Q, C); causal needs x to be context itself."""
        q, k, v = (f(y).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
                   for f, y in ((self.q, x), (self.k, context), (self.v, context)))  # (B, H, Q, D), (B, H, T, D) twice
        # softmax(x W_q,h W_k,h^T x^T / sqrt(D)) V_h, Eq. (1) and (S18), which print sqrt(C). SDPA is told about eval()
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=self.causal
        )  # (B, H, Q, D)
        return self.proj(y.transpose(1, 2).flatten(2))  # (B, Q, C)


class MLP(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.fc = nn.Linear(cfg.n_embd, 4 * cfg.n_embd)
        self.proj = nn.Linear(4 * cfg.n_embd, cfg.n_embd)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x)))


class Block(nn.Module):
    """Post-LN: each sublayer's output is added, then normalised, as in BERT (GPT-2 and later normalise the input)."""

    def __init__(self, cfg):
        super().__init__()
        self.attn, self.mlp = SelfAttention(cfg), MLP(cfg)
        self.ln_1, self.ln_2 = (nn.LayerNorm(cfg.n_embd, eps=1e-12) for _ in range(2))
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x, positions=None):
        """(B, T, C) -> (B, T, C), or only the rows at positions (B, K) of it: (B, K, C)."""
        context = x
        if positions is not None:
            x = x.gather(1, positions.unsqueeze(-1).expand(-1, -1, x.shape[-1]))  # (B, K, C)
        x = self.ln_1(x + self.drop(self.attn(x, context)))
        return self.ln_2(x + self.drop(self.mlp(x)))


class Head(nn.Module):
    """Dense, GELU, LayerNorm: the logits are its output times the token embedding, plus a bias for every token."""

    def __init__(self, cfg):
        super().__init__()
        self.dense, self.ln = nn.Linear(cfg.n_embd, cfg.n_embd), nn.LayerNorm(cfg.n_embd, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab_size))

    def forward(self, x):
        return self.ln(F.gelu(self.dense(x)))


LOSS_ROWS = 1024  # of logits at a time; torch.compile cannot read it from the class below


class LinearCrossEntropy(torch.autograd.Function):
    """
    Mean cross-entropy of the logits x W^T + b, x (N, C), W (V, C), b (V), against targets (N).

    The logits are the largest tensor of a small model by far, and autograd would keep them, in float32, until the
    backward pass. Here a chunk of rows at a time gives its loss and its gradient and is gone.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, targets):
        if torch.is_autocast_enabled(x.device.type):
            x, weight, bias = (y.to(torch.get_autocast_dtype(x.device.type)) for y in (x, weight, bias))
        total, grad_x, grad_weight, grad_bias = 0.0, [], 0.0, 0.0
        for rows, t in zip(x.split(LOSS_ROWS), targets.split(LOSS_ROWS)):
            logits = F.linear(rows, weight, bias)  # (chunk, V)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            logits = logits.sub_(logits.logsumexp(-1, keepdim=True))  # in place: memory is what this is about
            total = total - logits.gather(1, t[:, None]).sum()
            if any(ctx.needs_input_grad):
                error = logits.exp_()  # (chunk, V), softmax - one-hot: the gradient with respect to the logits
                error = error.scatter_add_(1, t[:, None], -torch.ones_like(error[:, :1])).to(x.dtype)
                grad_x.append(error @ weight)
                grad_weight, grad_bias = grad_weight + error.T @ rows, grad_bias + error.sum(0, dtype=torch.float32)
        if grad_x:
            ctx.save_for_backward(torch.cat(grad_x), grad_weight, grad_bias)
        return total / len(targets)

    @staticmethod
    def backward(ctx, grad):
        scale = grad / len(ctx.saved_tensors[0])
        return *(y * scale for y in ctx.saved_tensors), None


class Transformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.n_embd)
        self.pos_emb = nn.Embedding(cfg.block_size, cfg.n_embd)
        self.ln_emb, self.drop = nn.LayerNorm(cfg.n_embd, eps=1e-12), nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layer))
        self.head = Head(cfg)
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module):
        """BERT's start: N(0, 0.02) for every matrix, zero biases, LayerNorm at identity. init.py changes q and k."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def hidden(self, idx, positions=None):
        """idx (B, T) -> the last block's output (B, T, C), or its rows at positions (B, K): (B, K, C)."""
        x = self.drop(self.ln_emb(self.tok_emb(idx) + self.pos_emb.weight[: idx.shape[1]]))  # (B, T, C)
        for block in self.blocks[:-1]:
            x = block(x)
        return self.blocks[-1](x, positions)  # no other block reads the rows that are left out here

    def forward(self, idx, targets=None, positions=None):
        """
        idx (B, T) -> logits (B, T, V); with targets, the mean cross-entropy [nats/token] instead.

        The encoder's targets (B, K) stand at positions (B, K), as many in every row, so that shapes are static: its
        last block and its head are computed there alone. The decoder's targets (B, T) are the next tokens.
        """
        x = self.head(self.hidden(idx, positions))  # (B, T or K, C)
        if targets is None:
            return F.linear(x, self.tok_emb.weight, self.head.bias)
        return LinearCrossEntropy.apply(x.flatten(0, 1), self.tok_emb.weight, self.head.bias, targets.flatten())


# ---- our names <-> those of a Hugging Face BERT ------------------------------------------------------------------

HF_NAMES = {  # prefix of ours -> prefix of theirs, {} = layer
    "tok_emb.": "bert.embeddings.word_embeddings.",
    "pos_emb.": "bert.embeddings.position_embeddings.",
    "ln_emb.": "bert.embeddings.LayerNorm.",
    "blocks.{}.attn.q.": "bert.encoder.layer.{}.attention.self.query.",
    "blocks.{}.attn.k.": "bert.encoder.layer.{}.attention.self.key.",
    "blocks.{}.attn.v.": "bert.encoder.layer.{}.attention.self.value.",
    "blocks.{}.attn.proj.": "bert.encoder.layer.{}.attention.output.dense.",
    "blocks.{}.ln_1.": "bert.encoder.layer.{}.attention.output.LayerNorm.",
    "blocks.{}.mlp.fc.": "bert.encoder.layer.{}.intermediate.dense.",
    "blocks.{}.mlp.proj.": "bert.encoder.layer.{}.output.dense.",
    "blocks.{}.ln_2.": "bert.encoder.layer.{}.output.LayerNorm.",
    "head.dense.": "cls.predictions.transform.dense.",
    "head.ln.": "cls.predictions.transform.LayerNorm.",
    "head.bias": "cls.predictions.bias",
}
HF_TOKEN_TYPES = "bert.embeddings.token_type_embeddings.weight"


def hf_names(n_layer):
    """Every (prefix of ours, prefix of theirs) of a model with n_layer blocks."""
    layers = {True: range(n_layer), False: [0]}
    return [(ours.format(i), hf.format(i)) for ours, hf in HF_NAMES.items() for i in layers["{}" in ours]]


def to_hf(model):
    """-> (config.json as a dict, state dict) of the same model as a transformers BertForMaskedLM / BertLMHeadModel."""
    cfg, ours = model.cfg, model.state_dict()
    state = {hf + name.removeprefix(prefix): tensor
             for prefix, hf in hf_names(cfg.n_layer) for name, tensor in ours.items() if name.startswith(prefix)}
    state[HF_TOKEN_TYPES] = torch.zeros_like(ours["tok_emb.weight"][:1])  # ours has none: one type, at zero
    config = dict(
        model_type="bert", architectures=["BertLMHeadModel" if cfg.causal else "BertForMaskedLM"],
        is_decoder=cfg.causal, use_cache=False, vocab_size=cfg.vocab_size, max_position_embeddings=cfg.block_size,
        num_hidden_layers=cfg.n_layer, num_attention_heads=cfg.n_head, hidden_size=cfg.n_embd,
        intermediate_size=4 * cfg.n_embd, hidden_act="gelu", hidden_dropout_prob=cfg.dropout,
        attention_probs_dropout_prob=cfg.attn_dropout, layer_norm_eps=1e-12, initializer_range=0.02,
        type_vocab_size=1, position_embedding_type="absolute", tie_word_embeddings=True, pad_token_id=None,
    )
    return config, state


def from_hf(state):
    """
    A Hugging Face BERT's state dict (masked-language or causal head) -> ours, to be loaded with load_state_dict.

    Token types fold into the positions: every token of ours is of type 0. Old checkpoints call LayerNorm's weight and
    bias gamma and beta. KeyError names what is missing.
    """
    state = {name.replace(".gamma", ".weight").replace(".beta", ".bias"): tensor for name, tensor in state.items()}
    n_layer = 1 + max((int(name.split(".")[3]) for name in state if name.startswith("bert.encoder.layer.")), default=-1)
    ours = {}
    for prefix, hf in hf_names(n_layer):
        found = {prefix + name.removeprefix(hf): tensor for name, tensor in state.items() if name.startswith(hf)}
        if not found:
            raise KeyError(hf)
        ours |= found
    if HF_TOKEN_TYPES in state:
        ours["pos_emb.weight"] = ours["pos_emb.weight"] + state[HF_TOKEN_TYPES][0]
    return ours


def load_hf(model, state):
    """A Hugging Face BERT's state dict into a model of ours; KeyError and ValueError name what does not fit."""
    state, want = from_hf(state), model.state_dict()
    for name in sorted(want.keys() | state.keys()):
        got, need = (tuple(s[name].shape) if name in s else "missing" for s in (state, want))
        if got != need:
            raise ValueError(f"{name} is {got} there and {need} here")
    model.load_state_dict(state)
