"""The paper's 4-layer encoder (BERT-Mini, Table S1) and its recipe (S2.3), which are the defaults."""
data_dir = "data/wikipedia/gpt2"
n_layer = 4
n_head = 4
n_embd = 256
micro_batch_size = 128  # 25.9 GB with the sizes of config/bert.py, and less with these
dtype = "auto"  # theirs was float16; bfloat16 has the same speed, and needs no scaling of the loss
