package scenario_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/world/job"
	"github.com/shoal-ml/shoal/world/scenario"
)

// policies are those that scenarios of tests can name.
var policies = []string{"batch", "kungfu"}

// whole is a scenario with every kind of line.
const whole = `
# A job with everything.
hosts 4 workers 2 cable 1Gbit machines 2 cores 8
compute 30ms + 0.2ms/sample sd 5% cpu 1.5
wait 2ms                       # for samples
gradients 100MB hidden 60% route ring/256x4
latency 100us
data 50000 batch 128 range 32-1024
noise 600 growing to 4000 dims 1000
target 10 epochs
costs join 2s release 100ms loss 1s change 50ms
at step 200 cable h2 100Mbit
at 30s notice h3 120s
at step 300 slow h2 3x
at 1min lose h4
at step 0 join h5
at step 400 set batch=256
policy batch
seed 7
run 2000 steps
expect goodput >= 0.95 of best after 12 steps
expect time < 5min
expect samples once
`

// Every kind of line says what it says.
func TestParse(t *testing.T) {
	s, err := scenario.Parse(whole, policies, "")
	if err != nil {
		t.Fatal(err)
	}
	h := s.Job.Hosts[3]
	if len(s.Job.Hosts) != 5 || !s.Job.Hosts[4].Out || h.Out || h.Machine != 1 || h.Workers != 2 ||
		h.Cable != 8e-9 || h.Fixed != 0.03 || math.Abs(h.PerSample-0.0002) > 1e-12 ||
		h.Processors != 1.5 || h.Wait != 0.002 || len(h.Residuals) == 0 {
		t.Errorf("hosts: %d, the fourth has %+v", len(s.Job.Hosts), h)
	}
	if diff := cmp.Diff([]float64{8, 8}, s.Job.Cores); diff != "" {
		t.Error(diff)
	}
	if s.Job.Gradients != 100e6 || s.Job.Hidden != 0.6 || s.Job.Route.Streams != 4 ||
		s.Job.Route.Strategy != (collective.Ring{}) ||
		math.Abs(s.Job.Network.Alpha-1e-4) > 1e-12 {
		t.Errorf("network: %d bytes, %v hidden, %v, %+v", s.Job.Gradients, s.Job.Hidden,
			s.Job.Route, s.Job.Network)
	}
	if s.Job.Data.Samples != 50000 || s.Job.Data.Batch != 128 || s.Job.Seed != 7 ||
		s.Job.Levers.Batch != (setting.Range{From: 32, To: 1024}) {
		t.Errorf("data: %+v, %+v", s.Job.Data, s.Job.Levers)
	}
	noise := job.Noise{From: 600, To: 4000, Dims: 1000, Target: 500_000}
	costs := job.Costs{Join: 2, Release: 0.1, Loss: 1, Change: 0.05}
	if s.Job.Noise != noise || s.Job.Costs != costs || s.Progress != 500_000 || s.Steps != 2000 ||
		s.Seconds != 0 {
		t.Errorf("noise, costs and end: %+v, %+v, %v, %v, %v", s.Job.Noise, s.Job.Costs,
			s.Progress, s.Steps, s.Seconds)
	}
	events := []job.Event{
		{Step: 200, What: job.Cable, Host: 1, Value: 8e-8, Text: "at step 200 cable h2 100Mbit"},
		{At: 30, Timed: true, What: job.Notice, Host: 2, Value: 120,
			Text: "at 30s notice h3 120s"},
		{Step: 300, What: job.Slow, Host: 1, Value: 3, Text: "at step 300 slow h2 3x"},
		{At: 60, Timed: true, What: job.Lose, Host: 3, Text: "at 1min lose h4"},
		{What: job.Join, Host: 4, Text: "at step 0 join h5"}}
	if diff := cmp.Diff(events, s.Job.Events); diff != "" {
		t.Errorf("events (-want +got): %s", diff)
	}
	if diff := cmp.Diff([]scenario.Ask{{Step: 400, To: "batch=256"}}, s.Asked); diff != "" {
		t.Errorf("asked (-want +got): %s", diff)
	}
	expected := []scenario.Expectation{
		{Line: 21, Text: "expect goodput >= 0.95 of best after 12 steps", What: "goodput", Op: ">=",
			Value: 0.95, Of: "best", After: 12},
		{Line: 22, Text: "expect time < 5min", What: "time", Op: "<", Value: 300},
		{Line: 23, Text: "expect samples once", What: "samples"}}
	if diff := cmp.Diff(expected, s.Expected); diff != "" {
		t.Errorf("expected (-want +got): %s", diff)
	}
	if diff := cmp.Diff([]string{"batch"}, s.Policies); diff != "" {
		t.Error(diff)
	}
	if _, err := job.New(s.Job); err != nil {
		t.Error(err)
	}
}

