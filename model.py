"""
One Transformer, one switch: the BERT of the paper (S2.1, Table S1) as an encoder (causal=False, masked-language
modelling) or, the same network with a causal mask, as a decoder (causal=True, next-token prediction).

Post-LN blocks, learned absolute positions, exact GELU, a head tied to the token embedding. Hidden states and logits
equal those of transformers' BertForMaskedLM and BertLMHeadModel (tests/test_model.py), and weights travel both ways.

Shapes: B sequences, T tokens, C = n_embd, H = n_head, D = C // H, V = vocab_size; Q queries of a row: all T of them,
or, where only K positions of a row are predicted, these K.
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
    qk_norm: bool = False  # queries and keys of a head at norm sqrt(D) each: their scale is gone. Not in BERT
    diagonal: float = 0.0  # added to the logit of a token with itself, before the softmax. Not in BERT


class SelfAttention(nn.Module):
    """
    Every token (query side, rows) compares itself with every token (key side, columns) and takes a mean of values:

        softmax(x W_q,h W_k,h^T x^T / sqrt(D)) x W_v,h  for each head h                          Eq. (1), (S18)

    The comparison is a bilinear form of x with itself, whose matrix is W_qk = W_q W_k^T: what the paper is about.
    """

    def __init__(self, cfg):
        super().__init__()
        self.q = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.k = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.v = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.proj = nn.Linear(cfg.n_embd, cfg.n_embd)
        # A head is a block of D rows of q, k and v: W_q,h = q.weight[h D : (h + 1) D].T, (C, D)
        self.n_head = cfg.n_head
        self.causal = cfg.causal
        self.dropout = cfg.attn_dropout
        self.qk_norm = cfg.qk_norm
        self.diagonal = cfg.diagonal

    def forward(self, x, context, positions=None):
        """
        x (B, Q, C) looks at context (B, T, C) -> (B, Q, C). x is the context itself, or its rows at positions (B, Q).
        """
        H = self.n_head
        q = self.q(x).unflatten(-1, (H, -1)).transpose(1, 2)  # (B, H, Q, D)
        k = self.k(context).unflatten(-1, (H, -1)).transpose(1, 2)  # (B, H, T, D)
        v = self.v(context).unflatten(-1, (H, -1)).transpose(1, 2)  # (B, H, T, D)
        if self.qk_norm:
            q = F.rms_norm(q, q.shape[-1:])  # |q| = sqrt(D), so logits are sqrt(D) cos(q, k) at most
            k = F.rms_norm(k, k.shape[-1:])
        mask = self.mask(q, k, positions)
        # In plain words: logits = q @ k.mT / sqrt(D), (B, H, Q, T); y = softmax(logits) @ v. The fused function never
        # stores the logits. It divides by sqrt(D), as BERT does, where Eq. (1) and (S18) print sqrt(C).
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal and mask is None,
            dropout_p=self.dropout if self.training else 0.0,  # a function, so it has to be told about eval()
        )  # (B, H, Q, D)
        return self.proj(y.transpose(1, 2).flatten(2))  # heads side by side: (B, Q, C)

    def mask(self, q, k, positions):
        """What is added to the logits, (B or 1, 1, Q, T); None where nothing is, or only the usual causal mask."""
        plain_causal = self.causal and positions is None  # scaled_dot_product_attention can do that one by itself
        if self.diagonal == 0 and (plain_causal or not self.causal):
            return None
        key = torch.arange(k.shape[2], device=q.device)  # (T,)
        query = key[None] if positions is None else positions  # (B or 1, Q): where the queries stand
        is_itself = query[..., None] == key  # (B or 1, Q, T)
        mask = self.diagonal * is_itself
        if self.causal:
            mask = mask.masked_fill(query[..., None] < key, -torch.inf)  # no token sees a later one
        return mask[:, None].to(q.dtype)  # the same for all heads


def rows_at(x, positions):
    """x (B, T, C), positions (B, K) -> (B, K, C)."""
    return x.gather(1, positions.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


class MLP(nn.Module):
    """What a token makes of what it has gathered: every position by itself."""

    def __init__(self, cfg):
        super().__init__()
        self.fc = nn.Linear(cfg.n_embd, 4 * cfg.n_embd)
        self.proj = nn.Linear(4 * cfg.n_embd, cfg.n_embd)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x)))  # (B, Q, C) -> (B, Q, 4 C) -> (B, Q, C)


class Block(nn.Module):
    """Post-LN: each sublayer's output is added, then normalised, as in BERT (GPT-2 and later normalise the input)."""

    def __init__(self, cfg):
        super().__init__()
        self.attn = SelfAttention(cfg)
        self.mlp = MLP(cfg)
        self.ln_1 = nn.LayerNorm(cfg.n_embd, eps=1e-12)  # BERT's eps
        self.ln_2 = nn.LayerNorm(cfg.n_embd, eps=1e-12)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x, positions=None):
        """x (B, T, C) -> (B, T, C); or, with positions (B, K), only the rows at these: (B, K, C)."""
        context = x  # every token can be looked at, whoever looks
        if positions is not None:
            x = rows_at(x, positions)  # (B, Q, C)
        x = self.ln_1(x + self.drop(self.attn(x, context, positions)))
        return self.ln_2(x + self.drop(self.mlp(x)))


