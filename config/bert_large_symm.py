"""config/bert_large.py with the published symmetric start, which config/tiny_symm.py explains."""
from config.bert_large import *

init = "symmetric"
qk_std = v_std = "linear"
