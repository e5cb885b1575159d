"""
Does what small encoders do hold at the size of the paper's BERT-mini? Four layers of 256 dimensions, 512 tokens in a
sequence, dropout 0.1, gpt2's tokens; half of the paper's batch, a fiftieth of its updates, and a larger rate.

    python data/sympy/prepare.py --tokenizer=gpt2
    python -m config.plan size --run --jobs=5
    python -m data.runs out/plans/size/* --csv size.csv

What we predict, with one seed each, so without a test: at the end `learned` has a median symmetry above 0.3 over its
layers, and its first layer is the least symmetric; `learned_causal` is below 0.1, as are rotary and untied positions
below 0.15, whose own matrix is above 0.5. `symmetric` has a lower loss than `learned` after half of the updates, and
both are within 0.1 nats at the end. `rotary` has a lower loss than `learned` at the end.

What would refute it: symmetry of rotary or untied positions within 0.1 of that of learned ones.

This plan was written and kept elsewhere before the runs, which this history cannot show. Runs were stopped by time, so
arms are compared at 2,800 updates, the last step that all of them have.
"""
base = "config/bert_mini.py"
seeds = [101]
minutes = 20  # on one H200

_shared = dict(data_dir="data/sympy/gpt2", batch_size=128, micro_batch_size=128, max_iters=4000, learning_rate=7e-4,
               score_interval=100, eval_interval=200, eval_iters=2)

arms = {
    "learned": _shared,
    "learned_causal": _shared | dict(objective="masked", causal=True),
    "rotary": _shared | dict(positions="rotary"),
    "untied": _shared | dict(positions="untied"),
    "symmetric": _shared | dict(init="symmetric"),
}