class Head(nn.Module):
    """Dense, GELU, LayerNorm: the logits are its output times the token embedding, plus a bias for every token."""

    def __init__(self, cfg):
        super().__init__()
        self.dense = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.ln = nn.LayerNorm(cfg.n_embd, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab_size))  # added by Transformer.forward, after the product

    def forward(self, x):
        return self.ln(F.gelu(self.dense(x)))  # (B, Q, C)


LOSS_ROWS = 1024  # rows of logits at a time, at least ...
LOSS_CHUNKS = 8  # ... and at most so many chunks: torch.compile unrolls their loop


class LinearCrossEntropy(torch.autograd.Function):
    """
    Mean cross-entropy of the logits x W^T + b, x (N, C), W (V, C), b (V), against targets (N). In plain words:

        logits = F.linear(x, weight, bias)
        loss = F.cross_entropy(logits, targets)

    The logits are the largest tensor of a small model by far, and autograd would keep them, in float32, until the
    backward pass. Here a chunk of rows at a time gives its loss and its gradient and is gone.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, targets, with_gradients):
        if torch.is_autocast_enabled(x.device.type):  # as F.linear would do by itself
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
        chunk = max(LOSS_ROWS, -(-len(x) // LOSS_CHUNKS))  # rows
        total = 0.0
        grad_x, grad_weight, grad_bias = [], 0.0, 0.0
        for rows, t in zip(x.split(chunk), targets.split(chunk)):
            logits = F.linear(rows, weight, bias)  # (n, V)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # bfloat16 has too few digits for exp
            # This is the largest tensor there is, so what follows is written over it: logits, log p, p, error.
            log_p = logits.sub_(logits.logsumexp(-1, keepdim=True))  # (n, V)
            total = total - log_p.gather(1, t[:, None]).sum()
            if with_gradients:
                # d loss / d logits = softmax - one-hot; the rest is the chain rule of a linear layer
                one_hot = torch.ones_like(log_p[:, :1])  # (n, 1), of each row at its target
                error = log_p.exp_().scatter_add_(1, t[:, None], -one_hot).to(x.dtype)  # (n, V)
                grad_x.append(error @ weight)  # (n, C)
                grad_weight = grad_weight + (error.T @ rows).to(logits.dtype)  # (V, C), summed in float32
                grad_bias = grad_bias + error.sum(0, dtype=logits.dtype)  # (V,)
        if with_gradients:
            ctx.save_for_backward(torch.cat(grad_x), grad_weight, grad_bias)
        return total / len(targets)

    @staticmethod
    def backward(ctx, grad):
        """grad (): of whatever was made of the loss, with respect to it. The gradients of a sum are there already."""
        grad_x, grad_weight, grad_bias = ctx.saved_tensors
        scale = grad / len(grad_x)  # of a mean
        return grad_x * scale, grad_weight * scale, grad_bias * scale, None, None


class Transformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.n_embd)  # also the output layer, see forward
        self.pos_emb = nn.Embedding(cfg.block_size, cfg.n_embd)
        self.ln_emb = nn.LayerNorm(cfg.n_embd, eps=1e-12)
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layer))
        self.head = Head(cfg)
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module):
        """BERT's start: N(0, 0.02) for every matrix, zero biases, LayerNorm at identity. init.py changes q and k."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)  # whatever its size: at n_embd = 256 attention starts all but flat
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def hidden(self, idx, positions=None):
        """idx (B, T) -> the last block's output (B, T, C), or its rows at positions (B, K): (B, K, C)."""
        T = idx.shape[1]
        x = self.tok_emb(idx) + self.pos_emb.weight[:T]  # (B, T, C)
        x = self.drop(self.ln_emb(x))
        for block in self.blocks[:-1]:
            x = block(x)
        return self.blocks[-1](x, positions)  # no other block reads the rows that are left out here

    def forward(self, idx, targets=None, positions=None):
        """
        idx (B, T) -> logits (B, T, V); with targets, the mean cross-entropy [nats/token] instead.

        Masked tokens: targets (B, K) stand at positions (B, K), as many in every row, so that shapes are static; the
        last block and the head are computed there alone. Next tokens: targets (B, T), and no positions.
        """
        x = self.head(self.hidden(idx, positions))  # (B, T or K, C)
        weight, bias = self.tok_emb.weight, self.head.bias  # the output layer is the token embedding, transposed
        if targets is None:
            return F.linear(x, weight, bias)  # (B, T or K, V)
        with_gradients = torch.is_grad_enabled()  # asked here: inside the function below it is always off
        return LinearCrossEntropy.apply(x.flatten(0, 1), weight, bias, targets.flatten(), with_gradients)


