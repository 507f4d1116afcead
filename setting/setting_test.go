package setting_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/setting"
)

// A setting comes back from its text form, but for its number.
func TestTextForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := setting.Setting{Batch: rapid.Uint64Range(0, 1<<40).Draw(t, "batch"),
			Round: rapid.Uint32Range(0, setting.MaxRound).Draw(t, "round"),
			Rate:  math.Abs(rapid.Float64Range(0, 1e6).Draw(t, "rate")), // no -0
			Save:  rapid.Uint64Range(0, 1<<40).Draw(t, "save"),
			Size:  rapid.Uint32Range(0, setting.MaxSize).Draw(t, "size"),
			Sync: rapid.SampledFrom([]string{"", "ssgd", "local", "sma:alpha=0.1",
				"diloco:lr=0.7:momentum=0.9", "pair", "hybrid:parts=16", "own"}).Draw(t, "sync"),
			Shares: append([]uint16{1}, rapid.SliceOfN(rapid.Uint16(), 0,
				setting.MaxShares-1).Draw(t, "shares")...)}
		got, err := setting.Setting{}.With(want.String())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q comes back as another one (-want +got): %s", want, diff)
		}
	})
}

// A change says what differs and nothing else, and can be undone.
func TestDiff(t *testing.T) {
	for _, x := range []struct{ from, to, before, after, parts string }{
		{"batch=128,save=9", "batch=256,rate=1.5,save=9", "batch=128", "batch=256,rate=1.5",
			"batch,rate"},
		{"shares=2:1", "shares=1:1,sync=ssgd", "shares=2:1", "shares=1:1,sync=ssgd",
			"shares,sync"},
		{"round=1,save=7,rate=2", "batch=1", "round=1,rate=2,save=7", "batch=1",
			"batch,round,rate,save"},
		{"batch=1", "batch=1", "", "", ""},
		{"batch=8,size=2", "batch=8,size=4,save=3", "size=2", "save=3,size=4", "save,size"},
		{"batch=8", "batch=8,shares=2:1,size=4", "", "shares=2:1,size=4", "shares,size"},
		{"round=16,sync=diloco:lr=0.7", "round=8,sync=sma", "round=16,sync=diloco:lr=0.7",
			"round=8,sync=sma", "round,sync"},
	} {
		from, _ := setting.Setting{}.With(x.from)
		to, _ := setting.Setting{}.With(x.to)
		c := setting.Change{}
		c.From, c.To = from.Diff(to)
		if c.From != x.before || c.To != x.after || strings.Join(c.Parts(), ",") != x.parts {
			t.Errorf("from %q to %q: %q to %q in %v", x.from, x.to, c.From, c.To, c.Parts())
		}
		if got, err := c.Undo(to); err != nil || !got.Equal(from) {
			t.Errorf("%+v undone is %q, %v; it was %q", c, got, err, from)
		}
	}
	if _, err := (setting.Change{From: "batch=many"}).Undo(setting.Setting{}); err == nil {
		t.Error("a setting that is none comes back")
	}
}

// Who stays keeps its share, and who is new gets the mean of these. There are none where nobody
// stays who works, or for more ranks than a setting can have shares of.
func TestMoveShares(t *testing.T) {
	many := make([]int, setting.MaxShares+1)
	for rank := range many {
		many[rank] = -1
	}
	many[1] = 0
	for _, x := range []struct{ from, want []int }{
		{[]int{0, 1, 2}, []int{0, 3, 6}},
		{[]int{2, -1, 1}, []int{6, 5, 3}},
		{[]int{0, -1}, nil},
		{[]int{-1}, nil},
		{many, nil},
	} {
		shares := []uint16{0, 3, 6}
		if len(x.from) > setting.MaxShares {
			shares = []uint16{7}
		}
		var got []int
		for _, n := range setting.MoveShares(shares, x.from) {
			got = append(got, int(n))
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("from %v come %v, want %v", x.from, got, x.want)
		}
	}
}

