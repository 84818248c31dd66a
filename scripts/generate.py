"""Generate the responses of a trained run to every test set: the second stage of run.py alone.

  python scripts/generate.py backbone=gemma3-270m method=dypam suite=minimath seed=2333

One line of predictions/TESTSET.jsonl per example; rows that are there are not generated again.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import command, stages

if __name__ == "__main__":
    command.main(stages.generate, __doc__, stages.is_generated)