# ---- our names <-> those of a Hugging Face BERT ------------------------------------------------------------------
# Both store a Linear as (out, in) and the same tensors, so a checkpoint travels by renaming alone.

HF_NAMES = {  # prefix of ours -> prefix of theirs
    "tok_emb.": "bert.embeddings.word_embeddings.",
    "pos_emb.": "bert.embeddings.position_embeddings.",
    "ln_emb.": "bert.embeddings.LayerNorm.",
    "head.dense.": "cls.predictions.transform.dense.",
    "head.ln.": "cls.predictions.transform.LayerNorm.",
    "head.bias": "cls.predictions.bias",
}
HF_LAYER_NAMES = {  # the same of one layer: blocks.0.attn.q.weight is bert.encoder.layer.0.attention.self.query.weight
    "attn.q.": "attention.self.query.",
    "attn.k.": "attention.self.key.",
    "attn.v.": "attention.self.value.",
    "attn.proj.": "attention.output.dense.",
    "ln_1.": "attention.output.LayerNorm.",
    "mlp.fc.": "intermediate.dense.",
    "mlp.proj.": "output.dense.",
    "ln_2.": "output.LayerNorm.",
}
HF_TOKEN_TYPES = "bert.embeddings.token_type_embeddings.weight"
HF_DEFAULTS = dict(  # what the shapes of the weights do not show: a config.json that lacks one of these means its default
    num_attention_heads=12,
    hidden_act="gelu",
    layer_norm_eps=1e-12,
    is_decoder=False,
    position_embedding_type="absolute",
    tie_word_embeddings=True,
)


def hf_prefixes(n_layer):
    """{prefix of ours: prefix of theirs} of a model with n_layer blocks."""
    prefixes = dict(HF_NAMES)
    for i in range(n_layer):
        for ours, theirs in HF_LAYER_NAMES.items():
            prefixes[f"blocks.{i}.{ours}"] = f"bert.encoder.layer.{i}.{theirs}"
    return prefixes


def renamed(state, prefixes):
    """The tensors of a state dict whose names begin with one of `prefixes` {old: new}, under their new names."""
    found = {}
    for name, tensor in state.items():
        for old, new in prefixes.items():
            if name.startswith(old):
                found[new + name.removeprefix(old)] = tensor
    return found