// A change is one line for a person, when it is entered and when it ends.
func TestWords(t *testing.T) {
	c := setting.Change{Number: 3, Phase: setting.Entered, Step: 412, From: "batch=128",
		To: "batch=256,rate=1.4", Because: "the gradient noise scale is 610 (480–790)",
		Predicted: setting.Band{Low: 1.18, Mid: 1.31, High: 1.44}}
	want := func(want string) {
		t.Helper()
		if got := c.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	want("change 3 at step 412: batch 128 -> 256, rate 1.4, because the gradient noise scale is " +
		"610 (480–790); predicted 1.31x goodput (1.18–1.44)")
	c.Phase, c.Measured, c.Steps = setting.Kept, 1.27, 64
	want("change 3 kept: 1.27x over 64 steps, as predicted")
	c.Phase, c.Measured, c.Steps = setting.Reverted, 0.93, 1
	want("change 3 reverted: 0.93x over 1 step, predicted 1.31x (1.18–1.44); batch 256 -> 128, " +
		"rate 1.4 -> as the program has it")
	// what ends against the prediction is said beside it in numbers, though the band holds it
	c.Predicted.Low = 0.8
	c.Why = "slower than before"
	want("change 3 reverted: 0.93x over 1 step, predicted 1.31x (0.8–1.44), slower than before; " +
		"batch 256 -> 128, rate 1.4 -> as the program has it")
	c.Phase, c.Who, c.Why = setting.Kept, "ada", ""
	want("change 3 kept: 0.93x over 1 step, predicted 1.31x (0.8–1.44), kept because ada asked")
	c.Phase, c.Measured, c.Why, c.Who = setting.Void, 0, "worker 2 was lost", ""
	want("change 3 void: worker 2 was lost")
	c = setting.Change{Number: 1, Phase: setting.Entered, To: "batch=64", Because: "ada asked"}
	want("change 1 at step 0: batch 64, because ada asked")
	c.Phase = setting.Kept
	want("change 1 kept")
	if c.Phase = setting.Void; c.IsNews() {
		t.Error("a person's change that another has cut short is no news")
	}
	if c.Policy = "batch"; !c.IsNews() {
		t.Error("the end of a policy's change is news")
	}
	c = setting.Change{Number: 4, Phase: setting.Entered, Step: 9, To: "save=570",
		Predicted: setting.Band{Low: 0.9982, Mid: 1.0021, High: 1.0043}}
	want("change 4 at step 9: save 570; predicted 1.002x goodput (0.9982–1.004)")
	c = setting.Change{Number: 5, Phase: setting.Kept, Policy: "batch", Step: 20, From: "rate=1.4",
		To: "rate=1.6", Because: "the noise grows"}
	want("change 5 at step 20: rate 1.4 -> 1.6, because the noise grows")
	if !c.IsAtOnce() || c.IsNews() {
		t.Error("a policy's change of the rate alone is news")
	}
	if c.Policy = ""; c.IsAtOnce() {
		t.Error("a person's change of the rate ends at once")
	}
	c = setting.Change{Number: 2, Phase: setting.Entered, To: "shares=3:1"}
	want("change 2 at step 0: shares equal -> 3:1")
}

// A person sets the batch, with which the rate goes, and nothing that does nothing.
func TestAsked(t *testing.T) {
	had := setting.Setting{Number: 2, Batch: 64, Rate: 1.5}
	for text, want := range map[string]setting.Setting{
		"batch=256":          {Number: 2, Batch: 256},
		"batch=256,rate=1.2": {Number: 2, Batch: 256, Rate: 1.2},
		"rate=3":             {Number: 2, Batch: 64, Rate: 3},
		"shares=2:1":         {Number: 2, Batch: 64, Rate: 1.5, Shares: []uint16{2, 1}},
		"save=9":             {Number: 2, Batch: 64, Rate: 1.5, Save: 9},
		"round=8":            {Number: 2, Batch: 64, Rate: 1.5, Round: 8},
		"sync=ssgd":          {Number: 2, Batch: 64, Rate: 1.5, Round: 1, Sync: "ssgd"},
		"sync=diloco:lr=0.7,round=8": {Number: 2, Batch: 64, Rate: 1.5, Round: 8,
			Sync: "diloco:lr=0.7"},
	} {
		got, err := had.WithRequested(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got): %s", text, err, diff)
		}
	}
	for text, want := range map[string]string{
		"batch=many":            "such as 512",
		"btach=9":               "did you mean batch?",
		"sync=diloco,lr=0.7":    "lr is an option of sync, and follows it after a colon",
		"round=8,sync=a,round=": "round is given twice",
	} {
		got, err := had.WithRequested(text)
		if err == nil || !strings.Contains(err.Error(), want) || !got.Equal(had) {
			t.Errorf("%s: %v, %v; want an error with %q", text, got, err, want)
		}
	}
}

