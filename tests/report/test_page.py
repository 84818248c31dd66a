"""The page as a person meets it, in a real headless Chromium (apt-get install chromium chromium-driver)."""

import pytest

from eval.report import write_report
from tests.report import synthetic
from tests.report.browser import Browser

pytestmark = pytest.mark.slow

ROWS = "#results-table tbody tr"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    given = synthetic.suite({"sums": 40, "picks": 30})
    synthetic.write_study(results, given, ["llama-x", "gemma-x"], synthetic.METHODS, [2333, 1000])
    synthetic.write_run(results, given, "llama-x", "vera", 2333, status="failed")
    synthetic.write_study(results, given, ["nano-llama"], ["dypam", "lora"], [2333])
    synthetic.as_published(results)
    synthetic.as_published(results, "nano-llama")
    out = results / "report.html"
    write_report(results, out, workers=1)
    return out


@pytest.fixture(scope="module")
def window():
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(window, page):
    """The page freshly open on the synthetic suite; nothing may be complained of or asked for afterwards."""
    window.size(1300, 900)
    window.scheme("light")
    window.requests()
    window.complaints()
    window.open(page)
    window.choose("#group", "toy|0")
    yield window
    assert window.complaints() == []
    assert {url.partition("#")[0] for url in window.requests()} <= {page.as_uri(), "about:blank", "data:,"}


def column(browser, number):
    return browser.texts(f"{ROWS} td:nth-child({number}), {ROWS} th:nth-child({number})")


def test_opens_on_the_results(browser):
    assert browser.text("h1") == "Results"
    assert len(browser.texts(ROWS)) == 21
    assert "21 rows from 41 runs" in browser.text("#panel [role=status]")


def test_sorts_by_a_click_and_back(browser):
    unsorted = column(browser, 1)
    header = "#results-table thead [data-key=micro]"
    browser.click(header)
    values = [float(text.split()[0]) for text in column(browser, 7) if text != "—"]
    assert values == sorted(values, reverse=True)
    assert column(browser, 7)[-1] == "—"
    assert (
        browser.run("document.querySelector('#results-table thead th:nth-child(7)').ariaSort") == "descending"
    )
    browser.click(header)
    values = [float(text.split()[0]) for text in column(browser, 7) if text != "—"]
    assert values == sorted(values)
    browser.click(header)
    assert column(browser, 1) == unsorted


def test_filters_by_text_and_backbone(browser):
    browser.click("#text")
    browser.press("ora gemma")
    browser.wait(f"document.querySelectorAll('{ROWS}').length === 2")
    assert sorted(column(browser, 1)) == ["LoRA", "adalora"]
    browser.press(*["\ue003"] * 5)
    browser.choose("#backbone", "llama-x")
    browser.wait(f"document.querySelector('{ROWS} td').innerText === 'LLAMA-X'")
    assert column(browser, 2) == ["LLAMA-X"] * 2


def test_a_missing_result_stays_visible(browser):
    browser.click("#text")
    browser.press("vera")
    browser.wait(f"document.querySelectorAll('{ROWS}').length === 1")
    assert browser.texts(f"{ROWS} td")[1:] == ["0/1", *browser.texts(f"{ROWS} td:nth-child(4)"), *["—"] * 4]


def test_means_and_single_seeds(browser):
    assert "±" in column(browser, 7)[0]
    browser.choose("#show", "2333")
    browser.wait(f"!document.querySelector('{ROWS}').innerText.includes('±')")


def test_difference_to_published_numbers_is_beside_real_runs_only(browser):
    browser.choose("#group", "math10k|0")
    browser.wait("document.querySelectorAll('.difference').length === 2")
    value, change = browser.texts(f"{ROWS}:nth-child(1) td:nth-child(5) span")
    assert float(value) - 88.5 == pytest.approx(float(change.replace("−", "-").replace("+", "")), abs=0.011)
    browser.click("#published")
    browser.wait("document.querySelectorAll('.difference').length === 0")
    browser.click("#published")
    browser.choose("#protocol", "strict")
    browser.wait("document.querySelectorAll('.difference').length === 0")


def test_a_rehearsal_is_marked_in_every_view_and_has_no_published_numbers(browser):
    browser.choose("#group", "math10k|1")
    for view in ("results", "runs", "trade", "tasks", "curves", "examples"):
        browser.click(f"#tab-{view}")
        browser.wait("document.querySelector('#panel .badge')")
        assert "REHEARSAL" in browser.text("#rehearsal")
        assert "REHEARSAL" in browser.text("#panel .badge")
        assert browser.run("document.title").startswith("REHEARSAL")
        assert browser.texts(".difference, #published") == []


