"""The 24-layer encoder of the authors' project page. Its code has BERT-large's sizes; the recipe is that of bert.py."""
from config.bert import *

n_layer = 24
n_head = 16
n_embd = 1024