// What is no setting is refused, with words that help.
func TestRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "write NAME=VALUE",
		"sync=pair:seed=7":         "is no option of pair",
		"sync=sma:alpha=2":         "no number that can be",
		"sync=hybrid:parts=1.5":    "no number that can be: write parts=16",
		"sync=hybrid:parts=1025":   "no number that can be",
		"sync=pair:parts=2":        "is no option of pair",
		"sync=diloco:momentum=1":   "no number that can be",
		"sync=diloco:lr=0x1p-1":    "no number that can be",
		"sync=diloco:lr=-1":        "no number that can be",
		"batch":                    "write NAME=VALUE",
		"batch=":                   "write NAME=VALUE",
		"bacth=1":                  "did you mean batch?",
		"batch=0":                  "such as 512",
		"batch=-1":                 "such as 512",
		"batch=1e99":               "such as 512",
		"batch=1,batch=x":          "such as 512",
		"rate=nan":                 "rate=NaN",
		"rate=0":                   "such as 1.4",
		"rate=x":                   "such as 1.4",
		"shares=1:x":               "such as 2:1:1",
		"shares=0:0":               "somebody must do the work",
		"shares=1:70000":           "such as 2:1:1",
		"round=65537":              "up to 65536 steps",
		"round=0":                  "such as 8",
		"sync=dilocco":             "there are ssgd, local, diloco, sma, pair, hybrid (did you",
		"sync=sma:lr=1":            "is no option of sma, or is given twice: it takes alpha, mom",
		"sync=local:lr=1":          "it takes none",
		"sync=diloco:rl=1":         "did you mean lr?",
		"sync=sma:alpha=x":         `"x" is no number that can be: write alpha=0.5`,
		"sync=sma:alpha=NaN":       "is no number that can be",
		"sync=sma:alpha=1:alpha=1": "is given twice",
		"sync=sma:alpha=0." + strings.Repeat("0", 200): "up to 128",
		"save=0":     "such as 100",
		"size=0":     "such as 4",
		"size=65537": "up to 65536 workers",
		"size=2^33":  "such as 4",
		"batch=2^63": "such as 512",
		"shares=1" + strings.Repeat(":1", setting.MaxShares): "up to 256 ranks",
	} {
		if _, err := (setting.Setting{}).With(text); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, expected one with %q", text, err, want)
		}
	}
}

