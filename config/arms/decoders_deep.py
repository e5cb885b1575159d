"""
Decoders of four layers of 256 dimensions: does scale help, and does W_k = W_q or another start? At the learning rate
that config/arms/tuning_decoders_deep.py found, which is the same for all four starts that it tried.

    python -m config config/arms/decoders_deep.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import tuning_decoders_deep

base = tuning_decoders_deep.base
seeds = [1, 2, 3, 4, 5, 6, 7]

_bert = dict(tuning_decoders_deep.arms["bert_deep_decoder_0.002"], eval_interval=25)  # q, k and v at 0.02
_random = dict(tuning_decoders_deep.arms["random_deep_decoder_0.002"], eval_interval=25)  # at 1 / sqrt(3 C)
arms = {
    "bert_deep_decoder": _bert,
    "random_deep_decoder": _random,
    "symmetric_bert_deep_decoder": dict(_bert, init="symmetric"),
    "symmetric_deep_decoder": dict(_random, init="symmetric"),
    "tilted_bert_deep_decoder": dict(_bert, init="tilted"),
    "tilted_deep_decoder": dict(_random, init="tilted"),
    "skew_bert_deep_decoder": dict(_bert, init="skew"),
    "skew_deep_decoder": dict(_random, init="skew"),
}
