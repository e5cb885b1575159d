"""
Step 4: what makes W_qk symmetric? Predict first, then train (a few minutes each, on two cores).

    encoder           python train.py config/tiny.py
    decoder           python train.py config/tiny_decoder.py
    masked decoder    python train.py config/tiny_decoder.py --objective=masked --out_dir=out/tiny_masked
    rotary encoder    python train.py config/tiny.py --positions=rotary --out_dir=out/tiny_rotary

A decoder sees no later token. The masked decoder fills in masks, as the encoder does, but sees only what comes before.
With rotary positions attention turns queries and keys by their place, so x and W_qk know nothing of it.
"""

RUNS = {"encoder": "out/tiny", "decoder": "out/tiny_decoder", "masked decoder": "out/tiny_masked",
        "rotary encoder": "out/tiny_rotary"}


def predictions():
    """-> {a name of RUNS: (symmetry, directionality)} at the end of training, as medians over both layers."""
    return None
