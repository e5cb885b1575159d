"""
The Transformer of the paper (S2.1, Table S1), which is BERT, all of it in this file.

One switch, causal, says who sees whom. With False every token sees all tokens (an encoder), and with True no token sees
a later one (a decoder). With predict_at the network fills in masked tokens, and without it predicts the next one.

    sizes = dict(vocab_size=258, block_size=32, n_layer=2, n_head=2, n_embd=64)
    encoder = Transformer(ModelConfig(**sizes))
    logits = encoder(idx)                     # idx (B, T) -> (B, T, V)
    loss = encoder(idx, targets, predict_at)  # the K masked tokens of each sequence, and where they are: (B, K) each

    decoder = Transformer(ModelConfig(**sizes, causal=True))
    loss = decoder(idx, targets)              # the token after each token: targets (B, T)

As in BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805), LayerNorm comes after each sublayer, positions are
learned, GELU is exact, and the output weights are tied to the token embedding. Logits and training equal those of
BertForMaskedLM and BertLMHeadModel in transformers (tests/test_bert.py and test_recipe.py; data/export.py writes them).

Shapes: B sequences, T tokens, C = n_embd, H = n_head, D = C // H (the size of a head), V = vocab_size.
Q is the number of queries in a sequence. It is T, or K in the last block if only K masked tokens are predicted.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

LN_EPS = 1e-12  # in every LayerNorm, as in BERT; PyTorch's default is 1e-5
BERT_STD = 0.02  # the standard deviation of every matrix at the start, as in BERT, whatever n_embd is


@dataclass(frozen=True)
class ModelConfig:
    vocab_size: int
    block_size: int  # the longest sequence
    n_layer: int  # the number of blocks
    n_head: int  # attention heads in each block
    n_embd: int  # the size of a token's vector
    dropout: float = 0.1  # on the embeddings and on the outputs of both sublayers
    attn_dropout: float = 0.1  # on the attention weights
    causal: bool = False  # False: encoder; True: decoder
    # Options that BERT does not have, for experiments:
    positions: str = "learned"  # or "rotary" (rotate), or "untied" (position_logits): both are outside of W_qk
    tie: str = "none"  # or "same" or "mirror": keys without weights of their own (SelfAttention)
    init_std: float = BERT_STD  # of every matrix at the start


def rows_at(x, predict_at):
    """The rows of x (B, T, C) at predict_at (B, K) -> (B, K, C). All rows if predict_at is None."""
    if predict_at is None:
        return x  # as in every block but the last, and everywhere in a decoder
    return x.take_along_dim(predict_at[:, :, None], dim=1)


def rotate(x, token_at):
    """
    Rotary positions (Su et al. 2021, https://arxiv.org/abs/2104.09864): turn x (B, H, T, D) by its positions, token_at
    (B or 1, T). Dimensions d and d + D/2 are a plane. At position t it is turned by t 10000^(-2d/D). So the product of
    a query and a key depends on how far apart they are, and not on where.
    """
    x_1, x_2 = x.unflatten(-1, (2, -1)).unbind(-2)  # (B, H, T, D / 2)
    half = x_1.shape[-1]
    speeds = 10000.0 ** (-torch.arange(half, device=x.device) / half)  # (D / 2,), radians a token
    angles = token_at[:, None, :, None] * speeds  # (B or 1, 1, T, D / 2)
    cos = angles.cos().to(x.dtype)
    sin = angles.sin().to(x.dtype)
    return torch.cat([x_1 * cos - x_2 * sin, x_2 * cos + x_1 * sin], -1)


class SelfAttention(nn.Module):
    """
    Every token compares its query with the keys of all tokens, and takes a weighted mean of their values. For a head h

        softmax(x W_q,h W_k,h^T x^T / sqrt(D)) x W_v,h                                           Eq. (1), (S18)

    Head h compares tokens i and j by x_i W_qk,h x_j^T, with W_qk,h = W_q,h W_k,h^T (C, C) of rank D. The sum over heads
    is the W_qk of the layer, W_q W_k^T, Eq. (S20): the matrix that the paper is about. Its rows belong to the query
    side, its columns to the key side.

    Tied heads have no W_k: the key of head h is the query of head partner[h].

        same      partner = 0 1 2 3 ..., so W_k = W_q in every head, and every W_qk,h is symmetric
        mirror    partner = 1 0 3 2 ..., so two W_qk,h are transposes of each other, and only their sum is symmetric
    """

    def __init__(self, cfg):
        super().__init__()
        self.n_head = cfg.n_head
        self.causal = cfg.causal
        self.dropout = cfg.attn_dropout
        self.rotary = cfg.positions == "rotary"
        # nn.Linear stores (out, in), so head h is a block of D rows: W_q,h = q.weight[h D : (h + 1) D].T, (C, D)
        self.q = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.register_module("k", None)  # if it stays None (tied heads), load_state_dict skips the W_k of a file
        if cfg.tie == "none":
            self.k = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.v = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.proj = nn.Linear(cfg.n_embd, cfg.n_embd)
        if cfg.positions == "untied":
            self.pos_q = nn.Linear(cfg.n_embd, cfg.n_embd)
            self.pos_k = nn.Linear(cfg.n_embd, cfg.n_embd)

        # whose query is the key of each head? (H,)
        if cfg.tie != "none":
            partner = torch.arange(cfg.n_head)
            if cfg.tie == "mirror":
                partner = partner ^ 1  # the last bit flipped: 1 0 3 2 ...
            self.register_buffer("partner", partner, persistent=False)
            self.register_state_dict_post_hook(SelfAttention.save_tied_keys)

    def forward(self, x, predict_at=None, pos=None):
        """
        x (B, T, C) -> (B, Q, C). All tokens have keys and values. Those at predict_at (B, Q) have queries; without it
        all have, and Q = T. pos (T, C): the vectors of untied positions.
        """
        q, k = self.queries_and_keys(x, predict_at)  # (B, H, Q, D), (B, H, T, D)
        v = self.split_heads(self.v(x))  # (B, H, T, D)

        key_at = torch.arange(x.shape[1], device=x.device)[None]  # (1, T), the position of every key
        query_at = key_at if predict_at is None else predict_at  # (1 or B, Q)
        # QK-norm, as in Qwen3, goes before this: its gains scale single dimensions, which the rotation mixes
        if self.rotary:
            q = rotate(q, query_at)
            k = rotate(k, key_at)
        mask = self.attention_mask(key_at, query_at, predict_at, pos)

        # The next call computes
        #     logits = q @ k.mT / sqrt(D)  # (B, H, Q, T), plus the mask: -inf where a query does not see the key
        #     y = softmax(logits) @ v      # (B, H, Q, D)
        # without storing the logits (on a CPU only if attn_dropout is 0). It divides by sqrt(D), as BERT does; Eq. (1)
        # and (S18) print sqrt(C). It does not know about model.eval(), so dropout is switched off here.
        y = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=mask,
            is_causal=self.causal and mask is None,  # the mask of all queries, without making it
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.proj(y.transpose(1, 2).flatten(2))  # the heads side by side: (B, Q, C)

    def queries_and_keys(self, x, predict_at=None):
        """x (B, T, C) -> q (B, H, Q, D), k (B, H, T, D). Tied heads take both from one product with all tokens."""
        if self.k is not None:
            return self.split_heads(self.q(rows_at(x, predict_at))), self.split_heads(self.k(x))
        q = self.q(x)  # (B, T, C)
        k = self.split_heads(q)[:, self.partner]
        return self.split_heads(rows_at(q, predict_at)), k

    def save_tied_keys(self, state, prefix, _):
        """Save W_k too, for programs that read checkpoints."""
        for name in "weight", "bias":
            of_heads = state[f"{prefix}q.{name}"].unflatten(0, (self.n_head, -1))  # (H, D, C) or (H, D)
            state[f"{prefix}k.{name}"] = of_heads[self.partner].flatten(0, 1)

    def attention_mask(self, key_at, query_at, predict_at, pos):
        """
        The mask for attention: which keys each query sees, or what to add to its logits. Keys are at key_at (1, T),
        queries at query_at (1 or B, Q).

            an encoder                   None: every query sees every key
            causal, all queries          None: is_causal of the attention does it, and is faster than a mask (beside
                                         one that is added, is_causal may not be used)
            causal, some queries         bool (B, 1, Q, T): True where the key is not later than the query
            untied positions             float (1 or B, H, Q, T), added to the logits: -inf where a query sees no key
        """
        sees = None
        if self.causal and (predict_at is not None or pos is not None):
            sees = (key_at[:, None, :] <= query_at[:, :, None])[:, None]  # (1 or B, 1, Q, T)
        if pos is None:
            return sees
        added = self.position_logits(pos, predict_at)  # (1 or B, H, Q, T)
        return added if sees is None else added.masked_fill(~sees, -torch.inf)

    def position_logits(self, pos, predict_at):
        """What each pair of untied positions adds to its logit: pos (T, C) -> (B or 1, H, Q, T)."""
        # Ke et al. 2021, https://arxiv.org/abs/2006.15595
        q = self.split_heads(self.pos_q(pos)[None])  # (1, H, T, D)
        k = self.split_heads(self.pos_k(pos)[None])  # (1, H, T, D)
        logits = q @ k.mT / q.shape[-1] ** 0.5  # (1, H, T, T)
        if predict_at is None:
            return logits
        # subtle: logits[0] is (H, T, T), and its rows at predict_at are (H, B, Q, T). numpy would give (B, Q, H, T)
        return logits[0, :, predict_at].transpose(0, 1)  # (B, H, Q, T)

    def split_heads(self, x):
        """(B, T, C) -> (B, H, T, D)."""
        return x.unflatten(-1, (self.n_head, -1)).transpose(1, 2)


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
    Attention and MLP. As in BERT, LayerNorm comes after each sum. In GPT-2 it comes before each sublayer, and
    once after the last block:

        x = rows_at(x, predict_at) + self.drop(self.attn(self.ln_1(x), predict_at, pos))
        return x + self.drop(self.mlp(self.ln_2(x)))

    predict_at is there for speed alone, because nobody uses the other rows of the last block. A block of your own may
    ignore it: then end Transformer.hidden with rows_at(x, predict_at). pos is for untied positions alone.
    """

    def __init__(self, cfg):
        super().__init__()
        self.attn = SelfAttention(cfg)
        self.mlp = MLP(cfg)
        self.ln_1 = nn.LayerNorm(cfg.n_embd, eps=LN_EPS)
        self.ln_2 = nn.LayerNorm(cfg.n_embd, eps=LN_EPS)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x, predict_at=None, pos=None):
        """x (B, T, C) -> (B, Q, C): all rows, or only those at predict_at (B, Q). pos (T, C): untied positions."""
        rows = rows_at(x, predict_at)  # (B, Q, C)
        x = self.ln_1(rows + self.drop(self.attn(x, predict_at, pos)))
        return self.ln_2(x + self.drop(self.mlp(x)))


