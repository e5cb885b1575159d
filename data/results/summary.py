"""
The table and the figure of README.md: what scale gains, what W_k = W_q gains, and what other starts gain.

    python data/results/summary.py                # prints the table, draws data/results/png/summary.png

starts.md has the tables that these lines are from, and what was predicted of each.
"""

import math
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from data.results import compare
from data.results.figures import DECODER, ENCODER, figure, put_titles
from data.results.report_runs import p_text, share, signed

HERE = Path(__file__).parent / "csv"
LEVEL = 2.8  # [nats/token] compare.find_outcomes asks for one; the steps that depend on it are not shown here


class Tests(NamedTuple):
    """Comparisons that were tested together: p is corrected for their number."""

    files: list[str]  # where the runs are
    pairs: list[tuple]  # (arm, its baseline)


class Line(NamedTuple):
    """A line of the table: one of these comparisons."""

    setting: str
    tests: Tests
    arm: str


class Found(NamedTuple):
    """What came of a line."""

    setting: str
    causal: bool
    outcome: compare.Outcome


def against(baseline, files, arms):
    """Tests of several arms against one baseline."""
    return Tests(files.split(), [(arm, baseline) for arm in arms.split()])


# What was tested together, as in starts.md.
START = against("random", "starts", "random_up random_qkv symmetric symmetric_up symmetric_qkv tilted indefinite negative"
                " random_self")
RANDOM_QKV = against("random_qkv", "starts", "symmetric_qkv")
REST = Tests(["starts"], [("mimetic", "random"), ("skew", "random"), ("symmetric_no_self", "symmetric"),
                          ("tilted_qkv", "symmetric_qkv")])
SIGNS = against("random_qkv", "starts", "negative_qkv indefinite_qkv skew_qkv")
BERT_64 = against("bert_64", "tuned", "random_64 symmetric_64 tilted_64")
RANDOM_64 = against("random_64", "tuned", "bert_64 symmetric_64 tilted_64")
BERT_128 = against("random", "tuned starts", "random_128_sharp symmetric_128 tilted_128")
CONFIRM = against("random_128_sharp", "confirm", "symmetric_128")
BERT_256 = against("bert_256", "tuned_wide", "random_256 random_256_sharp symmetric_256 tilted_256")
RANDOM_256 = against("random_256", "tuned_wide", "bert_256 random_256_sharp symmetric_256 tilted_256")
BERT_512 = against("bert_512", "tuned_512", "random_512 symmetric_512")
RANDOM_512 = against("random_512", "tuned_512", "bert_512 symmetric_512")
TENTH_512 = against("random_512_tenth", "tuned_512", "symmetric_512")
BERT_DEEP = against("bert_deep", "deep", "random_deep symmetric_deep")
DEEP_AGAIN = against("random_deep", "deep_again", "symmetric_deep tilted_deep")
DEEP_STARTS = against("bert_deep", "deep deep_starts", "symmetric_bert_deep tilted_bert_deep indefinite_bert_deep")
DEEP_TUNED = against("bert_deep", "deep deep_starts_tuned", "symmetric_bert_deep_0.001 tilted_bert_deep_0.001")
DEEP_TUNED_SCALE = against("random_deep", "deep deep_starts_tuned", "symmetric_bert_deep_0.001 tilted_bert_deep_0.001")
DEEP_LATER = against("bert_deep", "deep deep_starts", "negative_bert_deep skew_bert_deep")
DEEP_SELF = Tests(["deep", "deep_starts", "deep_parts"], [("symmetric_no_self_bert_deep", "symmetric_bert_deep"),
                                                          ("random_self_bert_deep", "bert_deep")])
DEEP_V = against("bert_deep", "deep deep_parts", "random_v_bert_deep")
DEEP_SIGNS = against("random_deep", "deep_again deep_signs", "indefinite_deep negative_deep skew_deep")
QK_NORM = against("random_norm", "parts", "symmetric_norm tilted_norm")
QK_NORM_DEEP = against("random_norm_deep", "deep_parts", "symmetric_norm_deep tilted_norm_deep")
HEADS = Tests(["heads"], [("symmetric_1_head", "random_1_head"), ("symmetric_8_heads", "random_8_heads")])
ENGLISH = Tests(["english_long"], [("random_qkv_english", "random_english"), ("symmetric_english", "random_english"),
                                   ("tilted_english", "random_english"), ("symmetric_qkv_english", "random_qkv_english")])
