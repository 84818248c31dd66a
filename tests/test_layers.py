"""The doors of the house: which package may import which, read from the source of every module."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOORS = {
    "data": set(),
    "dypam": {"data"},
    "baselines": {"dypam"},
    "eval": {"data", "dypam"},
    "scripts": {"data", "dypam", "eval"},
}


def imports(path):
    """Return (line, module) of every import in a file, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).with_suffix("").parts[: -node.level] if node.level else ()
            yield node.lineno, ".".join([*package, *filter(None, [node.module])])


def trespasses(package, modules):
    """Return the imports of our own packages that `package` has no door to."""
    own = DOORS.keys() - DOORS[package] - {package} | {"tests"}
    return [(line, name) for line, name in modules if name.split(".")[0] in own]


@pytest.mark.parametrize("package", DOORS)
def test_no_package_imports_past_its_doors(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = {path.name: found for path in files if (found := trespasses(package, imports(path)))}
    assert not wrong


def test_a_trespass_would_be_seen(tmp_path):
    assert trespasses("data", [(3, "dypam.files"), (4, "datasets"), (5, "data.fetch")]) == [
        (3, "dypam.files")
    ]
    assert trespasses("scripts", [(1, "baselines.lora"), (2, "eval.score")]) == [(1, "baselines.lora")]


def test_every_folder_with_python_has_a_door_or_none_of_the_product():
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert found == DOORS.keys() | {"tests"}


def test_dypam_alone_can_be_used_without_the_rest():
    """The wheel holds `dypam` only, so the tuner and what it imports must not reach for `data`."""
    seen, todo = set(), [ROOT / "dypam/tuner/__init__.py"]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for _, name in imports(path):
            assert name.split(".")[0] != "data", f"{path} imports {name}"
            if name.startswith("dypam"):
                todo += _files(name)
    assert len(seen) > 3


def _files(module):
    """Return the files that importing `module` (or the name in it) may load."""
    path = ROOT / Path(*module.split("."))
    found = [path.with_suffix(".py"), path / "__init__.py"]
    inside = sorted(path.glob("*.py")) if module == "dypam.tuner" else []
    return [file for file in [*found, *inside] if file.is_file()]
