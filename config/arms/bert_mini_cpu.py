"""The main arms of config/arms/tiny.py in a model with 27 times the parameters: are the results the same?"""
base = "config/bert_mini_cpu.py"
seeds = [1, 2, 3]

_big = (3 * 256) ** -0.5  # 1 / sqrt(3 C)
arms = {
    "random": dict(),
    "symmetric_qkv": dict(init="symmetric", qk_std=_big, v_std=_big),
    "random_qkv": dict(qk_std=_big, v_std=_big),
    "symmetric": dict(init="symmetric"),
    "random_2qkv": dict(qk_std=2 * _big, v_std=_big),
    "decoder": dict(causal=True),
}
