"""Draw the figure of an experiment: collect what needs a model, once, then write PDF and PNG.

  python scripts/figures.py experiment=figure1
  python scripts/figures.py experiment=figure7 'figure.random=[bloom-560m,opt-350m]'
  python scripts/figures.py method=dypam,lora seed=2333,1000            (loss curves of any runs)

Runs are named as for run.py -m, with the same overrides.  What a model was asked for stays in
results/figures/data until backbone or adapter change; figure.again=true asks anew.  Pictures go to
results/figures, 3.33 or 6.66 inches wide, as the paper's columns.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hydra.utils import get_method

from dypam.config import ConfigError
from eval.figures import style
from eval.figures.build import Request
from scripts import command, compose, stages


def draw(overrides: list[str]) -> list[Path]:
    """Draw the figure that `overrides` mean; return the files written."""
    jobs = compose.grid(overrides)
    figure = compose.figure(jobs[0])
    runs = [compose.run_config(job) for job in jobs]
    request = Request(runs, tuple(figure["random"]), figure["again"], stages.prepare_backbone)
    options: dict[str, Any] = dict(figure["draw"])
    target = options.pop("_target_")
    try:
        pictures = get_method(target)(request, **options)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        raise ConfigError(f"figure.draw: {error}; remove that key.") from error
    out = request.data.parent
    out.mkdir(parents=True, exist_ok=True)
    return [path for name in pictures for path in style.save(pictures[name], out, f"{figure['name']}{name}")]


if __name__ == "__main__":
    with command.exit_codes():
        for path in draw(command.asked(str(__doc__))[1]):
            print(path)
