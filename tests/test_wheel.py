"""The wheel holds `dypam` alone: a package called `data` or `eval` is never installed on a user."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PARTS = ("dypam", "baselines", "data", "eval", "scripts", "configs", "tests")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy of the tree, as a user would from a clone."""
    tree = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tree / "dist")]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_holds_dypam_and_its_metadata_only(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert tops == {"dypam", f"dypam-{version}.dist-info"}


def test_the_wheel_holds_every_module_of_dypam(wheel):
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "dypam").rglob("*.py")}
    assert modules == {name for name in wheel.namelist() if name.endswith(".py")}


def test_dypam_of_the_wheel_imports_without_the_rest(wheel, tmp_path):
    wheel.extractall(tmp_path)
    code = (
        "import sys, dypam; assert 'torch' not in sys.modules; from dypam import DyPAMConfig; "
        "print(dypam.__file__, DyPAMConfig().peft_type)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # DeepSpeed 0.18 prints a line of its own before
    assert done.stdout.splitlines()[-1].startswith(str(tmp_path))


def pins(lines):
    """Return the exact versions in requirement lines."""
    found = (re.match(r"\s*-?\s*([A-Za-z0-9_.-]+)==([^\s#]+)", line) for line in lines)
    return {match[1].lower().replace("_", "-"): match[2] for match in found if match}


@pytest.mark.parametrize("stack", ["", "-paper"])
def test_the_locks_keep_what_the_sources_pin(stack):
    source = pins((ROOT / f"requirements{stack}.in").read_text().splitlines())
    lock = pins((ROOT / f"requirements{stack}.lock").read_text().splitlines())
    assert source.items() <= lock.items()
    assert all("+" not in version for version in lock.values())
    assert not any(name.startswith(("nvidia", "triton")) for name in lock)


def test_environment_yml_is_the_papers_stack_with_its_own_torch():
    """Appendix B.1: PyTorch 2.7.0 with CUDA 12.8, DeepSpeed 0.18.4, NumPy 2.2.6, PEFT 0.18.1, and so on."""
    whole = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (pip,) = (item["pip"] for item in whole if isinstance(item, dict))
    given = pins(pip)
    assert given.pop("torch") == "2.7.0+cu128"
    assert (given["deepspeed"], given["numpy"]) == ("0.18.4", "2.2.6")
    assert (given["peft"], given["transformers"], given["tokenizers"]) == ("0.18.1", "4.51.0", "0.21.4")
    lock = pins((ROOT / "requirements-paper.lock").read_text().splitlines())
    assert given.items() <= lock.items()