// A lever that the program has not opened stays closed, and one that is open has its range.
func TestLevers(t *testing.T) {
	from := setting.Setting{Batch: 128}
	open := setting.Levers{Batch: setting.Range{From: 64, To: 512}}
	wide := setting.Levers{Size: setting.Range{From: 1, To: 4}, Save: true}
	loose, err := setting.SyncLevers("diloco", 16, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		levers setting.Levers
		to     setting.Setting
		want   string
	}{
		{setting.Levers{}, setting.Setting{Batch: 256}, "the batch is closed"},
		{open, setting.Setting{Batch: 1024}, "64–512"},
		{open, setting.Setting{Batch: 32}, "64–512"},
		{open, setting.Setting{Batch: 256, Round: 9}, "how workers synchronise is closed"},
		{open, setting.Setting{Batch: 256, Sync: "local"}, "how workers synchronise is closed"},
		{loose, setting.Setting{Batch: 128, Round: 9}, ""},
		{loose, setting.Setting{Batch: 128, Sync: "local", Round: 9}, ""},
		{loose, setting.Setting{Batch: 128, Sync: "ssgd", Round: 9}, "which is round=1: for"},
		{loose, setting.Setting{Batch: 128, Sync: "own"}, "sync is closed where"},
		{loose, setting.Setting{Batch: 128, Sync: "lokal"}, "did you mean local?"},
		{setting.Levers{Sync: "own", Round: 2}, setting.Setting{Batch: 128, Sync: "local"},
			"(job.steps(…, local_steps=…))"},
		{setting.Levers{Sync: "own", Round: 2}, setting.Setting{Batch: 128, Round: 7}, ""},
		{open, setting.Setting{Batch: 512}, ""},
		{setting.Levers{}, setting.Setting{Batch: 128, Rate: 2}, "the rate is closed"},
		{open, setting.Setting{Batch: 128, Rate: 2}, ""},
		{open, setting.Setting{}, ""},
		{setting.Levers{}, from, ""},
		{open, setting.Setting{Batch: 128, Size: 3}, "give shoal run --max"},
		{wide, setting.Setting{Batch: 128, Size: 5}, "outside of what the job may have, 1–4"},
		{wide, setting.Setting{Batch: 128, Size: 4}, ""},
		{open, setting.Setting{Batch: 128, Save: 3}, `every="auto") opens them`},
		{wide, setting.Setting{Batch: 128, Save: 3}, ""},
		{setting.Levers{Alike: true}, setting.Setting{Batch: 128, Shares: []uint16{2, 1}},
			"the shares of work are closed: the program averages"},
		{setting.Levers{Alike: true}, setting.Setting{Batch: 128, Shares: []uint16{3, 3}}, ""},
		{setting.Levers{}, setting.Setting{Batch: 128, Shares: []uint16{2, 1}}, ""},
	} {
		err := x.levers.CheckChange(from, x.to)
		if (err != nil) != (x.want != "") || err != nil && !strings.Contains(err.Error(), x.want) {
			t.Errorf("to %q with %v: error %v, expected %q", x.to, x.levers, err, x.want)
		}
	}
}

// A program opens the batch by a range that contains the one it begins with.
func TestOpenBatch(t *testing.T) {
	for _, x := range []struct {
		list []uint64
		want string
	}{
		{[]uint64{64, 1024}, ""},
		{[]uint64{128, 128}, ""},
		{nil, ""},
		{[]uint64{64}, "[64] is no range of batches"},
		{[]uint64{1024, 64}, "[1024 64] is no range"},
		{[]uint64{0, 512}, "[0 512] is no range"},
		{[]uint64{64, 1 << 63}, "is no range"},
		{[]uint64{64, 127}, "64–127 does not contain the batch 128"},
		{[]uint64{129, 512}, "129–512 does not contain the batch 128"},
	} {
		l, err := setting.BatchLevers(128, x.list)
		if (err != nil) != (x.want != "") || err != nil && !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v: error %v, expected %q", x.list, err, x.want)
		}
		if err == nil && x.list != nil && l.Batch != (setting.Range{x.list[0], x.list[1]}) {
			t.Errorf("%v opens %v", x.list, l.Batch)
		}
	}
}

// A program states both how workers synchronise and after how many steps, or nothing.
func TestOpenSync(t *testing.T) {
	for _, x := range []struct {
		sync  string
		round uint32
		auto  bool
		want  string
	}{
		{"", 0, false, ""}, {"ssgd", 1, false, ""}, {"own", 5, false, ""},
		{"sma:alpha=0.1", setting.MaxRound, false, ""}, {"ssgd", 1, true, ""},
		{"ssgd", 2, false, "which is round=1"},
		{"local", 0, false, "state both, the steps from 1 to 65536"},
		{"", 4, false, "state both"}, {"local", setting.MaxRound + 1, false, "state both"},
		{"locl", 4, false, "did you mean local?"}, {"own", 5, true, "averages by itself"},
		{"", 0, true, "state both"},
	} {
		l, err := setting.SyncLevers(x.sync, x.round, x.auto)
		if (err != nil) != (x.want != "") || err != nil && !strings.Contains(err.Error(), x.want) ||
			l.Sync != x.sync && x.want == "" {
			t.Errorf("%q, %d opens %+v, %v; expected %q", x.sync, x.round, l, err, x.want)
		}
	}
}

