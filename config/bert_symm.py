"""config/bert.py with the published symmetric start, which config/tiny_symm.py explains."""
from config.bert import *

init = "symmetric"
qk_std = v_std = "linear"
