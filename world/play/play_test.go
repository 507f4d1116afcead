package play_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/world/play"
	"github.com/shoal-ml/shoal/world/scenario"
)

// playText plays a scenario, or fails the test.
func playText(t testing.TB, text string) *play.Result {
	s, err := scenario.Parse(text, play.PolicyNames(), "")
	if err != nil {
		t.Fatal(err)
	}
	r, err := play.Play(s, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What the scenarios in testdata expect holds, and a second time they come to the same bytes.
func TestScenarios(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txt")
	if len(files) == 0 {
		t.Fatal("no scenarios")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r := playText(t, string(text))
			one, err := json.MarshalIndent(r, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range r.Checks {
				t.Logf("line %d, %q: %.4g", c.Line, c.Text, float64(c.Value))
				if !c.Holds {
					t.Errorf("line %d, %q: it is %v", c.Line, c.Text, float64(c.Value))
				}
			}
			if t.Failed() || testing.Verbose() {
				t.Logf("%s", one)
			}
			if two, _ := json.MarshalIndent(playText(t, string(text)), "", " "); !bytes.Equal(one,
				two) {
				t.Error("it comes to something else when it is played again")
			}
		})
	}
}

// Whatever a job is and whatever happens to it, 150 steps later policies lose hardly any
// goodput against the batch that the program states, and changes follow each other as they must.
func TestPoliciesDoNoHarm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// from draws a number from low to high, evenly in its logarithm.
		from := func(name string, low, high float64) float64 {
			return low * math.Pow(high/low, rapid.Float64Range(0, 1).Draw(t, name))
		}
		hosts := rapid.IntRange(2, 8).Draw(t, "hosts")
		noise := from("noise", 50, 10_000)
		who := rapid.SampledFrom([]string{"batch", "shares", "size", "batch shares size"}).Draw(t,
			"policy")
		sizes := ""
		if strings.Contains(who, "size") {
			sizes = " range 1-8"
		}
		text := fmt.Sprintf("hosts %d%s cable %.0fMbit\ncompute %.3fms + %.4fms/sample sd %d%%\n"+
			"gradients %.0fkB\ndata 50000 batch %d range 16-4096\nnoise %.0f growing to %.0f\n"+
			"target 50 epochs\nrun 600 steps\npolicy %s\ncosts loss 1s join 1s change 20ms\n"+
			"expect goodput >= 0.6 of first after 150 steps\nexpect samples once\n", hosts, sizes,
			from("cable", 100, 10_000), from("fixed", 1, 100), from("each", 0.05, 2),
			rapid.IntRange(0, 20).Draw(t, "sd"), from("gradients", 10, 50_000),
			rapid.IntRange(16, 512).Draw(t, "batch"), noise, noise*from("growth", 1, 10),
			who)
		for range rapid.IntRange(0, 4).Draw(t, "events") {
			what := rapid.SampledFrom([]string{"slow h%d 2x", "cable h%d 50Mbit", "lose h%d",
				"join h%d"}).Draw(t, "event")
			// The first host stays, so that the job goes on.
			host := rapid.IntRange(2, hosts).Draw(t, "host")
			text += fmt.Sprintf("at step %d "+what+"\n", rapid.IntRange(0, 300).Draw(t, "at"), host)
		}
		s, err := scenario.Parse(text, play.PolicyNames(), "")
		if err != nil {
			t.Fatalf("%s\n%v", text, err)
		}
		r, err := play.Play(s, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range r.Checks {
			if !c.Holds {
				t.Errorf("%s\n%s: it is %v", text, c.Text, c.Value)
			}
		}
		open, number := false, uint64(0)
		for _, c := range r.Entries {
			if c.IsAtOnce() && !open && c.Number == number+1 {
				number++
				continue
			}
			if c.Phase.IsEnd() != open || !open && c.Number != number+1 ||
				open && c.Number != number {
				t.Fatalf("%s\nchange %d is %s after change %d", text, c.Number, c.Phase, number)
			}
			open, number = c.Phase == setting.Entered, c.Number
		}
	})
}

// A host that becomes slow has a name within ten steps.
func TestSlowHostIsNamed(t *testing.T) {
	text, err := os.ReadFile("testdata/slow_host.txt")
	if err != nil {
		t.Fatal(err)
	}
	r := playText(t, string(text))
	for _, w := range r.WhyNots {
		if w.First > 300 && w.First <= 310 && strings.HasPrefix(w.Why, "rank 1 on h2 takes") {
			return
		}
	}
	t.Errorf("within ten steps of step 300 nobody says it: %+v", r.WhyNots)
}