// What a program states is changed by people alone, and what it leaves to the job by policies
// too.
func TestAuto(t *testing.T) {
	from := setting.Setting{Sync: "ssgd", Round: 1}
	to := setting.Setting{Sync: "local", Round: 16}
	for _, auto := range []bool{false, true} {
		l, err := setting.SyncLevers("ssgd", 1, auto)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.CheckChange(from, to); err != nil {
			t.Errorf("auto=%v: a person is refused: %v", auto, err)
		}
		err = l.CheckPolicyChange(from, to)
		if (err == nil) != auto || (l.WhyNotAuto() == "") != auto {
			t.Errorf("auto=%v: a policy gets %v, %q", auto, err, l.WhyNotAuto())
		}
		other := l
		other.Auto = !auto
		if l.CheckSync(l, true) != nil || l.CheckSync(other, false) == nil {
			t.Errorf("auto=%v: %v, %v", auto, l.CheckSync(l, true), l.CheckSync(other, false))
		}
	}
	if err := (setting.Levers{}).CheckPolicyChange(from, from); err != nil {
		t.Errorf("what stays is refused: %v", err)
	}
}

// Whatever text comes in, With panics never and gives no setting that Validate refuses.
func FuzzWith(f *testing.F) {
	f.Add("batch=512,shares=2:1:1,save=3")
	f.Add("rate=1e-9,sync=ssgd,round=1")
	f.Add("sync=diloco:lr=0.7:momentum=0.9,round=16")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := setting.Setting{}.With(text)
		if err != nil {
			return
		}
		if err := s.Validate(); err != nil {
			t.Errorf("%q gives a setting that is refused: %v", text, err)
		}
	})
}

// Texts of a change are cut at the end of a character, and a change that is cut can be.
func TestCut(t *testing.T) {
	long := strings.Repeat("ä", setting.MaxText)
	c := setting.Change{Phase: setting.Entered, Policy: long, Because: "\xff" + long,
		Alternatives: []string{long, "b", "c", "d"}}
	if c.Validate() == nil {
		t.Error("a change with long texts passes")
	}
	got := c.WithShortTexts()
	cut := strings.Repeat("ä", setting.MaxText/2-2) + "…"
	if err := got.Validate(); err != nil || got.Policy != cut || got.Because != "?"+cut ||
		len(got.Alternatives) != 3 || len(c.Alternatives) != 4 {
		t.Errorf("cut: %+v, %v", got, err)
	}
	unclean := setting.Change{Because: "a\nb\x1b[2Jc"}
	if got := unclean.WithShortTexts().Because; got != "a b [2Jc" {
		t.Errorf("a reason is printed as %q", got)
	}
	for _, c := range []setting.Change{{}, {Phase: "over"},
		{Phase: setting.Kept, Rate: math.NaN()}, {Phase: setting.Kept, Measured: math.Inf(1)},
		{Phase: setting.Void, From: strings.Repeat("x", 1<<12)}} {
		if c.Validate() == nil {
			t.Errorf("%+v passes", c)
		}
	}
}

// A person who gives a part twice is asked which one is meant.
func TestAskedTwice(t *testing.T) {
	_, err := setting.Setting{Batch: 64}.WithRequested("batch=128,batch=256")
	if err == nil || err.Error() != "batch is given twice: leave one out" {
		t.Errorf("error %v", err)
	}
}

// A checkpoint of workers with an anchor, and one of a program that averages by itself, are not for
// each other.
func TestCheckResumed(t *testing.T) {
	for _, x := range []struct {
		states, has string
		fits        bool
	}{{"own", "", true}, {"local", "", true}, {"own", "own", true}, {"local", "diloco:lr=1", true},
		{"ssgd", "sma", true}, {"own", "diloco", false}, {"local", "own", false}} {
		err := setting.Levers{Sync: x.states, Round: 4}.CheckResumed(x.has)
		if (err == nil) != x.fits {
			t.Errorf("a program with sync=%s, a checkpoint with %q: %v", x.states, x.has, err)
		}
	}
}