// least is the shortest scenario.
const least = "hosts 1\ncompute 30ms\ndata 1000 batch 10\n"

// What is not said has its usual value.
func TestLeast(t *testing.T) {
	s, err := scenario.Parse(least, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if s.Steps != 1000 || s.Job.Seed != 1 || s.Job.Noise.From != 0 || s.Policies != nil ||
		s.Job.Levers.Batch.IsOpen() || s.Job.Hosts[0].Workers != 1 {
		t.Errorf("%+v", s)
	}
	for _, end := range []string{"run 1e11h", "target 1e12 epochs"} { // it ends all the same
		if s, err := scenario.Parse(least+end, nil, ""); err != nil || s.Steps != 100_000_000 {
			t.Errorf("%s: %v, %+v", end, err, s)
		}
	}
}

// Another seed than the text's draws everything anew: the order of samples, and what happens.
func TestSeeded(t *testing.T) {
	text := "hosts 4 cable 1Gbit\ncompute 30ms\ndata 1000 batch 10\nseed 3\nrun 9h\n" +
		"spot calm 1h storm 1h lose 20min back 5min\n"
	// events returns what happens by chance, with a seed; 0 = that of the text.
	events := func(seed uint64) string {
		s, err := scenario.Parse(text, nil, "")
		if seed > 0 {
			s, err = scenario.ParseSeeded(text, nil, "", seed)
		}
		if err != nil {
			t.Fatal(err)
		}
		if seed > 0 && (s.Job.Seed != seed || s.Job.Data.Seed != seed) {
			t.Errorf("seed %d: the job has %d and its data %d", seed, s.Job.Seed, s.Job.Data.Seed)
		}
		return fmt.Sprint(s.Job.Events)
	}
	if own := events(0); own != events(3) || own == events(4) {
		t.Errorf("seeds do not say what happens: %s", own)
	}
}

// What is no scenario is refused with the line, the word, and what could stand there.
func TestRefusals(t *testing.T) {
	for text, wants := range map[string][]string{
		"":                     {`no line "hosts"`, "hosts 4"},
		"hosts 1\ncompute 1ms": {`no line "data"`},
		"hosts 2\ncompute 1ms\ndata 9 batch 3\nrun 300 steps\nat step 300 lose h2": {
			"line 5: this does not happen: by line 4 the job ends after 300 steps"},
		"hosts 2\ncompute 1ms\ndata 9 batch 3 range 3-6\nat step 1000 set batch=6": {
			"line 4: this does not happen: without a line run the job ends after 1000 steps"},
		"hosts 2\ncompute 1ms\ndata 9 batch 3\nat 1min lose h2\nrun 59s": {
			"line 4: this does not happen: by line 5 the job ends after 59 s"},
		"hots 4":                           {"line 1", `"hots"`, "did you mean hosts?"},
		"hosts":                            {"line 1", "a number of hosts"},
		"hosts x":                          {`"x" is not a number of hosts`, "hosts 4 cable 1Gbit"},
		"hosts 99999":                      {"from 1 to 10000"},
		"hosts 4 cabel 1Gbit":              {"did you mean cable?"},
		"hosts 4 cable 1Gb":                {`"1Gb" is not a rate`},
		"hosts 4 cable 0Gbit":              {"carries nothing"},
		"hosts 4 cable":                    {`after "cable" comes a rate`},
		"compute 30":                       {`"30" is not a time`},
		"compute 30ms + 2ms":               {"0.2ms/sample"},
		"compute 30ms + x/sample":          {`"x" is not a time a sample`},
		"compute 30ms sd 200%":             {"more than 100%"},
		"compute -3ms":                     {"from 0 to"},
		"compute nans":                     {`"nans" is not a time`},
		"compute infs":                     {"from 0 to"},
		"compute 0x1p3s":                   {"is not a time"},
		"gradients 3bytes":                 {"is not a size"},
		"gradients 3MB route rng/256":      {"no route", "ring"},
		"memory 2GB + 3MB of 4GB":          {"10MiB/sample"},
		"memory 2GB":                       {"+ or of"},
		"memory 2GB of 0GB":                {"without memory"},
		"data 100 batch 10 range 64-32":    {"reversed"},
		"data 100 batch 10 range 64":       {"the largest batch"},
		least + "data 5 batch 1":           {"line 4: line 3 says data already"},
		"noise 0":                          {"below 1 sample"},
		"target 10":                        {"epochs"},
		"local 120% less 1%":               {"at most 100%"},
		"local 80%":                        {"less"},
		"spot calm 4h storm 1h lose 10min": {"back"},
		"spot calm 0s":                     {"less than a second"},
		"spot calm 4h storm 1h lose 10min back 5min lal 1h": {"did you mean all?"},
		"slowdowns every 1h for 1h":                         {"cable"},
		"data 9 batch 3 sync locl":                          {"did you mean local?"},
		"data 9 batch 3 sync ssgd/4":                        {"which is round=1"},
		"data 9 batch 3 sync local/x":                       {"a number of steps"},
		"data 9 batch 3 sync auto round 4":                  {"which is round=1"},
		"data 9 batch 3 round 4 sync auto":                  {"which is round=1"},
		"data 9 batch 3 round 4 sync ssgd":                  {"which is round=1"},
		least + "slowdowns every 1h for 1h cable 1Mbit":     {"line 4", "run 10h"},
		"costs":                          {"join, release, loss, change, start, save or write"},
		"run 20":                         {"a number of steps or a time"},
		"run 0s":                         {"no time"},
		"policy":                         {"batch or kungfu"},
		"policy bacth":                   {"did you mean batch?"},
		"at step 3 cable h2":             {"a rate"},
		"at x lose h2":                   {"a time or a step"},
		"at 3s lose 2":                   {"the name of a host"},
		"at 3s slow h2 3":                {"3x"},
		"at 3s set batch=10":             {"hosts and data come"},
		"seed 1 2":                       {`"2" is too much`},
		"expect goodput >= 0.9":          {"of"},
		"expect goodput => 0.9 of best":  {`"=>"`},
		"expect changes <= 3 of best":    {`"of"`},
		"expect size = 3 after 9 steps":  {"after is for goodput, steps/s or samples/s"},
		"expect joy":                     {"goodput, changes"},
		least + "at 3s lose h2":          {"line 4: there is no h2"},
		least + "at 3s set batch=20":     {"the batch is closed", "the line data opens it"},
		least + "at 3s set round=4":      {"is closed", "round or sync in the line data"},
		least + "at 3s set rate=2":       {"no other part"},
		least + "at 3s set save=20":      {"costs save 2s"},
		least + "at 3s set size=2":       {"the size is closed", "the line hosts opens it"},
		"hosts 2 range 4-3":              {"reversed", "the least comes first"},
		least + "noise 10 growing to 20": {"line 4", "target 10 epochs"},
		"hosts 1\ncompute 1ms\ndata 100 batch 10 range 16-32": {"line 3: a batch of 10 is outside"},
		"hosts 2 range 3-8\ncompute 1ms\ndata 100 batch 10":   {"2 workers are outside", "3–8"},
		"hots 4\ncompute x":                          {"line 1", "line 2"},
		least + "at 3s slow h1 0x":                   {"line 4", "in no time"},
		least + "costs save 2s\nexpect samples once": {"line 5", "counts again", "line 4"},
		"hosts 1\ncompute 1ms\ndata 1099511627776 batch 10\nexpect samples once": {"line 4",
			"4294967296 at most"},
	} {
		_, err := scenario.Parse(text, policies, "")
		if err == nil {
			t.Errorf("%q is taken", text)
			continue
		}
		for _, want := range wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: error %q, expected one with %q", text, err, want)
			}
		}
	}
}

