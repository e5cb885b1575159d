"""
The 24-layer encoder of the authors' project page. Its code has BERT-large's sizes; the recipe is that of bert.py.
It needs about 60 GB. This is an estimate, from the 25.9 GB of bert.py: its activations are 2.7 times as large.
"""
from config.bert import *

n_layer = 24
n_head = 16
n_embd = 1024
