"""config/bert.py with a causal mask, predicting the next token: the paper's decoder."""
from config.bert import *

causal = True
