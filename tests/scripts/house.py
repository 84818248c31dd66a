"""A copy of the project's own commands with further configuration files, to run in processes of its own."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(folder: Path, files: dict[str, str]) -> Path:
    """Return a folder with scripts, packages and configurations, `files` (path → text) among these."""
    for name in ("scripts", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("baselines", "data", "dypam", "eval", "tests"):
        (folder / name).symlink_to(ROOT / name)
    for name, text in files.items():
        path = folder / "configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def stage(folder: Path, text: str) -> Path:
    """Return a script in `folder`, of a text with places for `root` and `out` (its traces)."""
    (folder / "out").mkdir()
    path = folder / "stage.py"
    path.write_text(text.format(root=str(ROOT), out=str(folder / "out")))
    return path