class LMHead(nn.Module):
    """BERT's last layers: dense, GELU, LayerNorm. Transformer.forward turns the output into logits."""

    def __init__(self, cfg):
        super().__init__()
        self.dense = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.ln = nn.LayerNorm(cfg.n_embd, eps=LN_EPS)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab_size))  # of the logits

    def forward(self, x):
        return self.ln(F.gelu(self.dense(x)))


class Transformer(nn.Module):
    """Embeddings, the blocks, and a head that predicts tokens. cfg: a ModelConfig."""

    def __init__(self, cfg):
        super().__init__()
        if cfg.positions not in ("learned", "rotary", "untied"):
            raise ValueError(f"positions = {cfg.positions!r}, expected learned, rotary or untied")
        if cfg.tie not in ("none", "same", "mirror") or (cfg.tie == "mirror" and cfg.n_head % 2):
            raise ValueError(f"tie = {cfg.tie!r}, n_head = {cfg.n_head}, expected none, same, mirror: pairs of heads")
        self.cfg = cfg
        # the input: vectors for tokens and, unless they are rotary, for positions. BERT normalises their sum
        self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.n_embd)  # also the output layer
        if cfg.positions in ("learned", "untied"):
            self.pos_emb = nn.Embedding(cfg.block_size, cfg.n_embd)
        if cfg.positions == "untied":
            self.ln_pos = nn.LayerNorm(cfg.n_embd, eps=LN_EPS)  # so that these vectors are as long as those of tokens
        self.ln_emb = nn.LayerNorm(cfg.n_embd, eps=LN_EPS)
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layer))
        self.head = LMHead(cfg)  # not lm_head, because every ckpt.pt has this name
        self.apply(self._init_weights)  # always in the order above, so a seed gives the same weights

    def _init_weights(self, module):
        """BERT's start: every matrix from N(0, init_std^2), all biases 0. init.py makes other starts of q, k and v."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=self.cfg.init_std)
        if isinstance(module, nn.Linear) and module.bias is not None:  # it has one everywhere but in a fork
            nn.init.zeros_(module.bias)

    def hidden(self, idx, predict_at=None):
        """idx (B, T) -> the output of the last block (B, Q, C): all rows, or only those at predict_at (B, K)."""
        x = self.tok_emb(idx)  # (B, T, C)
        pos = None
        if self.cfg.positions == "learned":
            x = x + self.pos_emb.weight[: idx.shape[1]]
        elif self.cfg.positions == "untied":
            pos = self.ln_pos(self.pos_emb.weight[: idx.shape[1]])  # (T, C), the same for every layer
        x = self.drop(self.ln_emb(x))

        # the last block may leave rows out. Before it every row is needed, because it is context for the others
        for block in self.blocks[:-1]:
            x = block(x, pos=pos)
        return self.blocks[-1](x, predict_at, pos)

    def forward(self, idx, targets=None, predict_at=None):
        """
        idx (B, T) -> logits (B, T, V). With targets, the mean cross-entropy [nats/token] instead.

        To predict next tokens: targets (B, T), no predict_at. To predict masked tokens: targets (B, K) at predict_at
        (B, K). Every row has the same number K of them, so shapes never change.
        """
        x = self.head(self.hidden(idx, predict_at))  # (B, Q, C)
        logits = F.linear(x, self.tok_emb.weight, self.head.bias)  # (B, Q, V): x times every embedding
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def stacked_qk(model, q="q", k="k"):
    """
    Returns copies of W_q and W_k of every layer, (L, C, C). nn.Linear stores (out, in), so W_q = q.weight.T. In a fork
    with fewer keys than queries, repeat each key head for its queries here, so that all heads have both.
    """
    states = [block.attn.state_dict() for block in model.blocks]  # with the W_k of tied heads
    w_q = torch.stack([state[f"{q}.weight"] for state in states]).mT
    w_k = torch.stack([state[f"{k}.weight"] for state in states]).mT
    return w_q, w_k
