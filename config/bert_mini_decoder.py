"""config/bert_mini.py with a causal mask, predicting the next token: a decoder."""
from config.bert_mini import *

causal = True
