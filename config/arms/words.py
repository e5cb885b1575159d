"""
Does what was found on bytes hold for words? Bytes repeat often within a block of 64, words seldom, so a start that
compares tokens by likeness has less to find. The same text, as gpt2's tokens:

    python data/stdlib/prepare.py --tokenizer=gpt2
    python -m config config/arms/words.py | xargs -r -P 2 -L 1 python train.py
"""
base = "config/small.py"
seeds = [1, 2, 3, 4, 5, 6, 7]

_big = (3 * 128) ** -0.5  # the published scale, 1 / sqrt(3 C)
_words = dict(data_dir="data/stdlib/gpt2", eval_interval=50)
arms = {
    "random_words": dict(_words),
    "symmetric_words": dict(_words, init="symmetric"),
    "tilted_words": dict(_words, init="tilted"),
    "random_qkv_words": dict(_words, qk_std=_big, v_std=_big),
    "symmetric_qkv_words": dict(_words, init="symmetric", qk_std=_big, v_std=_big),
}
