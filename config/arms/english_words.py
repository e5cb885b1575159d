"""
English as words: the text of config/arms/english_long.py as gpt2's tokens, for 2,000 steps, at the learning rate of
words. Does scale help there, and does W_k = W_q?

    python data/text/prepare.py FILE... --tokenizer=gpt2
    python -m config config/arms/english_words.py | xargs -r -P 2 -L 1 python train.py
"""
base = "config/small.py"
seeds = [1, 2, 3, 4, 5, 6, 7]

_big = (3 * 128) ** -0.5  # the published scale, 1 / sqrt(3 C)
_words = dict(data_dir="data/text/gpt2", max_iters=2000, eval_interval=50)
arms = {
    "random_english_words": dict(_words),
    "random_qkv_english_words": dict(_words, qk_std=_big, v_std=_big),
    "symmetric_english_words": dict(_words, init="symmetric"),
}
