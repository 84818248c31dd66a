"""Write the results page: every run under results/runs, in one HTML file that needs no server and no network.

  python scripts/report.py
  python scripts/report.py results=results/comparison runtime.data_mirror=/path/to/LLM-Adapters

Writes results/report.html.  Finished runs are scored first where they have no scores yet.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dypam.config import ConfigError
from eval.aggregate import Source
from eval.report import write_report
from scripts import command, compose


def main(overrides: list[str]) -> None:
    """Write the page and say what is in it."""
    config = compose.compose(overrides)
    results = Path(config.results)
    if not any(results.glob("runs/*/*/*/seed*/record.json")):
        raise ConfigError(
            f"results={results} holds no run: start one with scripts/run.py, or name another folder."
        )
    out = results / "report.html"
    done = write_report(results, out, Source.of(config.runtime))
    shown = f"{done['shown']:,} of {done['predictions']:,} predictions"
    print(f"{out}: {done['runs']} runs, {done['scored']} scored, {shown}, {done['bytes'] / 1e6:.1f} MB")


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__.strip())
    else:
        with command.exit_codes():
            main(sys.argv[1:])
