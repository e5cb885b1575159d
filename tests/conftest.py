"""One thread for every test and what it starts: tensors are tiny, and a second thread only waits for its core."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