// A job whose steps take no time is refused: it would never come to its end in time.
func TestStepsTakeTime(t *testing.T) {
	s, err := scenario.Parse("hosts 2\ncompute 0ms\ndata 100 batch 10\ncosts loss 1s\n"+
		"run 1s\nat step 0 lose h2", nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := play.Play(s, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "takes no time") {
		t.Error(err)
	}
}

// A person's change ends the trial of a policy, and the policy leaves that lever alone from then
// on. What the job is not open to is said and not done.
func TestPersonsGoFirst(t *testing.T) {
	const text = `hosts 4 cable 10Gbit
compute 30ms + 0.2ms/sample
data 100000 batch 64 range 32-2048
noise 3000
policy kungfu batch
run 300 steps
`
	if s, err := scenario.Parse(text, play.PolicyNames(), ""); err != nil {
		t.Fatal(err)
	} else if _, err := play.Play(s, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "both change") {
		t.Errorf("two policies of the batch: %v", err)
	}
	r := playText(t, strings.Replace(text, "kungfu ", "", 1))
	first := r.Entries[0]
	r = playText(t, strings.Replace(text, "kungfu ", "", 1)+
		fmt.Sprintf("at step %d set batch=100\nat step 200 set batch=100\n", first.Step+7))
	var got []string
	for _, c := range r.Entries {
		got = append(got, fmt.Sprintf("%d %s %s", c.Number, c.Phase, c.Who))
	}
	if want := "1 entered , 1 void , 2 entered scenario, 2 kept scenario"; strings.Join(got,
		", ") != want {
		t.Errorf("changes: %q, want %q", got, want)
	}
	why := ""
	for _, w := range r.WhyNots {
		if w.Policy == "scenario" {
			why += w.Why
		}
	}
	if !strings.Contains(why, "already") {
		t.Errorf("the second time nothing changes, because %q", why)
	}
}

// On a machine whose load changes, so that the rate of the job goes up and down by half for
// hundreds of steps, few changes are made.
func TestContendedMachine(t *testing.T) {
	most := 0
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 7))
		start := [][2]int{{40, 64}, {300, 128}, {1000, 512}}[seed%3]
		text := fmt.Sprintf("hosts 2 cable 10Gbit\ncompute 30ms + 0.3ms/sample sd 15%%\n"+
			"gradients 100kB\ndata 20000 batch %d range 32-2048\nnoise %d\nseed %d\npolicy batch\n"+
			"run 2000 steps\nexpect changes <= 3\n", start[1], start[0], seed+1)
		for step := 0; step < 2000; step += 80 + rng.IntN(320) {
			slow := []float64{0.67, 0.8, 1, 1.5, 2}[rng.IntN(5)] * (0.9 + 0.2*rng.Float64())
			text += fmt.Sprintf("at step %d slow h1 %.2fx\nat step %d slow h2 %.2fx\n", step, slow,
				step, slow)
		}
		r := playText(t, text)
		for _, c := range r.Checks {
			if !c.Holds {
				t.Errorf("%s\n%s: it is %v: %+v", text, c.Text, c.Value, r.Entries)
			}
		}
		most = max(most, r.CountChanges())
	}
	t.Logf("%d changes at most", most)
}

// A change that waits for the end of a step is made where a host is lost in that step, as in a job:
// those who are left take their shares of work along.
func TestHostLostBeforeAChange(t *testing.T) {
	r := playText(t, "hosts 4 cable 10Gbit\ncompute 5ms + 2ms/sample sd 2%\ngradients 1MB\n"+
		"data 100000 batch 240 range 60-480\nat step 0 slow h2 2x\npolicy shares\n"+
		"at step 300 set batch=120\nat step 300 lose h1\nrun 400 steps\nexpect batch = 120\n")
	shared := false
	for _, c := range r.Entries {
		shared = shared || c.HasPart("shares") && c.Step < 300
	}
	if !shared || !r.Checks[0].Holds {
		t.Errorf("shares were divided: %v, and the batch is %v: %+v", shared, r.Checks[0].Value,
			r.Entries)
	}
}