def test_protocols_are_kept_apart(browser):
    paper = column(browser, 6)
    browser.choose("#protocol", "strict")
    browser.wait(f"document.querySelector('{ROWS} td:nth-child(6)').innerText !== {paper[0]!r}")
    strict = [float(text.split()[0]) for text in column(browser, 6) if text != "—"]
    assert all(s > float(p.split()[0]) for s, p in zip(strict, paper, strict=False))


def test_a_run_opens_with_config_and_provenance_and_closes(browser):
    browser.click("#tab-runs")
    browser.click("#text")
    browser.press("failed")
    browser.wait("document.querySelectorAll('#runs-table tbody tr').length === 1")
    browser.click("#runs-table button.open")
    browser.wait("document.querySelector('#dialog').open")
    assert "made-up failure <b>not bold</b>" in browser.text("#dialog")
    assert browser.texts("#dialog b") == []
    assert "scripts/run.py backbone=llama-x method=vera suite=toy seed=2333" in browser.text("#dialog pre")
    assert {"config", "versions", "attempts"} <= set(browser.texts("#dialog summary"))
    browser.run(
        "[...document.querySelectorAll('#dialog summary')].find(s => s.innerText === 'config').click()"
    )
    assert "train.lr" in browser.text("#dialog")
    assert len(browser.texts("#dialog svg")) == 2
    browser.press("Escape")
    browser.wait("!document.querySelector('#dialog').open")


def test_trade_off_marks_say_what_they_are(browser):
    browser.click("#tab-trade")
    for cost in ("memory", "train_speed", "generate_speed", "params"):
        browser.choose("#cost", cost)
        browser.wait(f"document.querySelector('#cost').value === '{cost}'")
        assert browser.run("document.querySelectorAll('#panel svg [role=img]').length") == 20
    browser.run("document.querySelector('#panel svg [role=img]').focus()")
    assert "% ±" in browser.text(".hint")
    assert "trainable parameters" in browser.text(".hint")


def test_trade_off_front_is_what_nothing_beats(browser):
    browser.click("#tab-trade")
    browser.choose("#backbone", "llama-x")
    browser.wait("document.querySelectorAll('#panel svg [role=img]').length === 10")
    best = browser.run(
        "rowsOf(runs()).map(r => [mean(r.members.map(m => m.params).filter(v => v !== null)),"
        " cellsOf(r.members, 'micro', 'mean').value]).filter(p => p[1] !== null)"
    )
    front = [p for p in best if not any(q[0] <= p[0] and q[1] >= p[1] and q != p for q in best)]
    path = browser.run("document.querySelector('#panel figure path[stroke-dasharray]').getAttribute('d')")
    assert len(path.split("L")) == len(front)


def test_tasks_have_intervals_and_curves_have_lines(browser):
    browser.click("#tab-tasks")
    browser.wait("document.querySelectorAll('#panel figure').length === 4")
    assert "95 % interval" in browser.run("document.querySelector('#panel svg [role=img]').ariaLabel")
    browser.click("#tab-curves")
    browser.wait("document.querySelectorAll('#panel figure').length === 2")
    assert browser.run("document.querySelectorAll('#panel figure path[stroke-width]').length") == 20


def test_examples_show_where_two_methods_differ(browser):
    browser.click("#tab-examples")
    browser.wait("document.querySelector('#gold')")
    marks = browser.texts("#example-list li")
    assert marks
    assert all(("✓✗" in text) or ("✗✓" in text) for text in marks)
    assert "### Instruction:" in browser.text("#prompt")
    shown = browser.text("#example")
    assert shown.count("paper:") == shown.count("strict:") == 2
    assert shown.count("✓") >= 1
    browser.choose("#which", "all")
    browser.wait("document.querySelectorAll('#example-list li').length === 40")
    assert "All 40 examples" in browser.text("#found")
    browser.choose("#test", "picks")
    browser.wait("document.querySelectorAll('#example-list li').length === 30")


