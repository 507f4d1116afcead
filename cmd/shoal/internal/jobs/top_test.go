package jobs

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/watch"
)

// viewOf returns the view of a run with a name, and something of each part.
func viewOf(name string) watch.View {
	r := watch.New("/runs/x", "1.0", "e")
	r.SetJob([]byte(`{"spec":{"name":` + name + `},"version":"1.0","started":"2026-11-26T16:27:00Z"}`))
	for range 30 {
		r.AddEvent([]byte(`{"time":"2026-11-26T16:27:01Z","what":"generation","generation":2,` +
			`"size":1,"lost":[1],"step":7,"because":"w1 said \u001b[2J"}`))
		r.AddMetrics([]byte(`{"time":"2026-11-26T16:27:02Z","rank":0,"metrics":{"l\u001b]0;x":1}}`))
	}
	r.SetResult([]byte(`{"ok":true,"seconds":3,"workers":[{"rank":0,"how":"exited with code 0"}]}`))
	return r.View(9)
}

// The screen has the size that was asked for, and nothing of what users have named controls the
// terminal.
func TestScreenText(t *testing.T) {
	v := viewOf(`"tr\u001b[31main"`)
	for _, size := range [][2]int{{0, 0}, {80, 24}, {40, 10}, {10, 3}} {
		text := screenText(v, size[0], size[1])
		if strings.ContainsAny(text, "\x1b\x07") {
			t.Fatalf("an escape sequence: %q", text)
		}
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if size[1] > 0 && len(lines) > size[1] {
			t.Errorf("%d lines, there is room for %d:\n%s", len(lines), size[1], text)
		}
		for _, line := range lines {
			if n := len([]rune(line)); size[0] > 0 && n > size[0] {
				t.Errorf("%d columns, there is room for %d: %s", n, size[0], line)
			}
		}
	}
	text := screenText(v, 0, 0)
	for _, want := range []string{"ended well", "worker 0 exited", "lost 1: w1 said"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

// What is not so any more is not said of a metric whose newest report is no number, and what was on
// another day has its date.
func TestScreenTextOfALongRun(t *testing.T) {
	r := watch.New("/runs/x", "1.0", "e")
	r.SetJob([]byte(`{"spec":{"name":"x"},"started":"2026-11-24T16:27:00Z"}`))
	r.AddSense([]byte(`{"time":"2026-11-26T16:27:02Z","step":5,"steps":5,"optimizer_steps":40,"generation":1,` +
		`"size":1,"loss":0.125}`))
	for _, x := range []string{"0.25", `"NaN"`} {
		r.AddMetrics([]byte(`{"time":"2026-11-26T16:27:02Z","rank":0,"metrics":{"loss":` + x +
			`,"other":` + x + `}}`))
	}
	r.AddEvent([]byte(`{"time":"2026-11-25T12:27:01Z","what":"generation","generation":2,` +
		`"size":1,"lost":[1],"step":7,"because":"w1"}`))
	text := screenText(r.View(1795739222), 0, 0)
	for _, want := range []string{`^x .*  step 40  `, `\nloss +NaN`, `\nother +NaN`, `\n2026-11-25 \d\d:\d\d  step 7 `,
		`step -      loss is NaN: as worker 0 has reported\n`} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

// Only what the newest row says of the present members is said of how long they wait, and nothing
// of the only one.
func TestScreenTextOfWaits(t *testing.T) {
	for _, c := range []struct {
		size       int
		slack      string
		generation uint64
		want       bool
	}{{2, "0.5,0", 3, true}, {2, "0.5,0", 4, false}, {1, "0.5", 3, false}} {
		r := watch.New("/runs/x", "1.0", "e")
		r.AddSense(fmt.Appendf(nil, `{"time":"2026-11-26T16:27:02Z","step":5,"steps":5,`+
			`"generation":3,"size":%d,"slack":[%s]}`, c.size, c.slack))
		r.SetLive(&control.Job{Generation: c.generation,
			Workers: []control.Worker{{Running: true}}}, "", 9)
		if got := strings.Contains(screenText(r.View(9), 0, 0), "500 ms"); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// What somebody must do before a job goes on is said at the top, and for whom the others wait.
func TestScreenTextOfNeeds(t *testing.T) {
	r := watch.New("/runs/x", "1.0", "e")
	r.SetLive(&control.Job{Name: "x", State: control.Paused, Size: 1, Min: 2,
		Workers: []control.Worker{{Worker: 3, Running: true,
			Awaited: &control.Wait{Call: "barrier()", Waiters: 1, Unusual: true}}}}, "", 9)
	text := screenText(r.View(9), 0, 0)
	for _, want := range []string{"shoal resize x 2 gives it more\n",
		"worker 3: 1 other waits for it in barrier()"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	u, ok := r.Since(r.View(9).ID, 10)
	if !ok || !strings.HasPrefix(u.Need, "waits, because 1 member is fewer than --min 2") {
		t.Errorf("an update: %q", u.Need)
	}
}

// Of what workers have reported no digit before the point is missing.
func TestScreenTextOfWholeNumbers(t *testing.T) {
	r := watch.New("/runs/x", "1.0", "e")
	r.SetLive(&control.Job{Workers: []control.Worker{{Running: true,
		Metrics: map[string]float64{"step": 123456, "loss": 0.123456, "rate": 12345.67}}}}, "", 9)
	text := screenText(r.View(9), 0, 0)
	if !strings.Contains(text, "loss=0.1235 rate=12346 step=123456") {
		t.Errorf("the step is cut:\n%s", text)
	}
}

// A small chart has the newest numbers at its right end, and a place for each if there is room.
func TestSparkline(t *testing.T) {
	for _, test := range []struct {
		list []float64
		want string
	}{{[]float64{1}, ""}, {[]float64{0, 7}, "▁█"}, {[]float64{1, 1, 1}, "▁▁▁"},
		{[]float64{0, 0, 4, 4, 8, 8, 8, 8}, "▁▅██"}} {
		if got := sparkline(test.list, 4); got != test.want {
			t.Errorf("%v: %q, want %q", test.list, got, test.want)
		}
	}
}
