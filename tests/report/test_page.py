"""Figures and the page: deterministic bytes, nothing from outside, text stays text."""

import html
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
from made_up_study import NASTY, build_report, result, study

from grace.metrics import reliability
from grace.report import Traced, merge, summarize
from grace.report.figures import draw
from grace.report.groups import groups
from grace.report.page import render_page


@pytest.fixture(scope="module")
def page(written):
    return (written[0] / "report.html").read_text()


class Tags(HTMLParser):
    """Checks that tags nest, and collects ids and what scripts hold."""

    VOID = ("meta", "br", "link", "img", "input", "hr")

    def __init__(self):
        super().__init__(convert_charrefs=False)
        self.open, self.ids, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def tags(page):
    parser = Tags()
    parser.feed(page)
    assert parser.open == []
    return parser


def test_every_figure_is_written_as_vectors_and_as_an_image(written):
    names = sorted(path.name for path in (written[0] / "figures").iterdir())
    kinds = ("reliability", "targets", "time")
    endings = ("pdf", "png", "svg")
    assert names == [f"{kind}-capitals.{ending}" for kind in kinds for ending in endings]
    for path in (written[0] / "figures").glob("*.svg"):
        ET.fromstring(path.read_text())
    for path in (written[0] / "figures").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_same_input_gives_the_same_bytes(written, tmp_path):
    build_report(study(), tmp_path, resamples=30)
    for path in sorted(p for p in written[0].rglob("*") if p.is_file()):
        assert (tmp_path / path.relative_to(written[0])).read_bytes() == path.read_bytes(), path


def test_the_page_needs_nothing_from_outside(page, tags):
    fetching = [
        (tag, name, value)
        for tag, attrs in tags.tags
        for name, value in attrs.items()
        if name in ("src", "href", "xlink:href", "data", "action", "srcset")
        and not value.startswith(("#", "data:image/png;base64,"))
    ]
    assert fetching == []
    assert not re.search(r"@import|url\((?!#)", page)
    assert [tag for tag, _ in tags.tags].count("script") == 1


def test_ids_are_unique_and_references_find_them(page, tags):
    assert len(set(tags.ids)) == len(tags.ids)
    used = set(re.findall(r"url\(#([^)]+)\)", page)) | set(re.findall(r'href="#([^"]+)"', page))
    used |= set(re.findall(r'aria-labelledby="([^"]+)"', page))
    assert used <= set(tags.ids)


def test_text_from_a_run_is_text(page):
    assert NASTY not in page and page.count("<script>") == 1
    shown = html.unescape(page)
    assert f"<h1>study {NASTY}</h1>" in shown and f"<dd>{NASTY}</dd>" in shown


def test_every_figure_says_in_words_what_it_shows_and_takes_its_colours_from_the_page(page, tags):
    figures = [attrs for tag, attrs in tags.tags if tag == "svg"]
    assert len(figures) == page.count("<figcaption") == 3  # reliability, time and targets
    for attrs in figures:
        assert attrs["role"] == "img" and attrs["aria-labelledby"]
    assert "currentColor" in page and "prefers-color-scheme: dark" in page
    drawn = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    named = set(re.findall(r"#[0-9a-f]{6}\b", drawn))
    assert named <= {"#ffffff"}  # every other colour is one of the page's, for either theme


def test_the_verdict_comes_first_and_the_contents_lead_to_every_section(page, tags):
    shown = html.unescape(page)
    said = "GrACE's Brier score is clearly better than another method's in"
    assert shown.index("<h1>") < shown.index(said) < shown.index("<table")
    contents = page[page.index("<nav") : page.index("</nav>")]
    linked = re.findall(r'href="#([^"]+)"', contents)
    sections = [attrs["id"] for tag, attrs in tags.tags if tag == "section"]
    assert linked == sections and len(linked) >= 4


def test_methods_that_go_by_the_same_thing_stand_together(page):
    heads = re.findall(r'<tr class="family"><th[^>]*>([^<]+)', page)
    assert heads[:3] == [
        "GrACE",
        "From the probabilities of the answer&#39;s tokens",
        "By asking the model about its answer",
    ]


