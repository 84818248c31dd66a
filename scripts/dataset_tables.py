"""Count the data sets of Tables 4 to 6: samples, answer formats, tokens; beside the published numbers.

  python scripts/dataset_tables.py experiment=table5
  python scripts/dataset_tables.py experiment=table4 backbone=qwen3-8b datasets.tokens=text

Table 4's tokens are those of `backbone`'s tokenizer.  Markdown, LaTeX, CSV and JSON go into results/tables;
data sets that cannot be had stay visibly missing.  Files only, no model.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.fetch import DataError
from dypam.config import ConfigError
from dypam.corpus import files_of
from eval import data_statistics
from eval.layout import Layout
from scripts import command, compose, stages


def draw(overrides: list[str], pdf: bool = False) -> list[Path]:
    """Print and write the table of the suites that `overrides` mean; return the files written."""
    jobs = compose.grid(overrides)
    configs = [compose.run_config(job) for job in jobs]
    first, options = configs[0], compose.section(jobs[0], "datasets")
    layout = Layout.from_config(compose.table(jobs[0]))
    suites = list({config.suite.name: config.suite for config in configs}.values())
    files = files_of(first.runtime)

    @cache
    def tokenizer() -> Any:
        from dypam.backbone import load_tokenizer

        stages.prepare_backbone(first)
        return load_tokenizer(first.backbone, first.runtime)

    if options["part"] == "training":
        counted = data_statistics.training_sets(
            suites, files, tokenizer, bos=first.prompt.bos, tokens=options["tokens"]
        )
        columns = data_statistics.TRAINING_COLUMNS
        what = (
            "all that training reads" if options["tokens"] == "training" else "instruction and response alone"
        )
        notes = [
            f"Tokens of {what}, by the tokenizer of {first.backbone.label}; the published one is not named."
        ]
    elif options["part"] == "tests":
        counted = {key: one for s in suites for key, one in data_statistics.test_sets(s, files).items()}
        columns, notes = data_statistics.TEST_COLUMNS, ["The format of answers is read off the data."]
    else:
        raise ConfigError(f"datasets.part is {options['part']!r}; give tests or training.")
    table = data_statistics.table(layout, columns, counted, notes)
    paths = command.show_table(table, Path(first.results) / "tables", pdf=pdf)
    if table.missing:
        raise DataError(f"the table lacks {', '.join(table.missing)}; the reasons are above.")
    return paths


if __name__ == "__main__":
    command.drawing(draw, str(__doc__))