// What goes with a replica: by sma the rounds that it has not given, by pair a step of the
// worker, and never more than it has made; elsewhere nothing.
func TestReplicaSamples(t *testing.T) {
	for _, x := range []struct {
		sync    string
		round   uint32
		workers int
		steps   uint64
		want    float64
	}{
		{"ssgd", 1, 4, 100, 0}, {"local", 16, 4, 100, 0}, {"hybrid", 16, 4, 100, 0},
		{"pair", 16, 4, 100, 16}, {"sma", 1, 4, 100, 16 * 9}, {"sma", 2, 4, 100, 2 * 16 * 9},
		{"sma:momentum=0.9:alpha=0.2", 1, 4, 100, 16 * 4}, // 1/5 is what four workers have at most
		{"sma:alpha=1", 1, 4, 100, 16 * 4}, {"sma", 1, 4, 3, 16 * 3}, {"sma", 1, 0, 3, 0},
	} {
		s := setting.Setting{Batch: 64, Sync: x.sync, Round: x.round}
		if got := s.ReplicaSamples(x.workers, x.steps); math.Abs(got-x.want) > 1e-9 {
			t.Errorf("%+v: %v", x, got)
		}
	}
}

// What a person sets is theirs until they leave it to policies again, with what goes with it; both
// are told by a change, also where no value changes.
func TestPeople(t *testing.T) {
	had := setting.Setting{Number: 4, Batch: 64, Rate: 1.5, Round: 8, Sync: "local", Save: 9,
		People: map[string]uint64{"batch": 2, "rate": 2, "save": 3}}
	for _, x := range []struct {
		text, from, to string
		people         map[string]uint64
		atOnce         bool
		words          string
	}{
		{"save=9", "", "", map[string]uint64{"batch": 2, "rate": 2, "save": 3}, false, ""},
		{"round=8", "round=8", "round=8",
			map[string]uint64{"batch": 2, "rate": 2, "save": 3, "round": 5}, true,
			"round stays 8"},
		{"batch=auto", "batch=64,rate=1.5", "batch=auto,rate=auto", map[string]uint64{"save": 3},
			true, "batch 64 -> auto, rate 1.5 -> auto"},
		{"save=auto,round=4", "round=8,save=9", "round=4,save=auto",
			map[string]uint64{"batch": 2, "rate": 2, "round": 5}, false,
			"round 8 -> 4, save 9 -> auto"},
		{"batch=auto,rate=1.5", "batch=64", "batch=auto", map[string]uint64{"rate": 2, "save": 3},
			true, "batch 64 -> auto"},
		{"save=5,round=8", "save=9", "save=5",
			map[string]uint64{"batch": 2, "rate": 2, "save": 5, "round": 5}, false,
			"save 9 -> 5"},
		{"sync=auto", "", "", map[string]uint64{"batch": 2, "rate": 2, "save": 3}, false, ""},
	} {
		next, err := had.WithRequested(x.text)
		c := setting.Change{Number: 5, Phase: setting.Entered, Who: "ada"}
		c.From, c.To = had.DiffRequested(next)
		if err != nil || c.From != x.from || c.To != x.to || c.IsAtOnce() != x.atOnce ||
			c.DiffText() != x.words {
			t.Errorf("%s: %+v, %v", x.text, c, err)
		}
		if c.IsAtOnce() {
			c.Phase = setting.Kept
		}
		if diff := cmp.Diff(x.people, next.EnteredBy(c, had).People); diff != "" && c.To != "" {
			t.Errorf("%s (-want +got): %s", x.text, diff)
		}
		if text := c.String(); c.To != "" && (!c.IsNews() ||
			text != "change 5 at step 0: "+x.words) {
			t.Errorf("%s: %s", x.text, text)
		}
	}
	if next, _ := had.WithRequested("batch=auto"); next.Rate != 0 || next.Batch != 64 {
		t.Errorf("the rate that goes with a batch of a person is kept without it: %+v", next)
	}
	if _, err := had.WithRequested("bacth=auto"); err == nil {
		t.Error("a part of another name is left to policies")
	}
}
