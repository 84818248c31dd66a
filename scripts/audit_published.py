"""Recompute what can be recomputed of the published numbers, and print what does not fit, with the reason.

  python scripts/audit_published.py                (numbers, marks, claims and parameter counts: minutes)
  python scripts/audit_published.py --no-params    (without the parameter counts, which need torch: a second)

Stars cannot be audited: they rest on five runs each, of which one is printed.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dypam.config import ConfigError
from eval.published import audit, claims
from scripts import command


def main(params: bool) -> None:
    """Print the report."""
    for line in audit.report([*audit.checks(), claims.claims()]):
        print(line)
    if params:
        from scripts import params as counts

        print("\nParam(%), counted on the meta device:", flush=True)
        counts.audit()


if __name__ == "__main__":
    with command.exit_codes():
        given = sys.argv[1:]
        if {"-h", "--help"} & set(given):
            print(__doc__)
        elif unknown := [argument for argument in given if argument != "--no-params"]:
            raise ConfigError(
                f"{unknown[0]} is no argument of audit_published.py; it has --no-params and --help."
            )
        else:
            main("--no-params" not in given)
