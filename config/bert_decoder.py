"""config/bert.py with a causal mask, predicting the next token: a decoder."""
from config.bert import *

causal = True