ENGLISH_LATER = against("random_english", "english_long", "indefinite_english")
ENGLISH_WORDS = against("random_english_words", "english_words", "random_qkv_english_words symmetric_english_words")
WORDS_AGAIN = against("random_words", "words_again", "random_qkv_words")
RANDOM_WORDS = against("random_qkv_words", "words", "random_words symmetric_qkv_words")
BERT_WORDS = against("random_words", "words", "symmetric_words tilted_words")
BERT_DECODERS = against("random", "decoders_again", "random_qkv symmetric_qkv")
RANDOM_DECODERS = against("random_qkv", "decoders_again", "random symmetric_qkv")
DECODERS = Tests(["decoders_again"], [("symmetric", "random"), ("tilted", "random"), ("skew", "random"),
                                      ("tilted_qkv", "random_qkv")])
DECODER_WIDTHS = Tests(["decoders_widths"], [("random_64_decoder", "bert_64_decoder"),
                                             ("random_256_decoder", "bert_256_decoder")])
SYMMETRIC_DECODERS = Tests(["decoders_widths"], [("symmetric_64_decoder", "random_64_decoder"),
                                                 ("symmetric_256_decoder", "random_256_decoder")])
SCALE_512_DECODER = against("bert_512_decoder", "decoders_512", "random_512_decoder")
SCALE_DEEP_DECODER = against("bert_deep_decoder", "decoders_deep", "random_deep_decoder")
SYMMETRIC_DEEP_DECODERS = Tests(["decoders_deep"], [("symmetric_bert_deep_decoder", "bert_deep_decoder"),
                                                    ("symmetric_deep_decoder", "random_deep_decoder")])
TILTED_DEEP_DECODERS = Tests(["decoders_deep"], [("tilted_bert_deep_decoder", "bert_deep_decoder"),
                                                 ("tilted_deep_decoder", "random_deep_decoder")])
SKEW_DECODER = against("random_qkv", "decoders_again", "skew_qkv")

