"""Start two processes that compute together on CPU, by torchrun."""

import os
import subprocess
import sys
from pathlib import Path


ROOT = Path(__file__).parents[2]
PROCESSES = 2
SECONDS = 300


def torchrun(module, *arguments):
    """What a module writes to stderr as two processes; the rendezvous takes a free port by itself."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={PROCESSES}"]
    result = subprocess.run(
        [sys.executable, *launch, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert result.returncode == 0, result.stderr[-10_000:]
    return result.stderr
