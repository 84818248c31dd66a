"""Gather finished runs into a table: print it, and write Markdown, LaTeX, CSV and JSON into results/tables.

  python scripts/table.py experiment=demo
  python scripts/table.py method=base,lora,dypam seed=2333,1000 table.name=mine 'table.show=[seed,mean]'
  python scripts/table.py experiment=demo --pdf        (a PDF too; needs pdflatex)

Runs are named as for run.py -m, with the same overrides; those that are missing, or were run with another
configuration, stay visibly missing.  Files only, no model.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dypam.config import ConfigError
from eval import tables
from eval.aggregate import Grid, Source, collect
from eval.layout import Layout
from scripts import command, compose


def draw(overrides: list[str], pdf: bool) -> list[Path]:
    """Print and write the table of the grid that `overrides` mean; return the files written."""
    if not compose.experiment(overrides)["runs"]:
        raise ConfigError("This experiment has no runs to tabulate; scripts/reproduce.py draws what it has.")
    jobs = compose.grid(overrides)
    configs = [compose.run_config(job) for job in jobs]
    results = Path(configs[0].results)
    collection = collect(Grid.of(configs), results, Source.of(configs[0].runtime))
    labels = {c.backbone.name: c.backbone.label for c in configs}
    labels |= {str(c.method["name"]): str(c.method.get("label") or c.method["name"]) for c in configs}
    layout = Layout.from_config(compose.table(jobs[0]))
    table = tables.build(collection, layout, configs[0].suite.tests, labels)
    return command.show_table(table, results / "tables", pdf=pdf)


if __name__ == "__main__":
    command.drawing(draw, str(__doc__))
