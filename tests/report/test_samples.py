import base64
import gzip
import json
import re

import pytest

from eval import report
from eval.aggregate import Source
from eval.report import gather, samples, write_report
from scripts import report as script
from tests.report import synthetic


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    given = synthetic.suite({"sums": 30, "picks": 20})
    synthetic.write_study(folder, given, ["llama-x"], ["dypam", "lora"], [2333])
    synthetic.write_run(folder, given, "nano-llama", "dypam", 2333)
    return folder


def chunks(page):
    found = re.findall(rb'<script type="text/plain" id="chunk-([\w-]+)">([^<]*)</script>', page)
    return {name.decode(): json.loads(gzip.decompress(base64.b64decode(text))) for name, text in found}


def written(results, tmp_path, **limits):
    out = tmp_path / "report.html"
    done = write_report(results, out, workers=1, **limits)
    return done, chunks(out.read_bytes())


def test_all_examples_are_shown_where_they_fit(results, tmp_path):
    done, content = written(results, tmp_path)
    assert (done["runs"], done["shown"], done["predictions"]) == (3, 150, 150)
    sheets = content["index"]["examples"]["sheets"]
    assert [(s["test"], s["rehearsal"], len(s["runs"]), s["shown"], s["rows"]) for s in sheets] == [
        ("sums", False, 2, 30, 30),
        ("picks", False, 2, 20, 20),
        ("sums", True, 1, 30, 30),
        ("picks", True, 1, 20, 20),
    ]


def test_an_example_has_prompt_gold_responses_and_both_readings(results, tmp_path):
    _, content = written(results, tmp_path)
    sheet, runs = content["examples-0"], content["index"]["runs"]
    lora = next(i for i, run in enumerate(runs) if run["method"] == "lora")
    path = results / "runs/toy/llama-x/lora/seed2333/predictions/sums.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert sheet["ids"] == [row["id"] for row in rows]
    assert sheet["prompts"] == [row["prompt"] for row in rows]
    assert sheet["gold"][:3] == ["0", "1", "2"]
    shown = sheet["runs"][str(lora)]
    assert shown["responses"] == [row["response"] for row in rows]
    for k, row in enumerate(rows):
        said = row["response"].rpartition(" ")[2]
        right = said == sheet["gold"][k]
        assert shown["right"]["strict"][k] == "01"[right]
        if right:
            assert shown["answers"]["strict"][k] == said
    correct = content["index"]["runs"][lora]["cells"]["paper"]["sums"][0]
    assert 100 * shown["right"]["paper"].count("1") / 30 == pytest.approx(correct, abs=1e-3)


def test_beyond_the_limit_the_same_examples_of_every_run_are_sampled(results, tmp_path):
    done, content = written(results, tmp_path, most_predictions=60)
    assert done["shown"] <= 60
    assert done["predictions"] == 150
    sheets = content["index"]["examples"]["sheets"]
    assert [(sheet["shown"], sheet["rows"]) for sheet in sheets] == [(12, 30), (8, 20), (12, 30), (8, 20)]
    for i, sheet in enumerate(sheets):
        one = content[f"examples-{i}"]
        assert len(one["ids"]) == len(one["prompts"]) == sheet["shown"]
        assert all(len(run["responses"]) == sheet["shown"] for run in one["runs"].values())
    assert content["examples-0"]["ids"] == content["examples-2"]["ids"]


def test_bytes_are_limited_too(results, tmp_path):
    whole, _ = written(results, tmp_path)
    done, content = written(results, tmp_path, most_bytes=4000)
    assert 0 < done["shown"] < whole["shown"]
    packed = sum(len(report._pack(v)) for name, v in content.items() if name.startswith("examples"))
    assert packed <= 4000


def test_rows_in_another_order_are_found_by_their_id(tmp_path):
    given = synthetic.suite({"sums": 30})
    run_dir = synthetic.write_run(tmp_path, given, "llama-x", "dypam", 2333)
    path = run_dir / "predictions/sums.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    gathered = gather.gather(tmp_path, Source(), workers=1)
    (sheet,) = samples.sheets(gathered)
    files = Source().files()
    before = samples.read_sheet(gathered, sheet, files, 0.3)
    path.write_text("".join(reversed(lines)))
    assert samples.read_sheet(gathered, sheet, files, 0.3) == before


def test_the_page_is_self_contained_and_the_same_every_time(results, tmp_path):
    written(results, tmp_path)
    page = (tmp_path / "report.html").read_bytes()
    written(results, tmp_path)
    assert (tmp_path / "report.html").read_bytes() == page
    text = re.sub(r'<script type="text/plain".*?</script>', "", page.decode(), flags=re.S)
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", text)
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text
    assert "<!--" not in text.partition("<body>")[2]


def test_no_run_is_refused_in_a_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped, script.command.exit_codes():
        script.main([f"results={tmp_path}"])
    assert stopped.value.code == 2
    assert "holds no run" in capsys.readouterr().err


def test_the_script_writes_the_page_and_says_what_is_in_it(results, capsys):
    script.main([f"results={results}"])
    assert "3 runs, 3 scored, 150 of 150 predictions" in capsys.readouterr().out
    assert (results / "report.html").stat().st_size > 10_000
