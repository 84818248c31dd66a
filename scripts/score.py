"""Score the predictions of a run: the third stage of run.py alone; files only, no model.

  python scripts/score.py backbone=gemma3-270m method=dypam suite=minimath seed=2333

Writes scores.json with both protocols: paper (as LLM-Adapters extracts answers) and strict.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import command, stages

if __name__ == "__main__":
    command.main(stages.score, __doc__)