def test_several_seeds_are_drawn_as_pooled_bars(tmp_path):
    inputs = [study([result(seed=s)], name=str(s)) for s in (0, 1)]
    report = build_report(merge(inputs, "both"), tmp_path, resamples=10)
    page = (tmp_path / "report.html").read_text()
    assert "± is the standard deviation over seeds" in page and "targets-capitals" in page
    confidence = np.concatenate([result(seed=s).confidence for s in (0, 1)])
    correct = np.concatenate([result(seed=s).correct for s in (0, 1)])
    expected = [bar for bar in reliability(confidence, correct) if bar.n]
    summary = groups(report)[0].rated[0]
    bars = [bar for bar in summary.reliability if bar.n]
    assert sum(summary.histogram.right) == correct.sum() and summary.n == len(correct)
    for bar, want in zip(bars, expected, strict=True):
        assert bar.n == want.n
        assert bar.accuracy == pytest.approx(want.accuracy, abs=1e-5)
        assert bar.confidence == pytest.approx(want.confidence, abs=1e-5)


def test_what_happens_out_of_domain_is_drawn_and_tabled(tmp_path):
    away = result(train_task="rivers", noise=4)
    report = build_report(study([result(), away]), tmp_path, resamples=30)
    assert (tmp_path / "figures" / "generalization-capitals-from-rivers-pocket.svg").exists()
    page = (tmp_path / "report.html").read_text()
    row = next(r for r in report.transfer if r.metric == "brier")
    assert f"{100 * row.in_domain:.1f} → {100 * row.out_of_domain:.1f}" in page
    assert "Trained on another task" in (tmp_path / "report.md").read_text()


def test_every_heading_of_a_table_that_sorts_is_a_button(page):
    sheets = re.findall(r'<div class="sheet">.*?</table>', page, re.DOTALL)
    heads = [re.search(r"<thead>.*?</thead>", sheet, re.DOTALL)[0] for sheet in sheets]
    assert len(heads) >= 3
    for head in heads:
        assert head.count("<th ") == head.count('<button type="button">') > 1
    assert 'setAttribute("aria-sort"' in page


def test_tasks_with_the_same_short_name_get_their_own_files():
    report = summarize(study([result(task="a b"), result(task="a/b")], targets=()), resamples=10)
    names = [figure.name for figure in draw(report)]
    assert len(set(names)) == len(names) == 2


def test_only_what_is_clearly_best_is_bold_as_the_legend_says(page):
    assert "Bold: clearly the best" in page
    style = page[page.index("<style>") : page.index("</style>")]
    bold = re.findall(r"([^{}]+)\{[^{}]*font-weight", style)
    cells = [rule.split()[-1] for rule in bold]
    assert [rule for rule in cells if rule.startswith(".")] == [".best"]


def test_a_run_with_a_trace_shows_right_against_wrong_answers_while_they_are_written(tmp_path):
    rising = np.linspace(0.5, 0.9, 21)
    c_NS = np.concatenate([np.tile(rising, (3, 1)), np.tile(1 - rising, (5, 1))])
    one = Traced("capitals", "pocket", "grace", c_NS, np.arange(8) < 3)
    other = one._replace(c_NS=c_NS[:4], correct_N=one.correct_N[:4])
    report = summarize(merge([study(traces=[one]), study(traces=[other])], "both"), resamples=10)
    (row,) = report.traces
    assert (row.right.n, row.wrong.n) == (6, 6)  # of both runs
    assert row.right.median == pytest.approx(rising) and row.wrong.high == pytest.approx(1 - rising)
    (figure,) = [figure for figure in draw(report) if figure.group == "traces"]
    page = render_page(report, [figure])
    assert "While an answer is written" in page and f"caption-{figure.name}" in page
    assert "While an answer is written" not in render_page(summarize(study(), resamples=10), [])
