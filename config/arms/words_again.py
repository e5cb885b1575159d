"""
Two random starts of config/arms/words.py once more with eight fresh seeds: does scale help where tokens are words?

    python -m config config/arms/words_again.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import words

base = words.base
seeds = range(8, 16)

arms = {name: words.arms[name] for name in ("random_words", "random_qkv_words")}
