"""data/export.py: a model that transformers opens, and what is not exported. Every test here needs BERT's block."""

import pytest
import torch
from transformers import BertForMaskedLM, BertLMHeadModel

from config import ConfigError
from data import export
from data.runs.model import open_run
from model import ModelConfig, Transformer
from tests.lives import run
from tests.test_model import CFG, pre_norm

pytestmark = pytest.mark.bert_block


@pytest.mark.parametrize("causal", [False, True])
def test_transformers_opens_our_export_and_computes_the_same(causal, cfg):
    run(cfg, causal=causal, init_std=0.1)  # a start is no other model
    export.main([cfg.out_dir])
    ours, _ = open_run(cfg.out_dir)
    theirs = BertLMHeadModel if causal else BertForMaskedLM
    hf, info = theirs.from_pretrained(f"{cfg.out_dir}/bert", output_loading_info=True)
    assert not any(info.values()), info
    idx = torch.randint(258, (3, 12))  # fewer tokens than there are positions
    out = hf.eval()(idx, output_hidden_states=True)
    torch.testing.assert_close(ours.hidden(idx), out.hidden_states[-1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours(idx), out.logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("switches", [dict(positions="rotary"), {}])
def test_what_computes_something_else_is_not_exported_as_a_bert(switches, monkeypatch):
    if not switches:
        monkeypatch.setattr("model.Block.forward", pre_norm)  # a block of a fork
    with pytest.raises(ConfigError, match="a Hugging Face BERT would compute something else"):
        export.to_bert(Transformer(ModelConfig(**CFG | switches)))


def test_a_fork_without_an_mlp_is_refused_in_one_line(finished, monkeypatch):
    """Its weights have no intermediate size, and its model another number of arguments."""
    model, cfg = open_run(finished.out_dir)
    del model.blocks[0].mlp
    monkeypatch.setattr(export, "open_run", lambda folder: (model, cfg))
    with pytest.raises(SystemExit) as e:
        export.main(["out/fork"])
    assert e.value.code.startswith("error: out/fork is not exported: ") and "\n" not in e.value.code
