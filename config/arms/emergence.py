"""
What makes W_qk symmetric: seeing both sides, or filling in masks? These arms change one of the two at a time.

    python -m config.arms emergence | xargs -r -P 2 -L 1 python train.py
"""
base = "config/tiny.py"
seeds = [1, 2, 3, 4, 5]

arms = {
    "encoder": dict(),
    "decoder": dict(causal=True),
    "decoder_masked": dict(causal=True, objective="masked"),  # as the authors trained theirs
}
