"""
The Transformer of the paper (S2.1, Table S1), which is BERT, all of it in this file.

One switch makes it an encoder or a decoder. With causal=False it is an encoder: every token sees all tokens, and it
learns to fill in masked ones. With causal=True the same network is a decoder: no token sees a later one, and it learns
to predict the next one (or, with --objective=masked of train.py, to fill in masks too).

    encoder = Transformer(ModelConfig(vocab_size=258, block_size=32, n_layer=2, n_head=2, n_embd=64))
    logits = encoder(idx)                    # idx (B, T) -> (B, T, V)
    loss = encoder(idx, targets, positions)  # K masked tokens in each sequence: targets and positions (B, K)

    decoder = Transformer(ModelConfig(vocab_size=258, block_size=32, n_layer=2, n_head=2, n_embd=64, causal=True))
    loss = decoder(idx, targets)             # the next token of every token: targets (B, T) -> a mean [nats/token]

As in BERT (Devlin et al. 2019): LayerNorm after each sublayer, learned absolute positions, exact GELU, output weights
tied to the token embedding. Hidden states and logits equal those of transformers' BertForMaskedLM and BertLMHeadModel
(tests/test_model.py), and weights can be exchanged with them in both directions. This file imports torch alone, so it
can be taken by itself.

Shapes: B sequences, T tokens, C = n_embd, H = n_head, D = C // H (the size of a head), V = vocab_size. Q is the number
of queries in a sequence: all T tokens, or in the last block only the K masked ones.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn as nn
import torch.nn.functional as F

LN_EPS = 1e-12  # in every LayerNorm, as in BERT; PyTorch's default is 1e-5
BERT_STD = 0.02  # of every matrix at the start, as in BERT, whatever n_embd is


@dataclass(frozen=True)
class ModelConfig:
    vocab_size: int
    block_size: int  # the longest sequence
    n_layer: int  # the number of blocks
    n_head: int  # attention heads in each block
    n_embd: int  # the size of a token's vector; each head works on n_embd / n_head dimensions of it
    dropout: float = 0.1  # on the embeddings and on the outputs of both sublayers
    attn_dropout: float = 0.1  # on the attention weights
    causal: bool = False  # False: encoder; True: decoder
    # Two options that BERT does not have, for experiments:
    qk_norm: bool = False  # scale every query and key of a head to norm sqrt(D)
    diagonal: float = 0.0  # add this to the attention logit of every token with itself


class SelfAttention(nn.Module):
    """
    Every token compares its query with the keys of all tokens, and takes a weighted mean of their values. For a head h

        softmax(x W_q,h W_k,h^T x^T / sqrt(D)) x W_v,h                                           Eq. (1), (S18)

    Head h compares tokens i and j by x_i^T W_qk,h x_j, with W_qk,h = W_q,h W_k,h^T (C, C) of rank D. The sum of these
    is the W_qk of the layer, W_q W_k^T, Eq. (S20). This matrix is what the paper is about. Its rows belong to the query
    side, its columns to the key side.
    """

    def __init__(self, cfg):
        super().__init__()
        self.q = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.k = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.v = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.proj = nn.Linear(cfg.n_embd, cfg.n_embd)
        # nn.Linear stores (out, in), so head h is a block of D rows: W_q,h = q.weight[h D : (h + 1) D].T, (C, D)
        self.n_head = cfg.n_head
        self.causal = cfg.causal
        self.dropout = cfg.attn_dropout
        self.qk_norm = cfg.qk_norm
        self.diagonal = cfg.diagonal

    def forward(self, x, context, positions=None):
        """
        x (B, Q, C), context (B, T, C) -> (B, Q, C).

        The tokens of x make the queries, and those of context the keys and values. Usually x is context. In the last
        block of a masked-language model, x holds only the rows of context at positions (B, Q).
        """
        H = self.n_head
        q = self.q(x).unflatten(-1, (H, -1)).transpose(1, 2)  # (B, H, Q, D)
        k = self.k(context).unflatten(-1, (H, -1)).transpose(1, 2)  # (B, H, T, D)
        v = self.v(context).unflatten(-1, (H, -1)).transpose(1, 2)  # (B, H, T, D)
        if self.qk_norm:
            q = F.rms_norm(q, q.shape[-1:])  # |q| = |k| = sqrt(D), so a logit is sqrt(D) cos(q, k)
            k = F.rms_norm(k, k.shape[-1:])
        mask = self.mask(q, k, positions)
        # The next call computes
        #     logits = q @ k.mT / sqrt(D) + mask  # (B, H, Q, T)
        #     y = softmax(logits) @ v             # (B, H, Q, D)
        # without storing the logits (on a CPU only if attn_dropout is 0). It divides by sqrt(D), as BERT does; Eq. (1)
        # and (S18) print sqrt(C).
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal and mask is None,
            dropout_p=self.dropout if self.training else 0.0,  # this function does not know about model.eval()
        )  # (B, H, Q, D)
        return self.proj(y.transpose(1, 2).flatten(2))  # put the heads side by side: (B, Q, C)

    def mask(self, q, k, positions):
        """What is added to the logits, (B or 1, 1, Q, T). None: nothing, or only the usual causal mask."""
        # scaled_dot_product_attention makes the usual causal mask by itself. But in the last block of a decoder that
        # fills in masks, row i of q is not token i.
        needs_positions = self.causal and positions is not None
        if self.diagonal == 0 and not needs_positions:
            return None
        key_at = torch.arange(k.shape[2], device=q.device)  # (T,), the position of every key
        query_at = key_at[None] if positions is None else positions  # (B or 1, Q), the position of every query
        is_itself = query_at[..., None] == key_at  # (B or 1, Q, T)
        mask = self.diagonal * is_itself
        if self.causal:
            mask = mask.masked_fill(query_at[..., None] < key_at, -torch.inf)  # no token sees a later one
        return mask[:, None].to(q.dtype)  # (B or 1, 1, Q, T), the same for all heads


def rows_at(x, positions):
    """The rows of x (B, T, C) at positions (B, K) -> (B, K, C). All rows if positions is None."""
    if positions is None:
        return x  # in all blocks but the last, and everywhere in a decoder
    index = positions.unsqueeze(-1).expand(-1, -1, x.shape[-1])  # (B, K, C): gather wants an index for every number
    return x.gather(1, index)


class MLP(nn.Module):
    """Two layers with a GELU between them, applied to every token by itself."""

    def __init__(self, cfg):
        super().__init__()
        self.fc = nn.Linear(cfg.n_embd, 4 * cfg.n_embd)  # four times as wide, as in BERT and GPT
        self.proj = nn.Linear(4 * cfg.n_embd, cfg.n_embd)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x)))  # (B, Q, C) -> (B, Q, 4 C) -> (B, Q, C)


class Block(nn.Module):
    """
    Attention and MLP. As in BERT, LayerNorm comes after each sum; in GPT-2 it comes before each sublayer.

    positions is there for speed alone: what the last block makes of the other rows is not used. A block of your own can
    do without it, if Transformer.hidden then returns rows_at(x, positions).
    """

    def __init__(self, cfg):
        super().__init__()
        self.attn = SelfAttention(cfg)
        self.mlp = MLP(cfg)
        self.ln_1 = nn.LayerNorm(cfg.n_embd, eps=LN_EPS)
        self.ln_2 = nn.LayerNorm(cfg.n_embd, eps=LN_EPS)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x, positions=None):
        """x (B, T, C) -> (B, Q, C). Q = T, or with positions (B, K), Q = K: only the rows at these positions."""
        context = x  # all tokens have keys and values
        x = rows_at(x, positions)  # (B, Q, C), and only these have queries
        x = self.ln_1(x + self.drop(self.attn(x, context, positions)))
        return self.ln_2(x + self.drop(self.mlp(x)))


class Head(nn.Module):
    """Dense, GELU, LayerNorm. Transformer.forward turns the output into logits."""

    def __init__(self, cfg):
        super().__init__()
        self.dense = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.ln = nn.LayerNorm(cfg.n_embd, eps=LN_EPS)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab_size))  # of the logits

    def forward(self, x):
        return self.ln(F.gelu(self.dense(x)))  # (B, Q, C)


LOSS_ROWS = 1024  # compute the logits of at least so many tokens at a time ...
LOSS_CHUNKS = 8  # ... but in at most so many chunks, because torch.compile unrolls the loop over them


class LinearCrossEntropy(torch.autograd.Function):
    """
    The output layer and the loss in one step, for x (N, C), weight (V, C), bias (V), targets (N):

        logits = F.linear(x, weight, bias)       # (N, V)
        loss = F.cross_entropy(logits, targets)

    These two lines give the same numbers. But logits is by far the largest tensor of a small model, and autograd would
    keep it until the backward pass. So we compute the logits of a chunk of rows, the loss and the gradient of this
    chunk, and then forget its logits.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, targets, with_gradients):
        if torch.is_autocast_enabled(x.device.type):  # F.linear would do this by itself, but not in here
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
        chunk = max(LOSS_ROWS, math.ceil(len(x) / LOSS_CHUNKS))  # rows in a chunk
        total = 0.0  # the sum of the losses of all tokens so far
        wide = torch.promote_types(x.dtype, torch.float32)  # bfloat16 has too few digits for exp and for long sums
        grad_x = []
        grad_weight = torch.zeros_like(weight, dtype=wide)  # (V, C)
        grad_bias = torch.zeros_like(bias, dtype=wide)  # (V,)
        for rows, t in zip(x.split(chunk), targets.split(chunk)):
            logits = F.linear(rows, weight, bias).to(wide)  # (n, V)
            # sub_, exp_ and scatter_add_ write over their input: logits, log_p, p and error are one piece of memory.
            log_p = logits.sub_(logits.logsumexp(-1, keepdim=True))  # (n, V)
            total = total - log_p.gather(1, t[:, None]).sum()
            if with_gradients:
                # d loss / d logits = p - one_hot(t): subtract 1 from p at the target of each row.
                p = log_p.exp_()  # (n, V)
                minus_one = torch.full_like(p[:, :1], -1)  # (n, 1)
                error = p.scatter_add_(1, t[:, None], minus_one)  # (n, V)
                # The chain rule through logits = rows @ weight.T + bias.
                grad_bias += error.sum(0)  # (V,)
                error = error.to(x.dtype)
                grad_x.append(error @ weight)  # (n, C)
                grad_weight += error.T @ rows  # (V, C)
        if with_gradients:
            ctx.save_for_backward(torch.cat(grad_x), grad_weight, grad_bias)
        return total / len(targets)

    @staticmethod
    def backward(ctx, grad):
        """grad (): the derivative of the final result with respect to this loss, 1 if nothing comes after it."""
        grad_x, grad_weight, grad_bias = ctx.saved_tensors  # the gradients of the sum over tokens
        scale = grad / len(grad_x)  # the loss is the mean
        return grad_x * scale, grad_weight * scale, grad_bias * scale, None, None  # targets have no gradient


