"""`--help` of the scripts: their own text, the choices of every group, all single values with defaults."""

from __future__ import annotations

import textwrap
from typing import Any

from scripts.configs import CONFIGS
from scripts.override import choices, groups


def help_text(doc: str) -> str:
    """Return a script's help: its own text, the choices of every group, all single values with defaults."""
    lines = [doc.strip(), "", "Choices (each one file, configs/GROUP/NAME.yaml):"]
    for group in groups():
        if group != "testset":
            lines.append(
                textwrap.fill(" | ".join(choices(group)), 100, initial_indent=f"  {group}=", **_WRAP)
            )
    lines += ["", "Single values and their defaults:"]
    for group in ("train", "decode"):
        lines += _values((CONFIGS / group / "default.yaml").read_text(), f"{group}.")
    body = (CONFIGS / "config.yaml").read_text().partition("\nseed:")[2].partition("\n# Hydra")[0]
    lines += _values("seed:" + body, "")
    lines += ["", "Exit codes: 0 done, 1 failed, 2 wrong input, 3 another worker has the run."]
    return "\n".join(
        [*lines, "Hydra's flags: -m (a grid of runs), --cfg job (print the configuration), --info."]
    )


_WRAP: dict[str, Any] = {"subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False}


def _values(text: str, prefix: str) -> list[str]:
    """Return the lines `key=value   # comment` of a YAML file of plain values, at most two levels deep."""
    lines, section = [], prefix
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if not line.strip() or line.startswith("#"):
            continue
        if not value.strip():
            section = f"{key}."
        else:
            section = section if line.startswith(" ") else prefix
            lines.append(f"  {section}{key.strip()}={value.strip()}")
    return lines