QUESTIONS = {
    "random at a larger scale, against 0.02": [  # of q, k and v; the label has C sigma^2 of q and k
        Line("C = 64, scale 1", BERT_64, "random_64"),
        Line("C = 128, scale 1", BERT_128, "random_128_sharp"),
        Line("C = 128, scale 1/3", START, "random_qkv"),
        Line("C = 256, scale 1/3", BERT_256, "random_256"),
        Line("C = 512, scale 1/3", BERT_512, "random_512"),
        Line("C = 256, 4 layers, scale 1/3", BERT_DEEP, "random_deep"),
        Line("C = 128, words, scale 1/3", WORDS_AGAIN, "random_qkv_words"),
        Line("C = 128, English, scale 1/3", ENGLISH, "random_qkv_english"),
        Line("C = 128, English words, scale 1/3", ENGLISH_WORDS, "random_qkv_english_words"),
        Line("C = 64, decoder, scale 1/3", DECODER_WIDTHS, "random_64_decoder"),
        Line("C = 128, decoder, scale 1/3", BERT_DECODERS, "random_qkv"),
        Line("C = 256, decoder, scale 1/3", DECODER_WIDTHS, "random_256_decoder"),
        Line("C = 512, decoder, scale 1/3", SCALE_512_DECODER, "random_512_decoder"),
        Line("C = 256, 4-layer decoder, scale 1/3", SCALE_DEEP_DECODER, "random_deep_decoder"),
    ],
    "W_k = W_q against random, larger scale": [  # "tuned": scale and learning rate are the best of each
        Line("C = 64, tuned", RANDOM_64, "symmetric_64"),
        Line("C = 128, tuned", CONFIRM, "symmetric_128"),
        Line("C = 128, scale 1/3", RANDOM_QKV, "symmetric_qkv"),
        Line("C = 256, tuned", RANDOM_256, "symmetric_256"),
        Line("C = 512, tuned", RANDOM_512, "symmetric_512"),
        Line("C = 512, scale 0.1", TENTH_512, "symmetric_512"),
        Line("C = 256, 4 layers, scale 1/3", DEEP_AGAIN, "symmetric_deep"),
        Line("C = 128, words, scale 1/3", RANDOM_WORDS, "symmetric_qkv_words"),
        Line("C = 128, English, scale 1/3", ENGLISH, "symmetric_qkv_english"),
        Line("C = 128, QK-norm: no scale", QK_NORM, "symmetric_norm"),
        Line("C = 256, 4 layers, QK-norm: no scale", QK_NORM_DEEP, "symmetric_norm_deep"),
        Line("C = 64, decoder, scale 1/3", SYMMETRIC_DECODERS, "symmetric_64_decoder"),
        Line("C = 128, decoder, scale 1/3", RANDOM_DECODERS, "symmetric_qkv"),
        Line("C = 256, decoder, scale 1/3", SYMMETRIC_DECODERS, "symmetric_256_decoder"),
        Line("C = 256, 4-layer decoder, scale 1/3", SYMMETRIC_DEEP_DECODERS, "symmetric_deep_decoder"),
    ],
    "W_k = W_q against random, both at 0.02": [  # "tuned": the learning rate is the best of each; else it is random's
        Line("C = 128", START, "symmetric"),
        Line("C = 128, one head", HEADS, "symmetric_1_head"),
        Line("C = 128, eight heads", HEADS, "symmetric_8_heads"),
        Line("C = 256, 4 layers", DEEP_STARTS, "symmetric_bert_deep"),
        Line("C = 256, 4 layers, tuned", DEEP_TUNED, "symmetric_bert_deep_0.001"),
        Line("C = 128, words", BERT_WORDS, "symmetric_words"),
        Line("C = 128, English", ENGLISH, "symmetric_english"),
        Line("C = 128, English words", ENGLISH_WORDS, "symmetric_english_words"),
        Line("C = 128, decoder", DECODERS, "symmetric"),
        Line("C = 256, 4-layer decoder", SYMMETRIC_DEEP_DECODERS, "symmetric_bert_deep_decoder"),
    ],
    "other starts against random, 2 layers": [  # at the same scale, here and below; of C = 128
        Line("tilted, 0.02", START, "tilted"),
        Line("C = 256: tilted, tuned", RANDOM_256, "tilted_256"),
        Line("words: tilted, 0.02", BERT_WORDS, "tilted_words"),
        Line("English: tilted, 0.02", ENGLISH, "tilted_english"),
        Line("English: indefinite, 0.02", ENGLISH_LATER, "indefinite_english"),
        Line("mimetic, 0.02", REST, "mimetic"),
        Line("skew, 0.02", REST, "skew"),
        Line("indefinite, 0.02", START, "indefinite"),
        Line("indefinite, scale 1/3", SIGNS, "indefinite_qkv"),
        Line("skew, scale 1/3", SIGNS, "skew_qkv"),
        Line("W_k = -W_q, 0.02", START, "negative"),
        Line("W_k = -W_q, scale 1/3", SIGNS, "negative_qkv"),
        Line("tilted against W_k = W_q, scale 1/3", REST, "tilted_qkv"),
        Line("only self, 0.02", START, "random_self"),
        Line("no self against W_k = W_q, 0.02", REST, "symmetric_no_self"),
    ],
    "other starts against random, 4 layers": [  # of C = 256
        Line("tilted, 0.02", DEEP_STARTS, "tilted_bert_deep"),
        Line("tilted, 0.02, tuned", DEEP_TUNED, "tilted_bert_deep_0.001"),
        Line("tilted, 0.02, against scale 1/3", DEEP_TUNED_SCALE, "tilted_bert_deep_0.001"),
        Line("W_k = W_q, 0.02, against scale 1/3", DEEP_TUNED_SCALE, "symmetric_bert_deep_0.001"),
        Line("indefinite, 0.02", DEEP_STARTS, "indefinite_bert_deep"),
        Line("skew, 0.02", DEEP_LATER, "skew_bert_deep"),
        Line("W_k = -W_q, 0.02", DEEP_LATER, "negative_bert_deep"),
        Line("only self, 0.02", DEEP_SELF, "random_self_bert_deep"),
        Line("no self against W_k = W_q, 0.02", DEEP_SELF, "symmetric_no_self_bert_deep"),
        Line("only v at 1/sqrt(3C), 0.02", DEEP_V, "random_v_bert_deep"),
        Line("tilted, scale 1/3", DEEP_AGAIN, "tilted_deep"),
        Line("tilted, QK-norm: no scale", QK_NORM_DEEP, "tilted_norm_deep"),
        Line("indefinite, scale 1/3", DEEP_SIGNS, "indefinite_deep"),
        Line("skew, scale 1/3", DEEP_SIGNS, "skew_deep"),
        Line("W_k = -W_q, scale 1/3", DEEP_SIGNS, "negative_deep"),
    ],
    "other starts against random, decoder": [
        Line("tilted, 0.02", DECODERS, "tilted"),
        Line("skew, 0.02", DECODERS, "skew"),
        Line("tilted, scale 1/3", DECODERS, "tilted_qkv"),
        Line("skew, scale 1/3", SKEW_DECODER, "skew_qkv"),
        Line("C = 256, 4 layers: tilted, 0.02", TILTED_DEEP_DECODERS, "tilted_bert_deep_decoder"),
        Line("C = 256, 4 layers: tilted, scale 1/3", TILTED_DEEP_DECODERS, "tilted_deep_decoder"),
    ],
}


