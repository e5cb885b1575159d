"""config/bert_mini.py with the published symmetric start, which config/tiny_symm.py explains."""
from config.bert_mini import *

init = "symmetric"
qk_std = v_std = "linear"