class Transformer(nn.Module):
    """Embeddings, the blocks, and a head that predicts tokens. cfg: a ModelConfig."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.n_embd)  # forward uses it as the output layer as well
        self.pos_emb = nn.Embedding(cfg.block_size, cfg.n_embd)  # one learned vector for every position
        self.ln_emb = nn.LayerNorm(cfg.n_embd, eps=LN_EPS)  # BERT also normalises the embeddings
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layer))
        self.head = Head(cfg)
        self.apply(self._init_weights)  # module by module in the order above, so a seed gives the same weights

    @staticmethod
    def _init_weights(module):
        """BERT's start: every matrix from N(0, BERT_STD^2), all biases 0. init.py changes q, k and v afterwards."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=BERT_STD)  # if n_embd is small, attention starts nearly flat
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def hidden(self, idx, positions=None):
        """idx (B, T) -> the output of the last block (B, Q, C): all rows, or only those at positions (B, K)."""
        T = idx.shape[1]
        x = self.tok_emb(idx) + self.pos_emb.weight[:T]  # (B, T, C)
        x = self.drop(self.ln_emb(x))
        # All blocks but the last need every row, because a row is context for the others.
        for block in self.blocks[:-1]:
            x = block(x)
        return self.blocks[-1](x, positions)  # no later block needs the other rows, so they are not computed

    def forward(self, idx, targets=None, positions=None):
        """
        idx (B, T) -> logits (B, T, V). With targets, the mean cross-entropy [nats/token] instead.

        To predict next tokens: targets (B, T), no positions. To predict masked tokens: targets (B, K) at positions
        (B, K). Every row has the same number K of them, so shapes never change.
        """
        x = self.head(self.hidden(idx, positions))  # (B, Q, C)
        weight = self.tok_emb.weight  # (V, C); the logit of a token is the product of x with its embedding
        bias = self.head.bias  # (V,)
        if targets is None:
            return F.linear(x, weight, bias)  # (B, Q, V)
        with_gradients = torch.is_grad_enabled()  # inside of the function below this is always False
        return LinearCrossEntropy.apply(x.flatten(0, 1), weight, bias, targets.flatten(), with_gradients)


# ---- exchange with the BERT of transformers ----------------------------------------------------------------------
#
# Both store a Linear as (out, in), so the names change and the weights do not. BERT has one tensor more: the embeddings
# of its token types, of which every token here has the type 0. to_hf writes zeros, and load_hf adds type 0 to pos_emb.

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
        raise ValueError("a Hugging Face BERT with these weights computes something else: it has no qk_norm, no "
                         "diagonal and no other kind of block")
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
        name = name.replace(".gamma", ".weight").replace(".beta", ".bias")  # old checkpoints name LayerNorm's so
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
