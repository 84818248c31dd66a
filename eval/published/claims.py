"""What the papers say in words, held against their own tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from eval.aggregate import micro
from eval.published.audit import CHAPTER, RANKED, Check, correct, place, read, tasks
from eval.published.numbers import published_sizes

SCALES = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b")


def claims() -> Check:
    """Check every claim of the prose that the published numbers can decide."""
    check = Check("Claims in the text, against the tables")
    every: tuple[Callable[[], Iterator[tuple[bool, str, str, str]]], ...] = (
        _scaling,
        _best_everywhere,
        _every_task,
        _parameters,
        _inference,
        _same_numbers,
        _chapter,
    )
    for group in every:
        for fits, where, what, reason in group():
            check.add(fits, where, what, reason)
    return check


def gaps() -> list[float]:
    """Return by how many points DyPAM leads the best baseline at each size of Table 2."""
    rows = {row["method"]: row for row in read("table2_scaling_math_macro")}
    ours = rows.pop("dypam")
    return [round(float(ours[s]) - max(float(row[s]) for row in rows.values()), 2) for s in SCALES]


def _scaling() -> Iterator[tuple[bool, str, str, str]]:
    found = gaps()
    shown = ", ".join(f"{gap:.2f}" for gap in found)
    grows = sorted(found) == found
    yield grows, "Section 4.3", "the difference becomes larger as the backbone grows", f"it is {shown} points"
    yield min(found) > 0, "Section 4.3", "DyPAM is better than the strongest baseline at each scale", shown
    quoted = (found[0], found[-1]) == (0.17, 1.91)
    yield quoted, "thesis, scaling", "0.17 points above OFT at 0.6B, 1.91 above RoSA at 8B", shown


def _best_everywhere() -> Iterator[tuple[bool, str, str, str]]:
    for table, name in RANKED.items():
        rows = read(name)
        for backbone in dict.fromkeys(row["backbone"] for row in rows):
            for average in ("micro_avg", "macro_avg"):
                values = {row["method"]: float(row[average]) for row in rows if row["backbone"] == backbone}
                ours, best = values.pop("dypam"), max(values, key=lambda name: values[name])
                shown = f"{ours} against {values[best]} of {best}"
                yield ours > values[best], f"{table}, {backbone}", f"DyPAM has the best {average}", shown


def _every_task() -> Iterator[tuple[bool, str, str, str]]:
    """Section 4.2: "consistently outperforms existing PEFT baselines", read task by task."""
    for table, name in RANKED.items():
        rows, lost, total = read(name), [], 0
        for ours in (row for row in rows if row["method"] == "dypam"):
            others = [r for r in rows if r["backbone"] == ours["backbone"] and r["method"] != "dypam"]
            for task, value in tasks(ours).items():
                total += 1
                best = max(others, key=lambda row: tasks(row)[task])
                if tasks(best)[task] > value:
                    lost.append(f"{ours['backbone']} {task} ({best['method']})")
        reason = f"a baseline is above it in {len(lost)} of {total} cells: {', '.join(lost)}"
        yield not lost, f"Section 4.2, {table}", "DyPAM consistently outperforms the baselines", reason


def _parameters() -> Iterator[tuple[bool, str, str, str]]:
    """Section 4.1: parameters of comparable scale, the extremely small methods (IA3, LN-Tuning) excepted."""
    rows = [row for row in read("table1_math") if row["method"] not in ("ia3", "ln_tuning")]
    for ours in (row for row in rows if row["method"] == "dypam"):
        same = [row for row in rows if row["backbone"] == ours["backbone"]]
        ratios = {row["method"]: float(row["param_pct"]) / float(ours["param_pct"]) for row in same}
        far = [f"{method} {ratio:.1f} times" for method, ratio in ratios.items() if not 0.5 <= ratio <= 2]
        reason = f"of DyPAM's count, more than a factor of two away: {', '.join(far)}"
        yield not far, f"Section 4.1, {ours['backbone']}", "baselines of a comparable scale", reason


def _inference() -> Iterator[tuple[bool, str, str, str]]:
    rows = {row["method"]: row for row in read("table7_inference_overhead")}

    def value(method: str, column: str) -> float:
        return float(rows[method][column])

    one = [value(method, "bs1_ms_per_token") for method in ("dypam", "lora", "base")]
    many = [value(method, "bs32_ms_per_token") for method in ("dypam", "lora", "base")]
    faster = 100 * (1 - one[0] / one[1])
    yield (
        9 <= faster <= 11,
        "Appendix E",
        "about 10 % faster than LoRA at batch 1",
        f"{faster:.1f} % less time",
    )
    apart = 100 * abs(many[0] / many[1] - 1)
    yield apart < 5, "Appendix E", "comparable with LoRA at batch 32", f"{apart:.1f} % apart"
    added = [value(method, "flops_overhead_pct") for method in ("dypam", "lora")]
    yield added[0] < added[1], "Appendix E", "fewer FLOPs than unmerged LoRA", f"{added[0]} and {added[1]} %"
    memory = 100 * (value("dypam", "memory_gb") / value("base", "memory_gb") - 1)
    yield memory <= 1.01, "Appendix E", "negligible memory overhead", f"{memory:.1f} %"
    slower = f"{one[0] / one[2]:.2f} and {many[0] / many[2]:.2f} times the base's time at batch 1 and 32"
    kept = max(one[0] / one[2], many[0] / many[2]) < 1.5
    yield kept, "Appendix E", "the overhead remains controlled", f"1.03 % of FLOPs, but {slower}"


def _same_numbers() -> Iterator[tuple[bool, str, str, str]]:
    """Numbers that two tables print must be the same."""
    macro = {row["method"]: row["macro_avg"] for row in read("table1_math") if row["backbone"] == "qwen3-8b"}
    for row in read("table2_scaling_math_macro"):
        same = row["qwen3-8b"] == macro[row["method"]]
        yield same, f"Table 2, {row['method']}", row["qwen3-8b"], f"Table 1 has {macro[row['method']]}"
    average = {r["method"]: r["micro_avg"] for r in read("rosa_commonsense") if r["backbone"] == "qwen2.5-7b"}
    for row in read("rosa_scaling_commonsense"):
        same = row["qwen2.5-7b"] == average[row["method"]]
        yield (
            same,
            f"RoSA scaling, {row['method']}",
            row["qwen2.5-7b"],
            f"its table has {average[row['method']]}",
        )
    math, common = ({place("", r): r["param_pct"] for r in read(CHAPTER[t])} for t in CHAPTER)
    for where, printed in math.items():
        yield printed == common[where], f"RoSA math{where}", printed, f"commonsense has {common[where]}"


def _chapter() -> Iterator[tuple[bool, str, str, str]]:
    ablation = {row["variant"]: float(row["micro_avg"]) for row in read("rosa_ablation_commonsense_micro")}
    drops = [round(ablation["rosa"] - ablation[name], 1) for name in ("rosa_roae_only", "rosa_r_low_0.5")]
    yield drops == [1.1, 0.3], "RoSA ablation", "1.1 without DLS, 0.3 with twice the dimensions", f"{drops}"
    rows = read("rosa_commonsense")
    for backbone in dict.fromkeys(row["backbone"] for row in rows):
        values = {row["method"]: float(row["micro_avg"]) for row in rows if row["backbone"] == backbone}
        best = max(values, key=lambda name: values[name])
        yield best == "rosa", f"RoSA commonsense, {backbone}", "RoSA has the best average", f"it is {best}"
    n_of = published_sizes()
    (rosa,) = (row for row in read("rosa_math") if row["method"] == "rosa")
    counts = [
        (correct(value + Fraction(1, 20), n_of[task]), n_of[task]) for task, value in tasks(rosa).items()
    ]
    found = micro(counts)
    yield abs(found - 80.1) < 0.1, "RoSA math", "a micro average of 80.1 %", f"its cells give {found:.2f} %"
