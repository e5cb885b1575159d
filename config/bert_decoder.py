"""config/bert.py with a causal mask, predicting the next token: a decoder."""
from config.bert import *

causal = True
micro_batch_size = 64  # it has logits for every token, which are 6.6 GB in float32
