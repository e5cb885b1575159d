"""
What config/arms/starts.py and config/arms/parts.py ask of two layers, in four of 256 dimensions: does a token have to
attend to itself? Does the scale of v help by itself? And do starts differ with QK-norm, which removes their scale?

    python -m config config/arms/deep_parts.py | xargs -r -P 2 -L 1 python train.py

"bert_deep" of config/arms/deep.py and "symmetric_bert_deep" of config/arms/deep_starts.py are baselines, with the same seeds.
"""
from config.arms import deep, deep_starts

base = deep.base
seeds = deep.seeds

_self = 64**0.5 * 256 * 0.02**2  # what W_k = W_q at 0.02 adds to the logit of a token with itself: sqrt(D) C std^2
_big = (3 * 256) ** -0.5  # the published scale, 1 / sqrt(3 C)
_norm = dict(deep.arms["random_deep"], qk_norm=True, dtype="float32")  # on a CPU without bfloat16, all three of them
arms = {
    "random_self_bert_deep": dict(deep.arms["bert_deep"], diagonal=_self),
    "symmetric_no_self_bert_deep": dict(deep_starts.arms["symmetric_bert_deep"], diagonal=-_self),
    "random_norm_deep": dict(_norm),
    "symmetric_norm_deep": dict(_norm, init="symmetric"),
    "tilted_norm_deep": dict(_norm, init="tilted"),
    "random_v_bert_deep": dict(deep.arms["bert_deep"], v_std=_big),
}
