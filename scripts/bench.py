"""Measure inference (Table 7): ms a token, memory and FLOPs of methods over their bare backbone.

  python scripts/bench.py experiment=table7
  python scripts/bench.py experiment=table7 bench.random=true        (no hub: random weights cost the same)
  python scripts/bench.py experiment=table7 backbone=gemma3-270m bench.rounds=5 bench.new_tokens=16

The methods take turns on one backbone, on a GPU where there is one.  Markdown, LaTeX, CSV and JSON (the last
with every single measurement) go into results/tables.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from eval.layout import Layout
from scripts import command, compose, stages


def draw(overrides: list[str], pdf: bool = False) -> list[Path]:
    """Measure the methods of the grid that `overrides` mean, print and write the table; return its files."""
    jobs = compose.grid(overrides)
    configs = [compose.run_config(job) for job in jobs]
    layout = Layout.from_config(compose.table(jobs[0]))
    given = compose.section(jobs[0], "bench")

    from eval import bench, bench_table

    options = bench.Options.from_config(given)
    if not options.random:
        stages.prepare_backbone(configs[0])
    measured, how = bench.measure(configs, options)
    table = bench_table.table(layout, configs[0].backbone, measured, how, options)
    return command.show_table(table, Path(configs[0].results) / "tables", pdf=pdf)


if __name__ == "__main__":
    command.drawing(draw, str(__doc__))
