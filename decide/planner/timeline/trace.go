package timeline

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// How a timeline is written as a trace, for people who open it in a browser. Nothing here changes
// the Timeline, so any goroutine may call Trace.

// A Row says of a stage what stands beside its passes in a trace.
type Row struct {
	Name      string  // of the stage, such as its layers
	AllReduce float64 // seconds in which it averages gradients, after its last transfer
	Update    float64 // seconds of the optimizer, after those
}

// event is an event of Chrome's trace format.
type event struct {
	Name  string         `json:"name"`
	Kind  string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	At    json.Number    `json:"ts,omitempty"`  // microseconds
	Lasts json.Number    `json:"dur,omitempty"` // microseconds
	Stage int            `json:"pid"`
	Track int            `json:"tid"`
	ID    int            `json:"id,omitempty"` // of an arrow
	Bound string         `json:"bp,omitempty"` // "e": an arrow ends at what encloses its end
	Args  map[string]any `json:"args,omitempty"`
}

// tracer collects the events of a trace.
type tracer struct {
	events []event
	// ends has when the last event of each track of a stage ends, in nanoseconds.
	ends []map[int]int64
	// passes has, by stage, direction and micro-batch, when a pass begins and ends.
	passes [][2][]Op
}

// Tracks of a stage. What goes over a link and overlaps, as its latency lets it, has tracks of its
// own, links times further down.
const (
	computing = iota
	toNext
	toPrevious
	tracks
)

// Trace returns the step in Chrome's trace format, which Perfetto and chrome://tracing open: a
// process for each stage with tracks for its passes, all-reduce and update, and for what it sends,
// arrows from what is sent to the pass that needs it, and how many micro-batches it holds. rows has
// one for each stage.
func (t *Timeline) Trace(rows []Row) ([]byte, error) {
	if len(rows) != len(t.Ops) {
		return nil, fmt.Errorf("%d rows for a timeline of %d stages", len(rows), len(t.Ops))
	}
	x := tracer{ends: make([]map[int]int64, len(rows)), passes: make([][2][]Op, len(rows))}
	for s, ops := range t.Ops {
		x.passes[s] = [2][]Op{make([]Op, len(ops)/2), make([]Op, len(ops)/2)}
		for _, op := range ops {
			x.passes[s][way(op.Backward)][op.Micro] = op
		}
	}
	for s, row := range rows {
		x.ends[s] = map[int]int64{}
		x.describe(s, "process_name", 0, map[string]any{"name": fmt.Sprintf("stage %d: %s", s,
			row.Name)})
		x.describe(s, "process_sort_index", 0, map[string]any{"sort_index": s})
		held := 0
		for _, op := range t.Ops[s] {
			name := "forward"
			if op.Backward {
				name = "backward"
			} else {
				held++
				x.held(s, op.Start, held)
			}
			x.slice(s, computing, name, op.Micro, op.Start, op.End)
			if op.Backward {
				held--
				x.held(s, op.End, held)
			}
		}
		x.slice(s, computing, "all-reduce", -1, t.Ends[s], t.Ends[s]+row.AllReduce)
		x.slice(s, computing, "update", -1, t.Ends[s]+row.AllReduce,
			t.Ends[s]+row.AllReduce+row.Update)
	}
	for _, list := range t.Sent {
		for _, sent := range list {
			x.sent(sent)
		}
	}
	for s, ends := range x.ends {
		for _, track := range slices.Sorted(maps.Keys(ends)) {
			name := []string{"compute", "send to next", "send to previous"}[track%tracks]
			if track >= tracks {
				name += ", at the same time"
			}
			x.describe(s, "thread_name", track, map[string]any{"name": name})
		}
	}
	return json.Marshal(map[string]any{"displayTimeUnit": "ms", "traceEvents": x.events})
}

// describe adds a name or a place of a stage or one of its tracks.
func (x *tracer) describe(stage int, what string, track int, args map[string]any) {
	x.events = append(x.events, event{Name: what, Phase: "M", Stage: stage, Track: track,
		Args: args})
}

// held adds how many micro-batches a stage holds from a time on.
func (x *tracer) held(stage int, at float64, held int) {
	x.events = append(x.events, event{Name: "held", Phase: "C", At: micros(nanos(at)),
		Stage: stage, Args: map[string]any{"micro-batches": held}})
}

// slice adds what a stage does on a track from start to end, in seconds, of a micro-batch or, -1,
// of none. What lasts no nanosecond is left out.
func (x *tracer) slice(stage, track int, kind string, micro int, start, end float64) {
	from, to := nanos(start), nanos(end)
	if from == to {
		return
	}
	e := event{Name: kind, Kind: kind, Phase: "X", At: micros(from), Lasts: micros(to - from),
		Stage: stage, Track: track}
	if micro >= 0 {
		e.Name += " " + strconv.Itoa(micro)
		e.Args = map[string]any{"micro-batch": micro}
	}
	x.events = append(x.events, e)
	x.ends[stage][track] = to
}

// sent adds a transfer, on the first track of its direction that is free, and an arrow to the pass
// that needs it.
func (x *tracer) sent(sent Sent) {
	from, to, track, name := sent.Stage, sent.Stage+1, toNext, "send"
	if sent.Backward {
		from, to, track, name = to, from, toPrevious, "send gradient"
	}
	for x.ends[from][track] > nanos(sent.Start) {
		track += tracks
	}
	if nanos(sent.Start) == nanos(sent.End) {
		return
	}
	x.slice(from, track, name, sent.Micro, sent.Start, sent.End)
	op := x.passes[to][way(sent.Backward)][sent.Micro]
	if nanos(op.End) == nanos(op.Start) {
		return
	}
	arrow := event{Name: "sent", Kind: "sent", ID: len(x.events)}
	arrow.Phase, arrow.Stage, arrow.Track = "s", from, track
	arrow.At = micros(nanos(sent.Start))
	x.events = append(x.events, arrow)
	arrow.Phase, arrow.Bound, arrow.Stage, arrow.Track = "f", "e", to, computing
	arrow.At = micros(nanos(op.Start))
	x.events = append(x.events, arrow)
}

// way returns the number of a direction.
func way(backward bool) int {
	if backward {
		return 1
	}
	return 0
}

// nanos returns whole nanoseconds.
func nanos(seconds float64) int64 { return int64(float64(seconds*1e9) + 0.5) }

// micros writes nanoseconds as microseconds.
func micros(nanos int64) json.Number {
	return json.Number(fmt.Sprintf("%d.%03d", nanos/1000, nanos%1000))
}
