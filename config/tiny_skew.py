"""config/tiny.py with a skew-symmetric start at the usual scale: W_qk of every head begins at symmetry -1."""
from config.tiny import *

init = "skew"
