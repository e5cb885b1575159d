"""
Does W_k = W_q help more with fewer heads, as likeness says? q, k and v at BERT's 0.02, where only the number of heads
changes. The logit of a token with a copy of itself is sqrt(D) C std^2: 0.58 with one head of D = 128, 0.20 with eight.

    python -m config config/arms/heads.py | xargs -r -P 2 -L 1 python train.py

With two heads of 64 these are "random" and "symmetric" of config/arms/starts.py.
"""
base = "config/small.py"
seeds = [1, 2, 3, 4, 5, 6, 7]

arms = {
    "random_1_head": dict(n_head=1),
    "symmetric_1_head": dict(n_head=1, init="symmetric"),
    "random_8_heads": dict(n_head=8),
    "symmetric_8_heads": dict(n_head=8, init="symmetric"),
}
