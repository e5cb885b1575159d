"""One thread for every test and what it starts: tensors are tiny, and a second thread only waits for its core."""

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

# A process that ignores a signal, as under nohup, has children that ignore it too; tests send these to children.
for signum in signal.SIGHUP, signal.SIGINT:
    if signal.getsignal(signum) == signal.SIG_IGN:
        signal.signal(signum, signal.SIG_DFL)