def find(line):
    """A Line -> Found."""
    arms = compare.pool([HERE / f"{name}.csv" for name in line.tests.files])
    outcomes = {}
    for arm, baseline in line.tests.pairs:
        two = compare.choose(arms, [baseline, arm])
        _, outcomes[arm] = compare.find_outcomes(two, LEVEL, baseline)  # p of this test alone
    corrected = compare.holm([outcome.p_loss for outcome in outcomes.values()])
    p_of = dict(zip(outcomes, corrected))
    causal = arms[line.arm][0].config["causal"]
    return Found(line.setting, causal, outcomes[line.arm]._replace(p_loss=p_of[line.arm]))


def print_table(found):
    """found: {question: a list of Found}"""
    for question, lines in found.items():
        print(f"{question:50} pairs        less [95 of 100]      p    speed-up")
        for line in lines:
            outcome = line.outcome
            low, high = outcome.interval
            less = f"{signed(outcome.difference)} [{signed(low)}, {signed(high)}]"
            print(f"    {line.setting:46} {outcome.n_pairs:5} {less:>23} {p_text(outcome.p_loss):>6}"
                  f" {share(outcome.speed_up):>11}")


def draw(found, path):
    """A panel for each question, and in it a dot with its interval for each line: full if p is below 0.05."""
    n_rows = math.ceil(len(found) / 2)
    with figure(path, [1, 1], rows=n_rows) as axes:
        for axis, lines in zip(axes.flat, found.values()):
            for row, line in enumerate(lines):
                colour = DECODER if line.causal else ENCODER
                fill = "full" if line.outcome.p_loss < 0.05 else "none"
                axis.plot(line.outcome.interval, [row, row], color=colour, lw=1.5)
                axis.plot(line.outcome.difference, row, "o", color=colour, fillstyle=fill, mfcalt="white")
            axis.axvline(0, color="0.8", lw=0.8, zorder=0)
            axis.set(yticks=range(len(lines)), yticklabels=[line.setting for line in lines])
            axis.set(ylim=(len(lines) - 0.5, -0.5), xlabel="loss less the baseline's [nats/token]")
            axis.sharex(axes[0, 0])  # so that sizes can be compared
        axes[0, 0].autoscale(axis="x")
        put_titles(axes.flat, found)


def main():
    found = {}
    for question, lines in QUESTIONS.items():
        found[question] = [find(line) for line in lines]
    print_table(found)
    draw(found, HERE.parent / "png" / "summary.png")


if __name__ == "__main__":
    main()
