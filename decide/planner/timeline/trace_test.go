package timeline_test

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// traced is an event of a trace, with all the fields that there may be.
type traced struct {
	Name  string         `json:"name"`
	Kind  string         `json:"cat"`
	Phase string         `json:"ph"`
	At    float64        `json:"ts"`
	Lasts float64        `json:"dur"`
	Stage int            `json:"pid"`
	Track int            `json:"tid"`
	ID    int            `json:"id"`
	Bound string         `json:"bp"`
	Args  map[string]any `json:"args"`
}

// end returns when an event ends, in microseconds.
func (e traced) end() float64 { return e.At + e.Lasts }

// readTrace reads a trace strictly: what Perfetto does not know is an error.
func readTrace(t *rapid.T, text []byte) []traced {
	var file struct {
		Unit   string   `json:"displayTimeUnit"`
		Events []traced `json:"traceEvents"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil || file.Unit != "ms" {
		t.Fatalf("%v, unit %q: %s", err, file.Unit, text)
	}
	return file.Events
}

// TestTrace writes traces of any steps. Each pass, transfer and tail is there with its times, no
// two events of a track overlap, every arrow goes from a transfer to the pass that needs it, and
// the micro-batches that a stage holds come and go.
func TestTrace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := rapid.Float64Range(0.001, 2)
		micro := rapid.IntRange(1, 6).Draw(t, "micro")
		stages := make([]timeline.Stage, rapid.IntRange(1, 5).Draw(t, "stages"))
		rows := make([]timeline.Row, len(stages))
		ahead := 1
		for s := range slices.Backward(stages) {
			ahead += rapid.IntRange(0, 2).Draw(t, "ahead")
			rows[s] = timeline.Row{Name: "layers", AllReduce: seconds.Draw(t, "all-reduce"),
				Update: seconds.Draw(t, "update")}
			stages[s] = timeline.Stage{Forward: seconds.Draw(t, "f"),
				Backward: seconds.Draw(t, "b"), Tail: rows[s].AllReduce + rows[s].Update,
				Ahead: ahead, Down: seconds.Draw(t, "down"), Up: seconds.Draw(t, "up"),
				Latency:  rapid.Float64Range(0, 0.001).Draw(t, "latency"),
				Transfer: timeline.Transfer(rapid.IntRange(0, 2).Draw(t, "transfer"))}
		}
		line, err := timeline.Run(stages, micro)
		if err != nil {
			t.Fatal(err)
		}
		text, err := line.Trace(rows)
		if err != nil {
			t.Fatal(err)
		}
		events := readTrace(t, text)
		checkTracks(t, events)
		checkArrows(t, events, 2*micro*(len(stages)-1))
		last := 0.0
		for s := range stages {
			checkSlices(t, line, rows, events, s)
			for _, e := range events {
				if e.Stage == s && e.Phase == "X" {
					last = max(last, e.end())
				}
			}
		}
		if !near(last, line.Seconds) {
			t.Errorf("the trace ends after %v µs, the step takes %v s", last, line.Seconds)
		}
	})
}

// near reports whether microseconds are so many seconds, but for rounding to nanoseconds.
func near(micros, seconds float64) bool { return math.Abs(micros-seconds*1e6) < 0.002 }

// checkTracks looks whether events of a track overlap, and whether the micro-batches that stages
// hold are counted right.
func checkTracks(t *rapid.T, events []traced) {
	type track struct{ stage, number int }
	free, held, named := map[track]float64{}, map[int]float64{}, map[track]bool{}
	slices.SortStableFunc(events, func(a, b traced) int {
		switch {
		case a.At < b.At:
			return -1
		case a.At > b.At:
			return 1
		}
		return 0
	})
	for _, e := range events {
		at := track{e.Stage, e.Track}
		switch e.Phase {
		case "M":
			named[at] = named[at] || e.Name == "thread_name" && e.Args["name"] != ""
		case "X":
			if e.At < free[at]-1e-6 || e.Lasts <= 0 {
				t.Errorf("%+v begins before %v, or takes no time", e, free[at])
			}
			free[at] = e.end()
		case "C":
			n, is := e.Args["micro-batches"].(float64)
			if !is || n < 0 || math.Abs(n-held[e.Stage]) > 1 {
				t.Errorf("%+v after %v", e, held[e.Stage])
			}
			held[e.Stage] = n
		case "s", "f":
		default:
			t.Errorf("phase of %+v", e)
		}
	}
	for at := range free {
		if !named[at] {
			t.Errorf("track %+v has no name", at)
		}
	}
	for stage, n := range held {
		if n != 0 {
			t.Errorf("stage %d holds %v at the end", stage, n)
		}
	}
}

// checkArrows looks whether each of so many arrows goes from the slice of a transfer to that of a
// pass, of the same micro-batch and no earlier.
func checkArrows(t *rapid.T, events []traced, want int) {
	// enclosing returns the slice on the track of an end of an arrow that begins with it.
	enclosing := func(arrow traced) *traced {
		for i, e := range events {
			if e.Phase == "X" && e.Stage == arrow.Stage && e.Track == arrow.Track &&
				e.At == arrow.At {
				return &events[i]
			}
		}
		return nil
	}
	ends := map[int]traced{}
	for _, e := range events {
		if e.Phase == "f" {
			ends[e.ID] = e
		}
	}
	count := 0
	for _, e := range events {
		if e.Phase != "s" {
			continue
		}
		count++
		f, is := ends[e.ID]
		from, to := enclosing(e), enclosing(f)
		if !is || f.Bound != "e" || from == nil || to == nil ||
			from.Args["micro-batch"] != to.Args["micro-batch"] || to.At < from.end()-0.002 {
			t.Errorf("an arrow from %+v to %+v", from, to)
		}
	}
	if count != want || len(ends) != want {
		t.Errorf("%d arrows with %d ends, want %d", count, len(ends), want)
	}
}

// checkSlices looks whether a stage's passes, its transfers and its tail have the times of the
// timeline.
func checkSlices(t *rapid.T, line *timeline.Timeline, rows []timeline.Row, events []traced, s int) {
	count := map[string]int{}
	for _, e := range events {
		if e.Stage != s || e.Phase != "X" {
			continue
		}
		count[e.Kind]++
		start, end := -1.0, -1.0
		for _, op := range line.Ops[s] {
			if e.Args["micro-batch"] == float64(op.Micro) && e.Kind == map[bool]string{
				false: "forward", true: "backward"}[op.Backward] {
				start, end = op.Start, op.End
			}
		}
		for _, list := range line.Sent {
			for _, x := range list {
				sender, kind := x.Stage, "send"
				if x.Backward {
					sender, kind = x.Stage+1, "send gradient"
				}
				if sender == s && e.Kind == kind && e.Args["micro-batch"] == float64(x.Micro) {
					start, end = x.Start, x.End
				}
			}
		}
		switch e.Kind {
		case "all-reduce":
			start, end = line.Ends[s], line.Ends[s]+rows[s].AllReduce
		case "update":
			start = line.Ends[s] + rows[s].AllReduce
			end = start + rows[s].Update
		}
		if !near(e.At, start) || !near(e.end(), end) || !strings.HasPrefix(e.Name, e.Kind) {
			t.Errorf("stage %d: %+v, want from %v s to %v", s, e, start, end)
		}
	}
	micro, stages := len(line.Ops[s])/2, len(rows)
	want := map[string]int{"forward": micro, "backward": micro, "all-reduce": 1, "update": 1}
	if s+1 < stages {
		want["send"] = micro
	}
	if s > 0 {
		want["send gradient"] = micro
	}
	for kind, n := range want {
		if count[kind] != n {
			t.Errorf("stage %d: %d times %s, want %d", s, count[kind], kind, n)
		}
	}
}

// The same step gives the same trace.
func TestTraceIsTheSame(t *testing.T) {
	stage := timeline.Stage{Forward: 1, Backward: 2, Ahead: 2, Down: 0.5, Up: 0.5, Tail: 1}
	line, err := timeline.Run([]timeline.Stage{stage, stage, stage}, 4)
	if err != nil {
		t.Fatal(err)
	}
	var first []byte
	for range 20 {
		text, err := line.Trace(make([]timeline.Row, 3))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = text
		}
		if !bytes.Equal(text, first) {
			t.Fatalf("two traces of a step differ:\n%s\n%s", first, text)
		}
	}
}
