"""
What tests/bench.py compares with: nanoGPT's model, scores by hand, and bare products.
"""

import importlib.util
import json
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

HEAD_DIM = 128  # LLaMA-3-8B's


# ---- nanoGPT -----------------------------------------------------------------------------------------------------


def nanogpt_model(folder, vocab_size, **sizes):
    """Returns the model of model.py in this folder, or its imitation. Called, it returns its logits and its loss."""
    if not folder:
        return ImitatedNanoGPT(vocab_size, **sizes)
    spec = importlib.util.spec_from_file_location("nanogpt", Path(folder, "model.py"))
    nanogpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nanogpt)
    with redirect_stdout(sys.stderr):  # it prints how many parameters it has
        return nanogpt.GPT(nanogpt.GPTConfig(block_size=512, vocab_size=vocab_size, **sizes))


class ImitatedNanoGPT(nn.Module):
    """A decoder as nanoGPT writes it, of torch's own blocks, with all logits and F.cross_entropy."""

    def __init__(self, vocab_size, n_layer, n_head, n_embd):
        super().__init__()
        # LayerNorm before each sublayer, and q, k and v in one product.
        options = dict(dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        block = nn.TransformerEncoderLayer(n_embd, n_head, 4 * n_embd, **options)
        self.tok_emb, self.pos_emb = nn.Embedding(vocab_size, n_embd), nn.Embedding(512, n_embd)
        self.blocks = nn.TransformerEncoder(block, n_layer, nn.LayerNorm(n_embd), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(512))

    def forward(self, idx, targets):
        x = self.blocks(self.tok_emb(idx) + self.pos_emb.weight, self.mask, is_causal=True)
        logits = x @ self.tok_emb.weight.T
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# ---- scores by hand ----------------------------------------------------------------------------------------------


def make_llama(folder, n_layer):
    """Writes so many layers of LLaMA-3-8B's shape, queries and keys alone, because nothing else of them is read."""
    sizes = dict(hidden_size=4096, num_hidden_layers=n_layer, num_attention_heads=32, num_key_value_heads=8)
    Path(folder, "config.json").write_text(json.dumps(dict(model_type="llama", **sizes)))
    weights = {}
    for i in range(n_layer):
        for name, n_rows in ("q", 4096), ("k", 1024):
            weights[f"model.layers.{i}.self_attn.{name}_proj.weight"] = torch.randn(n_rows, 4096).bfloat16()
    save_file(weights, Path(folder, "model.safetensors"))


def plain_scores(q, k):
    """
    The two scores as people compute them by hand, in the authors' notebooks or from the weights that TransformerLens
    gives: form M in float32, add its transpose, take norms. q and k are weights of two Linear layers, (r, C) each.
    """
    m = q.float().T @ k.float()  # (C, C)
    symmetric, skew = (m + m.T) / 2, (m - m.T) / 2
    s = (symmetric.norm() ** 2 - skew.norm() ** 2) / m.norm() ** 2
    rows, columns = m.norm(dim=1), m.norm(dim=0)
    r = (rows - rows.mean() - 2 * rows.std()).clamp_min(0).sum()
    c = (columns - columns.mean() - 2 * columns.std()).clamp_min(0).sum()
    return float(s), float((r - c) / (r + c))


def plain_model(folder, per_head, device):
    """The scores of all layers that make_llama has written, or of all heads."""
    weights = load_file(Path(folder, "model.safetensors"), device)
    found = []
    for i in range(len(weights) // 2):
        q, k = (weights[f"model.layers.{i}.self_attn.{name}_proj.weight"] for name in "qk")
        k = k.unflatten(0, (-1, HEAD_DIM)).repeat_interleave(4, 0).flatten(0, 1)  # a key head for each of four queries
        pairs = zip(q.split(HEAD_DIM), k.split(HEAD_DIM)) if per_head else [(q, k)]
        found += [plain_scores(*pair) for pair in pairs]
    return found


# ---- bare products -----------------------------------------------------------------------------------------------


class Products(TorchDispatchMode):
    """Notes the matrix products and attentions of a block of code, with their arguments, to compute them again."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.outputs = {}  # one for all products of the same size: new memory takes time, and is no product

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if "scaled_dot_product" in func.__name__:
            self.calls.append(partial(func, *args, **(kwargs or {})))
        elif "mm" in func.__name__:  # mm, addmm, bmm
            out = self.outputs.setdefault((found.shape, found.dtype), torch.empty_like(found))
            self.calls.append(partial(func.overloadpacket, *args, out=out))
        return found

    @torch.no_grad()
    def repeat(self):
        for call in self.calls:
            call()


def products_of(step):
    """Returns a function that computes the products of a step, forward and backward, and nothing else."""
    with Products() as products:
        step()
    return products.repeat


def count_operations(step):
    """Returns how many additions and multiplications the products of a step are."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # it counts no other of a CPU
        step()
    return counter.get_total_flops()


def products_of_wqk(n, r, device):
    """Returns a function that computes n W_qk of LLaMA-3-8B's size and of rank r in float32, and nothing else."""
    w_q, w_k = torch.randn(2, 4096, r, device=device)
    return lambda: [w_q @ w_k.T for _ in range(n)]