// A what-if changes the job from its start, and an error says what can be changed.
func TestWhatIfs(t *testing.T) {
	s, err := scenario.Parse(whole, policies,
		" size=3,batch=512, link h2=100Mbit, link=10Gbit/s, slow h1 = 2x,policy=none")
	if err != nil {
		t.Fatal(err)
	}
	n := len(s.Job.Events)
	first, second := s.Job.Events[n-1], s.Job.Events[n-2]
	if len(s.Job.Hosts) != 5 || !s.Job.Hosts[3].Out || s.Job.Hosts[0].Cable != 8e-10 ||
		first.What != job.Slow || first.Host != 0 || first.Value != 2 || first.At != 0 ||
		second.What != job.Cable || second.Value != 8e-8 || len(s.Policies) > 0 ||
		s.Asked[0] != (scenario.Ask{To: "batch=512"}) {
		t.Errorf("%+v, %+v, %+v, %v", first, second, s.Asked, s.Policies)
	}
	for what, want := range map[string]string{
		"sise=3": "did you mean size?", "size": "a number of hosts", "size=3 4": `"4" is too much`,
		"batch=4096": "from 32 to 1024", "link h9=1Gbit": "there are 5 hosts", ",": `"" cannot stand`,
		"policy=bacth": "did you mean batch?", "slow h2=2": "2x",
	} {
		if _, err := scenario.Parse(whole, policies, what); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", what, err, want)
		}
	}
}

