"""The page of a run in a browser: live, and as a report. Pictures are in build/test/pictures."""

import json
import os
import signal
import subprocess

from conftest import EVIL, HANG, PICTURES, SHOAL


def picture(page, name):
    """Keep a picture of a page for people to look at."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


def fits(page):
    """Whether nothing of a page lies beside the window."""
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_live_page_and_report(training, open_page, tmp_path):
    """A page shows charts, and a killed worker on its time line; it goes by keys alone, in both
    themes, also on a narrow screen; who has no token gets nothing. The report of the run shows the
    same without a server.
    """
    from playwright.sync_api import expect

    expect.set_options(timeout=60_000)
    dash = subprocess.Popen(
        [SHOAL, "dash", training.name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        address = dash.stdout.readline().strip()
        base, token = address.split("#")
        page = open_page(address)
        expect(page.locator("canvas").first).to_be_visible()
        assert "token" not in page.url
        moves(page, expect)
        (victim,) = [w for w in training.workers() if w["worker"] == 1]
        os.kill(victim["pid"], signal.SIGKILL)
        expect(page.locator("tr.mark-loss")).to_contain_text("lost 1")
        page.get_by_role("button", name="log of 0").click()
        expect(page.locator(".log")).to_contain_text("hello from 0")
        expect(page.locator("#charts")).to_contain_text(EVIL)
        zooms(page, expect)
        goes_by_keys(page, expect)
        draws(page)
        picture(page, "live")
        page.reload()  # by the cookie, without a token
        expect(page.locator("tr.mark-loss")).to_be_visible()
        refused(open_page, expect, base, token)
        logs_in_again(open_page, expect, address)
        training.finish()
        expect(page.get_by_role("status")).to_have_text("ended")
        page.close()  # which would ask again when the server has ended
    finally:
        dash.send_signal(signal.SIGINT)
        dash.stdout.close()
        assert dash.wait(HANG) == 130
    report = tmp_path / "report.html"
    command = [SHOAL, "report", str(training.directory), "-o", str(report)]
    subprocess.run(command, check=True, timeout=HANG, stdout=subprocess.DEVNULL)
    shows_report(open_page, expect, report)


# For each chart, how many pixels of its canvas have one of the colours that its legend names.
DRAWN = """
() => [...document.querySelectorAll("#charts section")].map((chart) => {
  const canvas = chart.querySelector("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colors = [...chart.querySelectorAll(".u-series:not(:first-child) .u-marker")].map((m) =>
    getComputedStyle(m).borderTopColor.match(/[0-9.]+/g).map(Number));
  let pixels = 0;
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] > 100 &&
        colors.some((color) => [0, 1, 2].every((k) => Math.abs(color[k] - data[i + k]) < 20)))
      pixels++;
  return pixels;
})
"""


def draws(page):
    """Wait until each chart has a line."""
    page.wait_for_function(
        f"() => {{ const all = ({DRAWN})(); return all.length > 0 && Math.min(...all) > 100 }}"
    )


def moves(page, expect):
    """The number of steps on the page grows."""
    step = page.locator(".facts dd").first
    before = step.inner_text()
    expect(step).not_to_have_text(before)


def zooms(page, expect):
    """A chart in which a part of the time was chosen stays so when it is drawn anew, and says the
    newest time where the cursor is nowhere.
    """
    chart = page.get_by_role("group", name="a chart").first
    area = chart.locator(".u-over").bounding_box()
    time = chart.locator(".u-value").first

    def move(part):
        """Move the mouse to a part of the width of the chart."""
        page.mouse.move(area["x"] + part * area["width"], area["y"] + area["height"] / 2)

    move(0.02)
    first = time.inner_text()
    move(0.5)
    page.mouse.down()
    move(0.9)
    page.mouse.up()
    page.mouse.move(0, 0)
    newest = time.inner_text()
    expect(time).not_to_have_text(newest)
    move(0.02)
    zoomed = time.inner_text()
    assert zoomed != first
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.mouse.move(0, 0)
    move(0.02)
    expect(time).to_have_text(zoomed)
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.mouse.dblclick(area["x"] + area["width"] / 2, area["y"] + area["height"] / 2)
    page.mouse.move(0, 0)


def test_what_is_no_number_and_what_is_missing(open_page, tmp_path):
    """A loss whose newest report is no number is said to be none, and there are links only to what
    is on the page.
    """
    from playwright.sync_api import expect

    at = "2026-11-26T16:{:02}:02Z"
    (tmp_path / "job.json").write_text(
        json.dumps({"spec": {"name": "x", "command": ["x"]}, "started": at.format(0)})
    )
    reports = [
        json.dumps({"time": at.format(i), "rank": 0, "metrics": {"loss": 0.25, "other": 1}})
        for i in range(5)
    ]
    reports.append(json.dumps({"time": at.format(5), "rank": 0, "metrics": {"loss": "NaN"}}))
    (tmp_path / "metrics.jsonl").write_text("\n".join(reports) + "\n")
    row = {"step": 5, "steps": 5, "optimizer_steps": 40, "round": 8, "generation": 1, "size": 1}
    (tmp_path / "sense.jsonl").write_text(json.dumps({"time": at.format(5), **row}) + "\n")
    report = tmp_path / "report.html"
    command = [SHOAL, "report", str(tmp_path), "-o", str(report)]
    subprocess.run(command, check=True, timeout=HANG, stdout=subprocess.DEVNULL)
    page = open_page(report.as_uri())
    facts = page.locator(".facts")
    expect(facts).to_contain_text("step40commits5")
    charts = page.locator("#charts section")
    expect(charts.first.locator(".u-value").last).to_have_text("NaN")
    expect(charts.last.locator(".u-value").last).to_have_text("1")
    expect(page.locator("nav a")).to_have_text(["1 Charts", "2 What happened", "3 Changes"])


def test_a_metric_that_is_reported_once(open_page, tmp_path):
    """What a worker has reported once, as at the end of its training, has a chart of some time."""
    row = {"time": "2026-11-24T16:00:09Z", "rank": 0, "metrics": {"accuracy": 0.98}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    report = tmp_path / "report.html"
    command = [SHOAL, "report", str(tmp_path), "-o", str(report)]
    subprocess.run(command, check=True, timeout=HANG, stdout=subprocess.DEVNULL)
    keep = "window.texts = []; CanvasRenderingContext2D.prototype.fillText = (t) => texts.push(t);"
    page = open_page(report.as_uri(), before=lambda page: page.add_init_script(keep))
    page.wait_for_function("() => texts.includes('16:00:00')")
    charts = page.locator("#charts section").inner_text()
    assert "accuracy, as worker 0 reports it" in charts and "0.98" in charts


def test_whole_numbers(open_page, tmp_path):
    """A whole number, such as a batch, is written with all its digits, and of others none before
    the point is missing.
    """
    row = {"time": "2026-11-24T16:00:09Z", "step": 2, "steps": 2, "size": 1, "batch": 16384}
    (tmp_path / "sense.jsonl").write_text(json.dumps(row) + "\n")
    numbers = {"tokens": 1048576, "rate": 1234567.8}
    said = {"time": "2026-11-24T16:00:09Z", "rank": 0, "metrics": numbers}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(said) + "\n")
    report = tmp_path / "report.html"
    command = [SHOAL, "report", str(tmp_path), "-o", str(report)]
    subprocess.run(command, check=True, timeout=HANG, stdout=subprocess.DEVNULL)
    charts = open_page(report.as_uri()).locator("#charts")
    charts.get_by_text("batch").wait_for()
    for number in ("16384", "1048576", "1234568"):
        assert number in charts.inner_text()


def test_large_numbers_and_long_names(open_page, tmp_path):
    """No number at an axis is cut, and a metric with a long name does not widen a narrow page."""
    rows = [
        {"time": f"2026-11-24T16:00:{i:02}Z", "rank": 0, "metrics": {"t": i * 10**11, "m" * 60: i}}
        for i in range(10)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = tmp_path / "report.html"
    command = [SHOAL, "report", str(tmp_path), "-o", str(report)]
    subprocess.run(command, check=True, timeout=HANG, stdout=subprocess.DEVNULL)
    keep = """
      window.texts = [];
      const draw = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, x, ...more) {
        if (this.textAlign === "right")
          texts.push({ text, whole: x - this.measureText(text).width >= 0 });
        draw.call(this, text, x, ...more);
      };
    """
    page = open_page(report.as_uri(), width=390, before=lambda page: page.add_init_script(keep))
    page.wait_for_function("() => texts.some((t) => t.text === '500000000000')")
    assert page.evaluate("texts.filter((t) => !t.whole).map((t) => t.text)") == []
    assert fits(page)


def test_axis_of_some_days(open_page, tmp_path):
    """On the axis of a run of three days, only midnights are dates, and not noons too."""
    rows = [
        {"time": f"2026-11-{24 + i // 4}T{i % 4 * 6:02}:00:00Z", "step": i, "steps": 1, "size": 1}
        for i in range(1, 14)
    ]
    (tmp_path / "sense.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = tmp_path / "report.html"
    command = [SHOAL, "report", str(tmp_path), "-o", str(report)]
    subprocess.run(command, check=True, timeout=HANG, stdout=subprocess.DEVNULL)
    keep = """
      window.texts = [];
      const draw = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
        texts.push(text);
        draw.call(this, text, ...more);
      };
    """
    page = open_page(report.as_uri(), before=lambda page: page.add_init_script(keep))
    page.wait_for_function("() => texts.includes('Nov 25')")
    assert page.evaluate("texts.some((text, i) => text === 'Nov 25' && texts[i + 1] === '12:00')")


def test_the_only_worker_waits_for_nobody(open_page, tmp_path):
    """A worker whose others have left is not said to wait for them, though it has once."""
    row = {"step": 1, "steps": 1, "size": 1, "hosts": [{"name": "a", "ranks": [0]}]}
    row.update(time="2026-11-24T00:00:00Z", slack=[6e-10])
    (tmp_path / "sense.jsonl").write_text(json.dumps(row) + "\n")
    report = tmp_path / "report.html"
    command = [SHOAL, "report", str(tmp_path), "-o", str(report)]
    subprocess.run(command, check=True, timeout=HANG, stdout=subprocess.DEVNULL)
    hosts = open_page(report.as_uri()).locator("#hosts").inner_text()
    assert "rank 0" in hosts and "waits" not in hosts


def test_what_a_job_needs(open_page, tmp_path):
    """The notes of a page begin with what somebody must do before the job goes on, and say for
    which worker the others wait.
    """
    (tmp_path / "metrics.jsonl").write_text("")
    report = tmp_path / "report.html"
    command = [SHOAL, "report", str(tmp_path), "-o", str(report)]
    subprocess.run(command, check=True, timeout=HANG, stdout=subprocess.DEVNULL)
    awaited = {"call": "barrier()", "unusual": True}
    worker = {"worker": 3, "host": "a", "rank": 0, "running": True, "awaited": awaited}
    live = {"state": "paused", "head": "a", "generation": 1, "size": 1, "want": 2, "steps": 1}
    parts = {"need": "waits, because 1 member is fewer", "live": {**live, "workers": [worker]}}
    text = report.read_text()
    assert text.count('"notes":[') == 1
    report.write_text(text.replace('"notes":[', json.dumps(parts)[1:-1] + ',"notes":[', 1))
    notes = open_page(report.as_uri()).locator(".notes li").all_text_contents()
    assert notes[0] == parts["need"]
    assert notes[1].startswith("worker 3: others wait for it in barrier()")


def test_hosts_with_long_names(open_page, tmp_path):
    """Hosts whose names differ at the end only are told apart on the map too."""
    names = [f"ip-172-31-123-{i}.ec2.internal" for i in (45, 46)] + ["192.168.100.200"]
    hosts = [{"name": name, "ranks": [i]} for i, name in enumerate(names)]
    row = {"step": 1, "steps": 1, "size": 3, "hosts": hosts, "time": "2026-11-24T00:00:00Z"}
    (tmp_path / "sense.jsonl").write_text(json.dumps(row) + "\n")
    report = tmp_path / "report.html"
    command = [SHOAL, "report", str(tmp_path), "-o", str(report)]
    subprocess.run(command, check=True, timeout=HANG, stdout=subprocess.DEVNULL)
    texts = open_page(report.as_uri()).locator(".ring text").all_text_contents()
    assert texts[1::2] == ["…172-31-123-45", "…172-31-123-46", "…2.168.100.200"]


def test_a_server_that_stands_still(training, open_page):
    """A page says that nothing comes any more, of which the browser hears nothing, and goes on when
    the server does.
    """
    from playwright.sync_api import expect

    expect.set_options(timeout=60_000)
    dash = subprocess.Popen(
        [SHOAL, "dash", training.name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        page = open_page(dash.stdout.readline().strip(), before=lambda page: page.clock.install())
        expect(page.locator("canvas").first).to_be_visible()
        alert = page.get_by_role("alert")
        expect(alert).to_have_count(0)
        dash.send_signal(signal.SIGSTOP)
        page.clock.fast_forward(21_000)
        expect(alert).to_contain_text("does not answer")
        dash.send_signal(signal.SIGCONT)
        expect(alert).to_have_count(0)
        moves(page, expect)
        page.close()
    finally:
        dash.send_signal(signal.SIGCONT)
        dash.send_signal(signal.SIGINT)
        dash.stdout.close()
        assert dash.wait(HANG) == 130


def test_changes_that_are_not_shown(open_page, tmp_path):
    """Under the list of changes, which has the newest hundred, stands of how many."""
    change = {"phase": "kept", "policy": "batch", "from": "batch=32", "to": "batch=64"}
    events = [
        {"time": f"2026-11-24T16:{i // 60:02}:{i % 60:02}Z", "what": "change", "step": i}
        | {"change": change | {"number": i + 1, "step": i}}
        for i in range(150)
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    report = tmp_path / "report.html"
    command = [SHOAL, "report", str(tmp_path), "-o", str(report)]
    subprocess.run(command, check=True, timeout=HANG, stdout=subprocess.DEVNULL)
    ledger = open_page(report.as_uri()).locator("#ledger")
    assert ledger.locator("tbody tr").count() == 100
    assert "100 of 150 are shown; the ledger has all." in ledger.inner_text()


def goes_by_keys(page, expect):
    """Without a mouse: a chart says its newest point and the one before, the theme changes, and a
    part of the page is jumped to.
    """
    page.evaluate(  # twice, before the page is drawn again
        "for (let i = 0; i < 2; i++) dispatchEvent(new KeyboardEvent('keydown', {key: 't'}))"
    )
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("t")
    chart = page.get_by_role("group", name="a chart").first
    for _ in range(20):
        page.keyboard.press("Tab")
        if chart.evaluate("e => e === document.activeElement"):
            break
    page.keyboard.press("End")
    expect(chart.locator(".u-value").first).to_contain_text(":")
    page.keyboard.press("5")
    expect(page.locator("#workers")).to_be_in_viewport()
    expect(page.locator("#workers")).to_be_focused()


def refused(open_page, expect, base, token):
    """Who has no token, or a wrong one, is told so, and sees nothing of the run."""
    for wrong in ("", token[:-1], token + "0"):
        page = open_page(f"{base}#{wrong}", strict=False)  # the browser prints that it was refused
        expect(page.get_by_role("alert")).to_contain_text("wants its token")
        expect(page.locator("canvas")).to_have_count(0)


def logs_in_again(open_page, expect, address):
    """A page that the server does not answer at first keeps its token, and shows the run later."""
    refusals = []

    def answer(route):
        """Fail the first login."""
        refusals.append(route)
        route.continue_() if len(refusals) > 1 else route.abort()

    page = open_page(address, strict=False, before=lambda page: page.route("**/login", answer))
    expect(page.locator("canvas").first).to_be_visible()
    assert len(refusals) == 2 and "token" not in page.url
    page.close()


def shows_report(open_page, expect, report):
    """A report shows the run in both themes and two widths, and asks nobody for anything."""
    for theme, width in (("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)):
        page = open_page(report.as_uri(), theme, width)
        expect(page.locator("canvas").first).to_be_visible()
        expect(page.locator("tr.mark-loss")).to_contain_text("lost 1")
        expect(page.get_by_role("status")).to_have_text("ended")
        draws(page)
        assert fits(page)
        assert page.evaluate("performance.getEntriesByType('resource').length") == 0
        picture(page, f"report-{theme}-{width}")
