"""config/tiny.py with a causal mask, predicting the next token: the paper's decoder."""
from config.tiny import *

causal = True
