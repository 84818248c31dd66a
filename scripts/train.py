"""Train one run, or with -m a grid of runs: the first stage of run.py alone.

  python scripts/train.py backbone=gemma3-270m method=dypam suite=minimath seed=2333
  torchrun --nproc_per_node=2 scripts/train.py backbone=qwen3-8b method=lora suite=math10k

Checkpoints and adapter go to the run's directory; a killed training goes on from its newest whole checkpoint.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import command, stages

if __name__ == "__main__":
    command.main(stages.train, __doc__, stages.is_trained)
