"""
Decoders of 512 dimensions: does a larger scale than BERT's 0.02 still help where the two are nearly the same? At 1e-3,
which config/arms/tuning_decoders_512.py found to be the best for each.

    python -m config config/arms/decoders_512.py | xargs -r -P 2 -L 1 python train.py
"""
from config.arms import tuning_decoders_512

base = tuning_decoders_512.base
seeds = [1, 2, 3, 4, 5, 6, 7]

arms = {
    "bert_512_decoder": dict(tuning_decoders_512.arms["bert_512_decoder_0.001"], eval_interval=25),
    "random_512_decoder": dict(tuning_decoders_512.arms["random_512_decoder_0.001"], eval_interval=25),
}
