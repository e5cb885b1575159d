"""config/bert_large.py with a causal mask, predicting the next token: the paper's decoder."""
from config.bert_large import *

causal = True
