package history_test

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/history"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
)

// sample returns a whole step of a job with two members.
func sample(step uint64, seconds float64, batch uint64) sense.StepSample {
	return sense.StepSample{Step: step, Seconds: seconds, Samples: batch, Batch: batch, Size: 2,
		Generation: 1}
}

// A row ends after ten seconds of steps, and where members or setting become others. Disturbed and
// shorter steps do not count for its quantiles.
func TestRows(t *testing.T) {
	var r history.Recorder
	var rows []history.Row
	// add adds a step, and keeps the row that is over.
	add := func(x sense.StepSample) bool {
		over, began := r.Add(x, 0)
		if over != nil {
			rows = append(rows, *over)
		}
		return began
	}
	if !add(sample(1, 0, 8)) {
		t.Error("the first step begins nothing")
	}
	r.Describe([]history.Host{{Name: "a", Ranks: []int{0, 1}}},
		&history.Data{Samples: 80, First: 8})
	for i := range uint64(9) {
		add(sample(2+i, 1, 8))
		r.AddSplit(sense.Split{Compute: 0.8, Exposed: 0.1, Slack: []float64{0, float64(i)}},
			2, true)
		r.SetGradientBytes(64)
	}
	short := sample(11, 0.5, 8)
	short.Samples = 3
	add(short)
	add(sample(12, 9, 8)) // ten seconds are over
	if add(sample(13, 1, 8)) {
		t.Error("a step like those before begins something")
	}
	if !add(sample(14, 7, 16)) {
		t.Error("another batch begins nothing")
	}
	add(sample(15, 2, 16))
	add(sense.StepSample{Step: 16, Seconds: 1})
	add(sense.StepSample{Step: 16, Seconds: math.NaN(), Size: 2})
	rows = append(rows, *r.EndRow())
	if r.EndRow() != nil || r.HasSteps() {
		t.Error("there are rows of no steps")
	}
	loss := 2.0
	want := []history.Row{
		{Step: 12, Steps: 12, Span: 18.5, Generation: 1, Size: 2, Batch: 8, Samples: 91,
			Seconds: &history.Quantiles{P10: 1, Median: 1, P90: 1},
			Split:   &history.Split{Compute: 0.8, Exposed: 0.1}, Slack: []float64{0, 3.6},
			Loss: &loss, Gradients: 64, Data: &history.Data{Samples: 80, First: 8},
			Hosts: []history.Host{{Name: "a", Ranks: []int{0, 1}}}},
		{Step: 13, Steps: 1, Span: 1, Generation: 1, Size: 2, Batch: 8, Samples: 8,
			Seconds: &history.Quantiles{P10: 1, Median: 1, P90: 1}},
		{Step: 15, Steps: 2, Span: 9, Generation: 1, Size: 2, Batch: 16, Samples: 32,
			Seconds: &history.Quantiles{P10: 2, Median: 2, P90: 2}},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("the rows are others (-want +got): %s", diff)
	}
	for _, row := range rows {
		got, err := history.Parse(row.Encode())
		if diff := cmp.Diff(row, got); err != nil || diff != "" {
			t.Errorf("a row is read as another one: %v %s", err, diff)
		}
	}
}

// What is told of a step after it is in its row, also where each step takes longer than a row.
func TestRowsOfSlowSteps(t *testing.T) {
	var r history.Recorder
	loss := 2.0
	for i := range uint64(4) {
		over, began := r.Add(sample(i+1, 20, 8), 0)
		if began {
			r.Describe(nil, &history.Data{Samples: 80, First: 8})
		}
		r.SetGradientBytes(64)
		r.AddSplit(sense.Split{Compute: 15, Exposed: 1, Slack: []float64{0, 2}}, loss, true)
		if i == 0 {
			continue
		}
		want := &history.Row{Step: i, Steps: 1, Span: 20, Generation: 1, Size: 2, Batch: 8,
			Samples: 8, Split: &history.Split{Compute: 15, Exposed: 1}, Slack: []float64{0, 2},
			Loss: &loss, Gradients: 64}
		if i == 1 {
			want.Data = &history.Data{Samples: 80, First: 8}
		} else {
			want.Seconds = &history.Quantiles{P10: 20, Median: 20, P90: 20}
		}
		if diff := cmp.Diff(want, over); diff != "" {
			t.Errorf("row %d is another (-want +got): %s", i, diff)
		}
	}
}

