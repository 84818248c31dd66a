"""From experiments to pictures, by the same command as a user's; models are tiny and random."""

import json
from pathlib import Path

import numpy as np
import pytest

from dypam.config import ConfigError
from dypam.files import as_json
from eval.figures import build, style
from eval.figures.activations import Activations
from scripts import compose, figures
from tests.eval import toy
from tests.report import synthetic

ON_GEMMA = ["backbone=gemma3-270m", "suite=minimath"]
SMALL = ("hidden_size=32", "n_layer=2", "n_head=4", "vocab_size=300")
BLOOM = ["backbone=bloom-560m", *(f"backbone.architecture.{size}" for size in SMALL)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Synthetic runs of DyPAM, two ablations, one α, RoSA and LoRA on two seeds."""
    folder = tmp_path_factory.mktemp("results")
    methods = "dypam,dypam/no_dim_mod,dypam/no_norm,dypam/alpha_0_1,rosa,lora"
    for job in compose.grid([*ON_GEMMA, f"results={folder}", f"method={methods}", "seed=2333,1000"]):
        write(compose.run_config(job))
    return folder


def write(config):
    """Write a synthetic run of this very configuration."""
    name = str(config.method["name"])
    results = Path(config.results)
    run_dir = synthetic.write_run(results, config.suite, config.backbone.name, name, config.seed)
    toy.change_record(run_dir, lambda record: record.update(identity=as_json(config.identity())))


def draw(results, *overrides):
    return figures.draw([f"results={results}", *ON_GEMMA, *overrides])


def test_figure_4_from_runs(results, monkeypatch):
    seen = {}
    original = build.curves.ablation_and_sensitivity
    monkeypatch.setattr(build.curves, "ablation_and_sensitivity", _spy(seen, original))
    paths = draw(results, "experiment=figure4", "seed=2333,1000")
    assert [path.name for path in paths] == ["figure4.pdf", "figure4.png"]
    marks, line = seen["args"]
    assert [(p.label, len(p.accuracies)) for p in marks] == [
        ("DyPAM", 2), ("w/o Dim-Mod", 2), ("w/o Head-Bias", 0), ("w/o Layer-Bias", 0), ("w/o Norm", 2),
    ]  # fmt: skip
    assert [(p.label, len(p.accuracies)) for p in line] == [
        ("0.1", 2), ("0.2", 0), ("0.3", 2), ("0.5", 0), ("1.0", 0),
    ]  # fmt: skip
    assert marks[0].accuracies == line[2].accuracies


def _spy(seen, original):
    def call(*args, **options):
        seen.update(args=args, **options)
        return original(*args, **options)

    return call


def test_loss_curves_are_what_is_drawn_without_an_experiment(results):
    names = [path.name for path in draw(results, "method=dypam,lora", "seed=2333,1000")]
    assert names == ["losses-minimath-gemma3-270m.pdf", "losses-minimath-gemma3-270m.png"]


def test_layer_selection_counts_every_choice_of_every_run(results):
    scores = [0.0] * 4
    choices = [{"selected": [0, 1], "scores": scores}, {"selected": [1, 3], "scores": scores}]
    metrics = [{"step": 40, "selections": choices[:1]}, {"step": 50}, {"step": 80, "selections": choices[1:]}]
    assert build.selection_frequency({"metrics": metrics}).tolist() == [0.5, 1.0, 0.0, 0.5]
    assert build.selection_frequency({}) is None
    with pytest.raises(ConfigError, match="none of the 1 runs"):
        draw(results, "experiment=rosa_layers")
    path = results / "runs/minimath/gemma3-270m/rosa/seed2333/record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "metrics": metrics}))
    assert len(draw(results, "experiment=rosa_layers")) == 2


def test_one_backbone_and_suite_where_there_can_be_only_one(results):
    with pytest.raises(ConfigError, match="of one suite, and these runs have minimath, math10k"):
        draw(results, "experiment=figure4", "method=dypam", "seed=1", "suite=minimath,math10k")
    with pytest.raises(ConfigError, match="of one backbone, and the runs have gemma3-270m, qwen3-8b"):
        draw(results, "experiment=figure4", "method=dypam", "seed=1", "backbone=gemma3-270m,qwen3-8b")


def test_runs_of_another_configuration_are_not_drawn(results, capsys):
    with pytest.raises(ConfigError, match=r"another configuration \(train.lr is 0.001 there, 0.5 here"):
        draw(results, "method=dypam", "seed=2333", "train.lr=0.5")
    assert draw(results, "experiment=figure4", "method=dypam", "seed=2333", "train.lr=0.5")
    assert "missing: gemma3-270m/dypam/seed2333:" in capsys.readouterr().err


def test_unfinished_runs_are_refused_with_the_fix(results):
    with pytest.raises(ConfigError, match=r"run them first, with scripts/run\.py"):
        draw(results, "experiment=figure5", "suite=gsm8k-1k")


def test_an_unknown_option_is_refused_in_a_sentence(results):
    with pytest.raises(ConfigError, match="unexpected keyword argument 'shortest'"):
        draw(results, "experiment=figure2", "+figure.draw.shortest=3")


def test_activations_are_collected_once_and_random_weights_say_so(tmp_path):
    given = [f"results={tmp_path}", "experiment=figure1", *BLOOM, "figure.random=[all]"]
    given.append("+figure.draw.parts=[]")
    assert [path.name for path in figures.draw(given)] == [
        f"figure1-bloom-560m-qkv.{k}" for k in ("pdf", "png")
    ]
    (data,) = (tmp_path / "figures/data").iterdir()
    found = Activations.read(data)
    assert found.note == style.RANDOM
    assert found.label == "BLOOM-560M (ALiBi)"
    assert found.arrays["q"].shape == (5, 2, 4, 8)
    before = data.stat().st_mtime_ns
    figures.draw(given)
    assert data.stat().st_mtime_ns == before
    figures.draw([*given, "figure.again=true"])
    assert data.stat().st_mtime_ns > before
    np.testing.assert_array_equal(Activations.read(data).arrays["q"], found.arrays["q"])
    before = data.stat().st_mtime_ns
    figures.draw([*given, "+backbone.revision=other"])  # other weights under the same name
    assert data.stat().st_mtime_ns > before


def test_rehearsals_are_marked():
    run = compose.run_config(["backbone=gemma3-270m", "suite=minimath"])
    assert build.note(run) is None
    run.backbone.name = "nano-llama"
    assert build.note(run) == style.REHEARSAL


@pytest.mark.parametrize("number", [1, 2, 4, 5, 6, 7, 8])
def test_every_figure_of_the_paper_has_a_drawing_that_takes_its_options(number):
    from inspect import signature

    from hydra.utils import get_method

    options = compose.figure([f"experiment=figure{number}"])["draw"]
    signature(get_method(options.pop("_target_"))).bind(None, **options)


def test_a_backbone_that_is_made_is_made_before_it_is_asked(tmp_path):
    given = ["backbone=nano-bloom", "backbone.convert.steps=2", f"runtime.cache_dir={tmp_path / 'cache'}"]
    paths = figures.draw([f"results={tmp_path}", "experiment=figure8", *given])
    assert [path.name for path in paths] == ["figure8.pdf", "figure8.png"]
    assert (tmp_path / "cache/backbones/nano-bloom/model.safetensors").exists()


def test_a_layer_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"figure\.draw\.depth is 10; give a share"):
        figures.draw([f"results={tmp_path}", "experiment=rosa_activations", "figure.draw.depth=10"])
