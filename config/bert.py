"""The paper's 12-layer encoder (BERT, Table S1) and its recipe (S2.3). It needs 25.9 GB on an H200."""
from config.bert_mini import *

n_layer = 12
n_head = 12
n_embd = 768
