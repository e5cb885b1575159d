"""config/bert_large.py with a causal mask, predicting the next token: a decoder."""
from config.bert_large import *

causal = True
