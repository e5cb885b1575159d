"""A 24-layer encoder, BERT-large of Devlin et al. 2019, by the paper's recipe (S2.3). The paper trained none."""
from config.bert_mini import *

n_layer = 24
n_head = 16
n_embd = 1024