// A what-if whose policy needs numbers that no line has names the what-if, and no line.
func TestWhatIfOfABudgetWithoutNumbers(t *testing.T) {
	const lines = "hosts 2\ncompute 100ms\ndata 1000 batch 10\n"
	known := []string{"batch", "budget"}
	for _, text := range []string{lines, lines + "policy batch\n"} {
		_, err := scenario.Parse(text, known, "policy=budget")
		if err == nil || strings.Contains(err.Error(), "line 0") ||
			!strings.HasPrefix(err.Error(), `"policy=budget": the policy budget needs numbers`) {
			t.Errorf("error %v", err)
		}
	}
	if _, err := scenario.Parse(lines+"budget 0.5 price 2\n", known, "policy=budget"); err != nil {
		t.Error(err)
	}
}

// What a what-if says of a host holds, and not what the lines say of it at the start.
func TestWhatIfReplacesWhatIsAtTheStart(t *testing.T) {
	const lines = "hosts 2\ncompute 100ms\ndata 1000 batch 10\n"
	for _, at := range []string{"", "at step 0 slow h2 3x\n", "at 0s slow h2 3x\n"} {
		s, err := scenario.Parse(lines+at, policies, "slow h2=2x")
		if err != nil {
			t.Fatal(err)
		}
		w, err := job.New(s.Job)
		if err != nil {
			t.Fatal(err)
		}
		if step, _ := w.Step(); step.Seconds != 0.2 {
			t.Errorf("%q: a step takes %v s, want 0.2", at, step.Seconds)
		}
	}
}

// A what-if of all cables holds, and not what the lines say of cables at the start; one of the
// cable of a host holds beside it.
func TestWhatIfOfAllCables(t *testing.T) {
	const lines = "hosts 2 cable 1Gbit\ncompute 1ms\ngradients 10MB\ndata 1000 batch 10\n"
	seconds := func(text, what string) float64 {
		s, err := scenario.Parse(text, policies, what)
		if err != nil {
			t.Fatal(err)
		}
		w, err := job.New(s.Job)
		if err != nil {
			t.Fatal(err)
		}
		step, _ := w.Step()
		return step.Seconds
	}
	for _, what := range []string{"link=10Gbit", "link h2=100Mbit, link=10Gbit",
		"link=10Gbit, link h2=100Mbit"} {
		want := seconds(lines, what)
		if usual := seconds(lines, ""); want == usual {
			t.Fatalf("%q changes nothing", what)
		}
		for _, at := range []string{"step 0 cable h2 20Mbit", "0s cable h1 20Mbit",
			"step 0 cables 20Mbit"} {
			if got := seconds(lines+"at "+at, what); got != want {
				t.Errorf("%q at %s: a step takes %v s, want %v", what, at, got, want)
			}
		}
	}
}

// Averages of gradients in every step are rounds of one step, whatever rounds the job has had; else
// a what-if without a number of steps leaves rounds as they are.
func TestWhatIfOfSync(t *testing.T) {
	const local = "hosts 2\ncompute 1ms\ndata 100 batch 10 round 4"
	for what, round := range map[string]uint32{"sync=ssgd": 1, "sync=pair": 4, "sync=local/2": 2} {
		s, err := scenario.Parse(local, policies, what)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		} else if s.Job.Data.Round != round || s.Job.Levers.Round != round {
			t.Errorf("%s: rounds of %d steps, want %d", what, s.Job.Data.Round, round)
		}
	}
}

// Hosts that only have room for more members are lent and taken away as the others are.
func TestSpotTakesHostsWithRoom(t *testing.T) {
	s, err := scenario.Parse("hosts 2 range 1-6\ncompute 1ms\ndata 100 batch 10\n"+
		"spot calm 1h storm 1h lose 10min back 10min\nrun 100h", policies, "")
	if err != nil {
		t.Fatal(err)
	}
	lost := map[int]bool{}
	for _, e := range s.Job.Events {
		lost[e.Host] = true
	}
	if len(lost) != 5 || lost[0] {
		t.Errorf("of six hosts these are taken away: %v", lost)
	}
}

// TestManyFaults has the error about a file of another kind tell of its first lines alone.
func TestManyFaults(t *testing.T) {
	_, err := scenario.Parse(strings.Repeat("not a line\n", 1000), nil, "")
	if err == nil || strings.Count(err.Error(), "\n") != 20 ||
		!strings.HasSuffix(err.Error(), "\nlines after that are wrong too") {
		t.Error(err)
	}
}

// Whatever text comes in, Parse never panics, and what it takes is a job.
func FuzzParse(f *testing.F) {
	f.Add(whole, "")
	f.Add(least, "size=3, link h2=1Mbit, batch=10")
	f.Add("at step 300 slow h2 3x\nexpect samples once\nrun 1h", "slow=1,policy=batch")
	f.Fuzz(func(t *testing.T, text, what string) {
		s, err := scenario.Parse(text, policies, what)
		if err != nil || len(s.Job.Hosts) > 100 {
			return
		}
		if _, err := job.New(s.Job); err != nil {
			t.Errorf("%q gives what is no job: %v", text, err)
		}
	})
}