// Steps of which nobody knows where their time goes do not make the times of the others shorter.
func TestRowOfAPartThatIsKnown(t *testing.T) {
	var r history.Recorder
	for i := range uint64(8) {
		r.Add(sample(i+1, 1, 8), 0)
		if i < 4 {
			r.AddSplit(sense.Split{}, 0, false)
		} else {
			r.AddSplit(sense.Split{Compute: 0.8, Exposed: 0.1}, 0, false)
		}
	}
	want := history.Split{Compute: 0.8, Exposed: 0.1}
	if got := r.EndRow().Split; got == nil || *got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// However many steps a row has, its quantiles are near those of all, and a step allocates nothing.
func TestManySteps(t *testing.T) {
	var r history.Recorder
	step := uint64(0)
	add := func() {
		step++
		if over, _ := r.Add(sample(step, 1e-4*(1+float64(step%100)/100), 8), 0); over != nil {
			t.Fatal("a row is over early")
		}
	}
	if n := testing.AllocsPerRun(40_000, add); n > 0 {
		t.Errorf("a step allocates %v times", n)
	}
	q := r.EndRow().Seconds
	if math.Abs(q.P10-1.1e-4) > 5e-6 || math.Abs(q.Median-1.5e-4) > 5e-6 ||
		math.Abs(q.P90-1.9e-4) > 5e-6 {
		t.Errorf("quantiles %+v", *q)
	}
}

// A file is made smaller: the newer half stays, of the older one neighbours are merged, and the
// sums stay the same.
func TestCompact(t *testing.T) {
	loss, sum := 3.0, 0.0
	var text bytes.Buffer
	for i := range uint64(400) {
		r := history.Row{Step: 10 * (i + 1), Steps: 10, Span: 10, Generation: i / 100, Size: 2,
			Seconds: &history.Quantiles{P10: 1, Median: 1 + float64(i%2), P90: 3}, Samples: 80,
			Split: &history.Split{Compute: 1}, Slack: []float64{0, 1}, Loss: &loss}
		if i%100 == 0 {
			r.Hosts = []history.Host{{Name: "a", Ranks: []int{0, 1}}}
		}
		sum += r.Span
		text.Write(r.Encode())
	}
	text.WriteString("{\"torn")
	for limit, want := range map[int]int{text.Len(): 300, text.Len() / 4: 0} {
		out := history.Compact(text.Bytes(), limit)
		lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		if len(out) > limit/8*7+1 && want == 0 || len(lines) != want && want > 0 {
			t.Fatalf("%d lines of %d bytes, the limit is %d", len(lines), len(out), limit)
		}
		got, first := 0.0, history.Row{}
		for i, line := range lines {
			r, err := history.Parse([]byte(line))
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if i == 0 {
				first = r
			}
			got += r.Span
		}
		if want > 0 && (got != sum || first.Steps != 20 || first.Seconds.Median != 1.5 ||
			*first.Loss != loss) || first.Hosts == nil {
			t.Errorf("%v seconds of %v, the first row is %s", got, sum, first.Encode())
		}
	}
	var rounds bytes.Buffer // the last round of an epoch is shorter
	for i := range uint64(40) {
		r := history.Row{Step: i + 1, Steps: 1, Span: 10, Size: 2, Round: uint32(8 - i%2*5),
			OptimizerSteps: (i+1)/2*11 + (i+1)%2*8}
		rounds.Write(r.Encode())
	}
	made, last := uint64(0), history.Row{}
	for line := range bytes.Lines(history.Compact(rounds.Bytes(), 2*rounds.Len())) {
		r, err := history.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		made, last = made+r.Steps*uint64(r.Round), r
	}
	if made != 20*11 || last.OptimizerSteps != 20*11 {
		t.Errorf("%d optimizer steps, the last row says %d; want %d", made, last.OptimizerSteps,
			20*11)
	}
	if out := history.Compact([]byte("foreign\n"), 100); len(out) > 0 {
		t.Errorf("of nothing: %q", out)
	}
}

// Rounds of several lengths are in a row: how many optimizer steps these are follows from the row
// before, else from the samples.
func TestMadeSteps(t *testing.T) {
	four := history.Row{Step: 8, Steps: 4, OptimizerSteps: 28, Round: 4, Batch: 64,
		Samples: 14*64 - 7}
	for what, c := range map[string]struct {
		row    history.Row
		before *history.Row
		want   uint64
	}{
		"behind its neighbour": {four, &history.Row{Step: 4, OptimizerSteps: 15, Round: 4}, 13},
		"behind single steps": {history.Row{Step: 8, Steps: 4, OptimizerSteps: 17, Round: 4},
			&history.Row{Step: 4}, 13},
		"behind another run's": {four, &history.Row{Step: 4}, 14},
		"behind a gap":         {four, &history.Row{Step: 3, OptimizerSteps: 15, Round: 4}, 14},
		"of an older version":  {four, &history.Row{Step: 4, Round: 4}, 14},
		"the first":            {four, nil, 14},
		"of unknown samples":   {history.Row{Step: 4, Steps: 4, Round: 4}, nil, 16},
		"of too many": {history.Row{Step: 1 << 53, Steps: 1 << 53, Round: 1 << 31}, nil,
			1 << 53},
		"of single steps": {history.Row{Step: 4, Steps: 4, Batch: 8, Samples: 9}, nil, 4},
	} {
		if got := c.row.Made(c.before); got != c.want {
			t.Errorf("a row %s is of %d steps, want %d", what, got, c.want)
		}
	}
}

// What of the noise is known is in a row, or why it is not, in few bytes.
func TestNoise(t *testing.T) {
	known := history.NewNoise(noise.Estimate{Known: true, Above: true,
		Scale: setting.Band{Low: 1.23456789, Mid: 2, High: 3}})
	if known.Scale.Low != 1.2346 || !known.Above || known.Why != "" {
		t.Errorf("%+v", known)
	}
	for _, e := range []noise.Estimate{{Why: strings.Repeat("x", 999)},
		{Known: true, Scale: setting.Band{Low: 1, Mid: 2, High: math.Inf(1)}}} {
		if n := history.NewNoise(e); n.Scale != nil || n.Why == "" || len(n.Why) > 120 {
			t.Errorf("%+v", n)
		}
	}
}

// Lines that cannot be are refused, in words.
func TestRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "no JSON object",
		`[]`:                                  "no JSON object",
		`{"step":1`:                           "no JSON object",
		`{}`:                                  "0 steps",
		`{"step":1,"steps":2,"size":1}`:       "2 steps",
		`{"step":1,"steps":1,"size":0}`:       "0 members",
		`{"step":1,"steps":1,"size":9999999}`: "9999999 members",
		`{"step":1,"steps":1,"size":1,"batch":18446744073709551615}`:           "a count above",
		`{"step":1,"steps":1,"size":2,"slack":[1]}`:                            "slack of 1 of 2",
		`{"step":1,"steps":1,"size":1,"span":-1}`:                              "a time of -1",
		`{"step":1,"steps":1,"size":1,"seconds":{"p10":2,"median":1,"p90":2}}`: "steps of 2, 1",
		`{"step":1,"steps":1,"size":1,"split":{"data":1e13}}`:                  "a time of 1e+13",
		`{"step":1,"steps":1,"size":1,"noise":{"scale":{"low":0}}}`:            "a noise scale",
		`{"step":1,"steps":1,"size":1,"cable":-1}`:                             "a cable",
		`{"step":1,"steps":1,"size":1,"data":{"from":3,"to":2}}`:               "range 3–2",
		`{"step":1,"steps":1,"size":2,"hosts":[{"name":"a","ranks":[0]}]}`:     "hosts of 1 of 2",
		`{"step":1,"steps":1,"size":1,"hosts":[{"name":"a","ranks":[1]}]}`:     "rank 1",
		`{"step":1,"steps":1,"size":1,"hosts":[{"name":"a"}]}`:                 "without members",
		strings.Repeat(" ", history.MaxLine+1):                                 "the limit",
	} {
		if _, err := history.Parse([]byte(text)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: error %v, expected one with %q", text, err, want)
		}
	}
	if _, err := history.Parse([]byte(`{"step":1,"steps":1,"size":1,"new":{"x":[]}}`)); err != nil {
		t.Errorf("of a newer version: %v", err)
	}
}

