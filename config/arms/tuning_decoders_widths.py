"""
The learning rate of decoders of 64 and of 256 dimensions, at either scale of q, k and v: one run each, of a seed that
no comparison uses. config/arms/tuning_decoders.py has those of 128.

    python -m config config/arms/tuning_decoders_widths.py | xargs -r -P 2 -L 1 python train.py
"""
base = "config/small.py"
seeds = [101]


def _decoder(width, std):
    """A decoder with heads of 64; std: of q, k and v. float32, because a CPU without AVX-512 emulates bfloat16."""
    return dict(causal=True, max_iters=500, n_embd=width, n_head=width // 64, qk_std=std, v_std=std, dtype="float32")


_more = {64: [1.6e-2], 256: [1e-3]}  # added when 8e-3 was the best of three at 64, and 2e-3 at 256
arms = {}
for _width in 64, 256:
    for _start, _std in ("bert", 0.02), ("random", (3 * _width) ** -0.5):
        for _rate in [2e-3, 4e-3, 8e-3] + _more[_width]:
            arms[f"{_start}_{_width}_decoder_{_rate:g}"] = dict(
                _decoder(_width, _std), learning_rate=_rate, eval_interval=50)
