import numpy as np
import pytest

from eval.figures import curves, modulation, style
from tests.figures.looks import assert_readable, visible_texts

VARIANTS = [
    curves.Point("DyPAM", [68.1, 68.4, 67.9]),
    curves.Point("w/o Dim-Mod", [65.0, 65.2]),
    curves.Point("w/o Layer-Bias", [66.0]),
    curves.Point("w/o Norm", []),
]
SETTINGS = [curves.Point(x, [60 + float(x), 60.5]) for x in ("0.1", "0.2", "0.3", "0.5", "1.0")]


def said(figure):
    return [text.get_text() for text in visible_texts(figure)]


def test_figure_4_is_readable_and_missing_runs_stay_visible():
    figure = curves.ablation_and_sensitivity(VARIANTS, SETTINGS, what="Micro accuracy (%)")
    assert_readable(figure)
    assert "w/o Norm, n=0" in said(figure)
    assert "— no run" in said(figure)


def test_error_bars_are_the_sample_standard_deviation():
    assert VARIANTS[0].sd == pytest.approx(np.std([68.1, 68.4, 67.9], ddof=1))
    assert VARIANTS[2].sd == 0
    figure = curves.ablation(VARIANTS, what="Accuracy (%)")
    low, high = figure.axes[0].containers[0].lines[2][0].get_segments()[0][:, 0]
    assert (low, high) == pytest.approx(
        (VARIANTS[0].mean - VARIANTS[0].sd, VARIANTS[0].mean + VARIANTS[0].sd)
    )


def test_sweep_selection_and_losses_are_readable():
    assert_readable(curves.sweep([*SETTINGS, curves.Point("2.0", [])], what="Accuracy (%)", setting="k"))
    counts = np.random.default_rng(0).uniform(size=(3, 28))
    assert_readable(curves.layer_selection(counts, "Qwen2.5-7B"))
    rows = [{"step": s, "loss": 1 / s, "lr": 0.1} for s in range(1, 30)] + [{"step": 20, "val_loss": 0.5}]
    names = ["DyPAM", "LoRA", "AdaLoRA", "OFT", "Bone", "IA3", "LN-Tuning", "FourierFT", "SHiRA", "RoSA"]
    assert_readable(curves.losses([curves.Curve(name, rows) for name in names], notes=[style.REHEARSAL]))


def test_smoothing_is_unbiased_at_the_start():
    np.testing.assert_allclose(curves.smooth(np.full(5, 3.0)), 3.0)
    assert curves.smooth(np.array([1.0, 0.0]))[0] == 1.0


def _modulations(pairs, note=None):
    rng = np.random.default_rng(0)
    return [
        modulation.Modulation(
            {part: rng.normal(size=(28, 64)) for part in "qk"},
            {part: np.sort(1 + 0.1 * rng.normal(size=(28, 5)), 1)[:, [2, 1, 3, 0, 4]] for part in "qk"},
            {"backbone": backbone, "suite": suite, "note": note},
        )
        for backbone, suite in pairs
    ]


@pytest.mark.parametrize("backbones", [["LLaMA-3.2-3B"], ["LLaMA-3.2-3B", "Qwen3-8B", "Gemma-3-4B"]])
def test_modulation_figures_are_readable(backbones):
    runs = _modulations([(name, suite) for name in backbones for suite in ("Commonsense15K", "Math10K")])
    for figure in (modulation.bias_maps(runs), modulation.bias_maps(runs, "k"), modulation.ranges(runs)):
        assert figure.get_figwidth() == style.COLUMN
        assert_readable(figure)


def test_a_missing_task_leaves_its_panel_empty_and_a_rehearsal_is_marked():
    runs = _modulations([("A", "Math10K"), ("A", "Commonsense15K"), ("B", "Math10K")], note=style.REHEARSAL)
    figure = modulation.ranges(runs)
    assert_readable(figure)
    assert [axes.get_visible() for axes in figure.axes] == [True, True, True, False]
    assert style.REHEARSAL in said(figure)
