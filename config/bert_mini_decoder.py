"""config/bert_mini.py with a causal mask, predicting the next token: the paper's decoder."""
from config.bert_mini import *

causal = True
