"""Train, generate and score one run, or with -m a grid of runs.

  python scripts/run.py backbone=gemma3-270m method=dypam suite=minimath seed=2333
  python scripts/run.py backbone=llama-3.2-3b method=lora suite=math10k train.epochs=3
  python scripts/run.py -m method=lora,dypam seed=2333,1000,2000   (6 runs, a process each)
  python scripts/run.py -m experiment=demo                         (the grid of an experiment)
  torchrun --nproc_per_node=2 scripts/run.py backbone=qwen3-8b     (2 GPUs; the global batch stays)
  deepspeed --no_local_rank scripts/run.py backbone=qwen3-8b

A run lives in results/runs/SUITE/BACKBONE/METHOD/seedN.  A killed one goes on where it was when the same
command is given again; a finished one is not run again.  Each stage alone: train.py, generate.py, score.py.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import command, stages

if __name__ == "__main__":
    command.main(stages.run, __doc__, stages.is_run)