def to_hf(model):
    """
    -> (config.json as a dict, state dict) of the same model as a transformers BertForMaskedLM / BertLMHeadModel.

    ValueError: the model has a weight that their BERT has no name for, or attention that it does not know.
    """
    cfg, ours = model.cfg, model.state_dict()
    prefixes = hf_prefixes(cfg.n_layer)
    # A weight that is here and not above, or above and not here, would make another function of it: refuse.
    nameless = [name for name in ours if not name.startswith(tuple(prefixes))]
    if nameless:
        raise ValueError(f"a Hugging Face BERT has no name for {nameless[0]}: add it to HF_NAMES of model.py")
    missing = [prefix for prefix in prefixes if not any(name.startswith(prefix) for name in ours)]
    if missing:
        raise ValueError(f"a Hugging Face BERT has {prefixes[missing[0]]}*, and this model has no {missing[0]}*")
    if cfg.qk_norm or cfg.diagonal:
        raise ValueError(f"a Hugging Face BERT has no qk_norm = {cfg.qk_norm} or diagonal = {cfg.diagonal}")
    state = renamed(ours, prefixes)
    state[HF_TOKEN_TYPES] = torch.zeros_like(ours["tok_emb.weight"][:1])  # ours has none: one type, at zero
    config = dict(
        model_type="bert",
        architectures=["BertLMHeadModel" if cfg.causal else "BertForMaskedLM"],
        is_decoder=cfg.causal,  # gives their BERT a causal mask
        use_cache=False,
        vocab_size=cfg.vocab_size,
        max_position_embeddings=cfg.block_size,
        num_hidden_layers=cfg.n_layer,
        num_attention_heads=cfg.n_head,
        hidden_size=cfg.n_embd,
        intermediate_size=4 * cfg.n_embd,
        hidden_act="gelu",
        hidden_dropout_prob=cfg.dropout,
        attention_probs_dropout_prob=cfg.attn_dropout,
        layer_norm_eps=1e-12,
        initializer_range=0.02,
        type_vocab_size=1,
        position_embedding_type="absolute",
        tie_word_embeddings=True,
        pad_token_id=None,
    )
    return config, state


def from_hf(state):
    """
    A Hugging Face BERT's state dict (masked-language or causal head) -> ours, to be loaded with load_state_dict.

    Token types fold into the positions: every token of ours is of type 0. Old checkpoints call LayerNorm's weight and
    bias gamma and beta. KeyError names what is missing.
    """
    state = {name.replace(".gamma", ".weight").replace(".beta", ".bias"): tensor for name, tensor in state.items()}
    layers = [int(name.split(".")[3]) for name in state if name.startswith("bert.encoder.layer.")]
    n_layer = max(layers, default=-1) + 1
    prefixes = {theirs: ours for ours, theirs in hf_prefixes(n_layer).items()}
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in state):
            raise KeyError(prefix)
    ours = renamed(state, prefixes)
    if HF_TOKEN_TYPES in state:  # (types, C); positions and types are both added to the token embedding
        ours["pos_emb.weight"] = ours["pos_emb.weight"] + state[HF_TOKEN_TYPES][0]
    return ours


def load_hf(model, config, state):
    """
    A Hugging Face BERT, its config.json as a dict and its state dict, into a model of ours.

    KeyError and ValueError name what does not fit.
    """
    our_config, _ = to_hf(model)
    for key, default in HF_DEFAULTS.items():
        there, here = config.get(key, default), our_config[key]
        if there != here:
            raise ValueError(f"{key} is {there} there and {here} here")
    state, ours = from_hf(state), model.state_dict()
    for name in sorted(ours.keys() | state.keys()):
        there = tuple(state[name].shape) if name in state else "missing"
        here = tuple(ours[name].shape) if name in ours else "missing"
        if there != here:
            raise ValueError(f"{name} is {there} there and {here} here")
    model.load_state_dict(state)