def test_everything_by_keyboard(browser):
    browser.run("document.querySelector('#tab-results').focus()")
    browser.press("Right")
    browser.wait("document.querySelector('#runs-table')")
    assert browser.focused() == "tab-runs"
    browser.press("Tab", "Tab", "Enter")
    browser.wait("document.querySelector('#runs-table [aria-sort=ascending]')")
    assert browser.focused() == "Method"
    browser.run("document.querySelector('#runs-table button.open').focus()")
    browser.press("Enter")
    browser.wait("document.querySelector('#dialog').open")
    browser.press("Escape")
    browser.run("document.querySelector('#tab-runs').focus()")
    browser.press("End")
    browser.wait("document.querySelector('#gold')")
    first = browser.text("#prompt")
    browser.press("j")
    browser.wait(f"document.querySelector('#prompt').innerText !== {first!r}")
    browser.press("k")
    browser.wait(f"document.querySelector('#prompt').innerText === {first!r}")
    browser.press("/")
    assert browser.focused() == "text"


def test_every_control_has_a_name_and_focus_is_seen(browser):
    for view in ("results", "runs", "trade", "tasks", "curves", "examples"):
        browser.click(f"#tab-{view}")
        nameless = browser.run(
            "[...document.querySelectorAll('button, select, input')].filter(e => !(e.innerText || e.ariaLabel"
            " || e.closest('label')?.innerText)).map(e => e.outerHTML)"
        )
        assert nameless == []
    browser.run("document.querySelector('#text').focus()")
    assert browser.run("getComputedStyle(document.querySelector('#text')).outlineStyle") == "solid"


def contrast(one, other):
    """WCAG contrast of two `rgb(…)` colours."""

    def luminance(colour):
        channels = [int(v) / 255 for v in colour[4:-1].split(",")]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in channels]
        return sum(weight * v for weight, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_light_and_dark_follow_the_system_and_can_be_read(browser, scheme, dark):
    browser.scheme(scheme)
    background = browser.run(BACKGROUND)
    assert (background == "rgb(20, 23, 26)") is dark
    for name in ("fg", "muted", "good", "bad", "accent", *(f"s{i}" for i in range(7))):
        browser.run(f"document.querySelector('h1').style.color = 'var(--{name})'")
        colour = browser.run("getComputedStyle(document.querySelector('h1')).color")
        assert contrast(colour, background) >= (3 if name[1:].isdigit() else 4.5), name


def test_the_button_overrides_the_system(browser):
    browser.click("#theme")
    browser.click("#theme")
    assert browser.text("#theme") == "Colours: dark"
    assert browser.run(BACKGROUND) == "rgb(20, 23, 26)"
    browser.click("#theme")
    assert browser.run(BACKGROUND) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_needs_no_sideways_scrolling(browser, width):
    browser.size(width, 844, phone=True)
    for view in ("results", "runs", "trade", "tasks", "curves", "examples"):
        browser.click(f"#tab-{view}")
        browser.wait("document.querySelector('#panel')")
        assert browser.run("document.documentElement.scrollWidth") <= width, view


def test_an_old_browser_gets_a_sentence(window, page):
    hide = "delete window.DecompressionStream;"
    script = window.devtools("Page.addScriptToEvaluateOnNewDocument", source=hide)["identifier"]
    try:
        window._post(f"{window.session}/url", {"url": page.as_uri()})
        window.wait("document.querySelector('[role=alert]')")
        assert "cannot unpack" in window.text("[role=alert]")
    finally:
        window.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


def test_opens_fast_with_a_thousand_runs(window, tmp_path):
    given = synthetic.suite({"sums": 8, "picks": 8})
    backbones = [f"backbone-{i}" for i in range(20)]
    synthetic.write_study(tmp_path, given, backbones, synthetic.METHODS, synthetic.SEEDS)
    out = tmp_path / "report.html"
    assert write_report(tmp_path, out, workers=2)["runs"] == 1000
    assert min(window.open(out) for _ in range(2)) < 3  # the machine may be busy once
    assert len(window.texts(ROWS)) == 200
    assert window.open(out, "runs") < 3
    assert len(window.texts("#runs-table tbody tr")) == 1000


def test_a_hundred_thousand_predictions_stay_below_50_mb_and_more_are_sampled(window, tmp_path):
    given = synthetic.suite({"sums": 5_500, "picks": 5_500})
    for seed in range(10):
        synthetic.write_run(tmp_path, given, "llama-x", "dypam", seed, words=60)
    out = tmp_path / "report.html"
    done = write_report(tmp_path, out, workers=2)
    assert done["predictions"] == 110_000
    assert done["shown"] == 100_000
    assert 5_000_000 < done["bytes"] < 50_000_000
    assert min(window.open(out) for _ in range(2)) < 3  # the machine may be busy once
    window.click("#tab-examples")
    window.wait("document.querySelector('#sampled')")
    assert "5,000 of the test set’s 5,500 examples" in window.text("#sampled")