// Whatever steps come, rows have each of them once, and can be read.
func TestAllStepsAreInRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r history.Recorder
		steps, got := rapid.IntRange(1, 60).Draw(t, "steps"), uint64(0)
		// take takes a row in.
		take := func(row *history.Row) {
			if row == nil {
				return
			}
			got += row.Steps
			if _, err := history.Parse(row.Encode()); err != nil || row.Step != got {
				t.Fatalf("%s: %v, %d steps are in rows", row.Encode(), err, got)
			}
		}
		for i := range steps {
			over, _ := r.Add(sense.StepSample{Step: uint64(i + 1), Samples: 4,
				Seconds: rapid.Float64Range(0, 20).Draw(t, "seconds"),
				Batch:   rapid.Uint64Range(4, 5).Draw(t, "batch"),
				Size:    rapid.IntRange(1, 2).Draw(t, "size")}, 0)
			take(over)
		}
		take(r.EndRow())
		if got != uint64(steps) {
			t.Fatalf("%d of %d steps are in rows", got, steps)
		}
	})
}

// Whatever bytes a file has, it can be made smaller, and what comes out is read as it was.
func FuzzCompact(f *testing.F) {
	f.Add([]byte(`{"step":1,"steps":1,"size":1}`))
	f.Add([]byte("{\"step\":1,\"steps\":1,\"size\":1,\"loss\":3}\n" +
		"{\"step\":2,\"steps\":1,\"size\":1,\"split\":{\"data\":3}}\n" +
		"{\"step\":3,\"steps\":1,\"size\":1,\"slack\":[2]}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		out := history.Compact(b, 1<<20)
		for i, line := range bytes.Split(bytes.TrimSuffix(out, []byte("\n")), []byte("\n")) {
			if _, err := history.Parse(line); err != nil && len(out) > 0 {
				t.Error(fmt.Errorf("line %d of %q: %w", i, out, err))
			}
		}
	})
}