// A host that is lost in the step after which a change waits makes the job smaller: the change and
// the end of a trial bring no size of before, and a change to the size that the job has come to is
// not measured.
func TestHostLostBeforeAChangeOfASize(t *testing.T) {
	const text = "hosts 4 range 1-8 cable 10Gbit\ncompute 5ms + 2ms/sample sd 2%\ngradients 1MB\n" +
		"data 100000 batch 240 range 60-480\nat step 300 lose h1\nrun 600 steps\nexpect size = 3\n"
	for set, changes := range map[string]int{"batch=120": 1, "size=3": 0, "batch=120,size=3": 1} {
		r := playText(t, text+fmt.Sprintf("at step 300 set %s\nexpect changes = %d", set, changes))
		for _, c := range r.Checks {
			if !c.Holds {
				t.Errorf("%s: %s: it is %v: %+v", set, c.Text, c.Value, r.Entries)
			}
		}
		for _, c := range r.Entries {
			if c.HasPart("size") {
				t.Errorf("%s is entered as %+v", set, c)
			}
		}
	}
	// A trial of the batch is under way, and its end is on the way, when a host is lost.
	entries := playText(t, text+"at step 250 set batch=120\n").Entries
	end := entries[len(entries)-1].Step
	for step := end; step < end+200; step += 3 {
		r := playText(t, strings.Replace(text, "at step 300", fmt.Sprint("at step ", step), 1)+
			"at step 250 set batch=120\n")
		if !r.Checks[0].Holds {
			t.Fatalf("a host is lost after step %d: %v members: %+v", step, r.Checks[0].Value,
				r.Entries)
		}
	}
}

// With fewer workers than the least a job ends early, and says so.
func TestTooFewWorkersAreLeft(t *testing.T) {
	r := playText(t, "hosts 3 range 3-8\ncompute 5ms\ndata 1000 batch 240\nat step 10 lose h2\n"+
		"run 600 steps\n")
	const want = "2 workers are left, fewer than the minimum of 3, and no host joins"
	if r.Ended != want || r.Steps != 11 {
		t.Errorf("ended %q after %d steps, want %q", r.Ended, r.Steps, want)
	}
}

// A new run that waits for more workers than come says so, and not that no host is left.
func TestNewRunWaitsForEver(t *testing.T) {
	const text = "hosts 2 range 1-2\ncompute 100ms\ndata 50000 batch 128\ncosts save 1s\n" +
		"at 10s lose h1\nat 10s lose h2\nrun 100s\n"
	for more, want := range map[string]string{"": "no host is left",
		"at 20s join h1\n": "a new run begins with 2 workers, 1 is there, and no host joins"} {
		if r := playText(t, text+more); r.Ended != want {
			t.Errorf("%q: ended %q, want %q", more, r.Ended, want)
		}
	}
}

// Whoever decides looks at the job as often as in a running one, however short its steps are: at
// the end of the step in which a quarter of a second is over, and at once when a person asks.
func TestLooksComeAsOftenAsInAJob(t *testing.T) {
	for _, c := range []struct {
		lines string
		want  []uint64 // steps
	}{
		{"compute 7ms", []uint64{36, 72, 108, 143, 179}},
		{"compute 7ms\nat step 50 set batch=20", []uint64{36, 50, 72, 108, 143, 179}},
		{"compute 200ms", []uint64{2, 3, 4, 5, 7}},
		{"compute 300ms", []uint64{1, 2, 3, 4, 5}},
	} {
		s, err := scenario.Parse("hosts 1\ndata 10000 batch 10 range 10-20\nrun 200 steps\n"+
			c.lines, play.PolicyNames(), "")
		if err != nil {
			t.Fatal(err)
		}
		var seen []uint64
		_, err = play.Play(s, nil, func(o sense.Observation) sense.Observation {
			seen = append(seen, o.Step)
			return o
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := seen[:min(len(seen), len(c.want))]; !slices.Equal(got, c.want) {
			t.Errorf("%s: it looks after steps %v, want %v", c.lines, got, c.want)
		}
	}
}

// Right after links have become slow, a trial is not compared with the steps from before that.
// Where a change pays it stays, whenever between two decisions they became so.
func TestTrialsAfterASuddenChange(t *testing.T) {
	for step := 400; step < 480; step++ {
		r := playText(t, fmt.Sprintf("hosts 8 cable 40Gbit\ncompute 20ms + 1.25ms/sample sd "+
			"5%%\ngradients 100MB hidden 60%%\ndata 200000 batch 512 sync auto\nnoise 2000\n"+
			"local 80%% less 10%%\ncosts change 50ms\nat step %d cables 1Gbit\npolicy sync\n"+
			"run %d steps\nexpect changes >= 1\nexpect reverted = 0\n", step, step+60))
		for _, c := range r.Checks {
			if !c.Holds {
				t.Errorf("links are slow after step %d: %s: it is %v: %+v", step, c.Text, c.Value,
					r.Entries)
			}
		}
	}
}
