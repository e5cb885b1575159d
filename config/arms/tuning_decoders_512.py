"""
The learning rate of config/arms/decoders_512.py: three for each scale, one run each, of a seed that no comparison uses.

    python -m config config/arms/tuning_decoders_512.py | xargs -r -P 2 -L 1 python train.py
"""
base = "config/small.py"
seeds = [101]

_big = (3 * 512) ** -0.5  # 1 / sqrt(3 C), a scale C std^2 of 1/3; BERT's 0.02 is 0.205 here
_bert = dict(causal=True, max_iters=500, n_embd=512, n_head=8)  # heads of 64, as everywhere
_random = dict(_bert, qk_std=_big, v_std=_big)
arms = {}
for _rate in 1e-3, 2e-3, 5e-4:
    arms[f"bert_512_decoder_{_rate:g}"] = dict(_bert, learning_rate=_rate, eval_interval=50)
    arms[f"random_512_decoder_{_rate:g}"] = dict(_random, learning_rate=_rate, eval_interval=50)
