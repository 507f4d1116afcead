package cluster_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/sim/trace"
	"github.com/shoal-ml/shoal/world/cluster"
)

// policyNamed returns the policy of a name, or fails the test.
func policyNamed(t testing.TB, name string) sched.Policy {
	t.Helper()
	p, err := sched.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// readTrace reads a trace of jobs such as "a,0,10,1": name, arrival and duration in seconds, and
// GPUs.
func readTrace(t testing.TB, lines string) []trace.Job {
	t.Helper()
	got, err := trace.Read(strings.NewReader("name,arrival,duration,gpus,deadline\n"+lines),
		trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Jobs
}

// TestByHand plays traces that are small enough to be played by hand: when each job ends, in
// seconds, and the GPU hours.
func TestByHand(t *testing.T) {
	srsf := sched.Policy{Name: "srsf", Preempts: true,
		Order: sched.OrderFunc(func(j *sched.Job, _ int64) float64 {
			return j.Seconds(j.Asked) * float64(j.Asked)
		})}
	curve := trace.Curve{Model: "m", Batch: 1, Sizes: []int{1, 2, 4}, Speeds: []float64{1, 2, 3}}
	for name, c := range map[string]struct {
		lines string
		cfg   cluster.Config
		ends  string
	}{
		"one after the other": {"a,0,10,2,\nb,1,5,2,\n",
			cluster.Config{Policy: policyNamed(t, "fifo"), GPUs: 2}, "a 10 b 15"},
		"both at once": {"a,0,10,1,\nb,1,5,1,\n",
			cluster.Config{Policy: policyNamed(t, "fifo"), GPUs: 2}, "a 10 b 6"},
		"nobody overtakes": {"a,0,10,1,\nb,1,5,2,\nc,2,1,1,\n",
			cluster.Config{Policy: policyNamed(t, "fifo"), GPUs: 2}, "a 10 b 15 c 16"},
		"who fits overtakes": {"a,0,10,1,\nb,1,5,2,\nc,2,1,1,\n",
			cluster.Config{Policy: policyNamed(t, "fifo-skip"), GPUs: 2}, "a 10 b 15 c 3"},
		"twice the load": {"a,0,10,1,\nb,4,5,1,\n",
			cluster.Config{Policy: policyNamed(t, "fifo"), GPUs: 2, Load: 2}, "a 10 b 7"},
		"parked, and 30 s later for it": {"a,0,100,1,\nb,10,5,1,\n",
			cluster.Config{Policy: srsf, GPUs: 1, Costs: cluster.PausePerChange(30)}, "a 135 b 15"},
		"a start that waits for what is parked": {"a,0,100,1,\nb,10,5,1,\n",
			cluster.Config{Policy: srsf, GPUs: 1, Costs: sched.Costs{
				Park: sched.Estimate{Mean: 2000}}}, "a 107 b 17"},
		"a host is lost and comes back": {"a,0,10,1,\n", cluster.Config{
			Policy: policyNamed(t, "fifo"), GPUs: 2, PerHost: 2,
			Outages: []cluster.Outage{{Host: 0, From: 4000, To: 9000}}},
			"a 15"},
		"by its curve at the size that it asks for": {"a,0,10,4,\n", cluster.Config{
			Policy: policyNamed(t, "fifo"), GPUs: 4, Curves: []trace.Curve{curve}}, "a 10"},
	} {
		r, err := cluster.Play(readTrace(t, c.lines), c.cfg)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var ends []string
		for _, j := range r.Jobs {
			ends = append(ends, fmt.Sprint(j.Name, " ", float64(j.Ended)/1000))
		}
		if got := strings.Join(ends, " "); got != c.ends {
			t.Errorf("%s: %s, want %s", name, got, c.ends)
		}
	}
}

// TestBatchOfCurve: of the curves of a model the one of the job's batch counts, in whichever order
// they come.
func TestBatchOfCurve(t *testing.T) {
	one := trace.Curve{Model: "m", Batch: 1, Sizes: []int{1, 2}, Speeds: []float64{1, 1.25}}
	eight := trace.Curve{Model: "m", Batch: 8, Sizes: []int{1, 2}, Speeds: []float64{1, 2}}
	jobs := []trace.Job{{Line: 2, Name: "a", Duration: 10_000, GPUs: 1, Model: "m", Batch: 8}}
	for _, curves := range [][]trace.Curve{{one, eight}, {eight, one}} {
		got, err := cluster.Play(jobs, cluster.Config{Policy: policyNamed(t, "elastic"), GPUs: 2,
			Curves: curves})
		if err != nil || got.Jobs[0].Ended != 5000 {
			t.Errorf("%v: %+v, %v", curves, got, err)
		}
	}
}

// TestMostHosts plays on as many hosts as shoal replay takes. Work for each pair of hosts would
// take longer than a test may.
func TestMostHosts(t *testing.T) {
	const hosts = 1 << 20
	got, err := cluster.Play(readTrace(t, "a,0,10,2,\n"),
		cluster.Config{Policy: policyNamed(t, "fifo"), GPUs: hosts, PerHost: 1})
	if err != nil || got.Done != 1 {
		t.Error(got, err)
	}
}

// TestLargeJob has a job on very many hosts. Comparing each host with all that the job gets would
// take longer than a test may.
func TestLargeJob(t *testing.T) {
	const hosts = 1 << 15
	got, err := cluster.Play(readTrace(t, fmt.Sprintf("a,0,10,%d,\n", hosts/2)),
		cluster.Config{Policy: policyNamed(t, "fifo"), GPUs: hosts, PerHost: 1})
	if err != nil || got.Done != 1 {
		t.Error(got, err)
	}
}

// TestSlowJobs has jobs on so few GPUs that they would end in a time that cannot be counted: they
// never do.
func TestSlowJobs(t *testing.T) {
	slow := trace.Curve{Model: "m", Batch: 1, Sizes: []int{1, 2}, Speeds: []float64{1e-300, 10}}
	got, err := cluster.Play(readTrace(t, "a,0,3600,2,\nb,10,3600,2,\n"), cluster.Config{
		Policy: policyNamed(t, "elastic"), GPUs: 2, Curves: []trace.Curve{slow},
		Costs: cluster.Live, Round: 60 * sched.Second})
	if err != nil || got.Unfinished != 2 {
		t.Error(got, err)
	}
}

// TestNumbers computes what is said of a small trace by hand.
func TestNumbers(t *testing.T) {
	r, err := cluster.Play(readTrace(t, "a,0,3600,2,7200\nb,0,3600,2,3600\nc,3600,3600,1,\n"),
		cluster.Config{Policy: policyNamed(t, "fifo-skip"), GPUs: 3})
	if err != nil {
		t.Fatal(err)
	}
	// a runs in the first hour; b and c in the second. Jobs ask for 4/3 and for 3/3 of the GPUs.
	for name, x := range map[string][2]float64{
		"done": {float64(r.Done), 3}, "mean": {r.Mean, 4. / 3}, "median": {r.Median, 1},
		"p99": {r.P99, 2}, "makespan": {r.Makespan, 2}, "GPU hours": {r.GPUHours, 5},
		"used": {r.Used, 5. / 6}, "wait": {r.Wait, 1. / 3}, "deadlines": {float64(r.Deadlines), 2},
		"met": {float64(r.Met), 1}, "unfair": {r.Unfair, 1. / 3},
		"the most unfair": {r.UnfairP99, 2 / (7. / 6)}, "hours": {float64(len(r.Hours)), 2},
		"first hour": {r.Hours[0], 2}, "second": {r.Hours[1], 3}} {
		if math.Abs(x[0]-x[1]) > 1e-12 {
			t.Errorf("%s: %v, want %v", name, x[0], x[1])
		}
	}
}

// TestErrors plays what cannot be played.
func TestErrors(t *testing.T) {
	jobs := readTrace(t, "a,0,10,1,\n")
	for want, cfg := range map[string]cluster.Config{
		"0 GPUs":         {},
		"no whole":       {GPUs: 10, PerHost: 4},
		"sigma NaN":      {GPUs: 1, Sigma: math.NaN()},
		"load of -1":     {GPUs: 1, Load: -1},
		"ageing":         {GPUs: 1, Age: math.Inf(1)},
		"host 1 is lost": {GPUs: 1, Outages: []cluster.Outage{{Host: 1, From: 0, To: 1}}},
		"host 1 is lost from 5 ms to 9 ms, and from 2 ms to 6 ms": {GPUs: 2, PerHost: 1,
			Outages: []cluster.Outage{{Host: 0, From: 2, To: 6}, {Host: 1, From: 5, To: 9},
				{Host: 1, From: 2, To: 6}}},
	} {
		if _, err := cluster.Play(jobs, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestRandom plays random traces under every policy: whoever can run ends, work is neither lost nor
// done twice, and the same comes to the same bytes. Hosts are lost, too.
func TestRandom(t *testing.T) {
	curves := []trace.Curve{{Model: "m", Sizes: []int{1, 2, 4, 8}, Speeds: []float64{1, 1.9, 3, 2}},
		{Model: "n", Sizes: []int{1, 4}, Speeds: []float64{1, 4}}}
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom(sched.Policies()).Draw(t, "policy")
		cfg := cluster.Config{Policy: policy, GPUs: 8,
			PerHost: rapid.SampledFrom([]int{0, 2, 4}).Draw(t, "GPUs of a host"),
			Sigma:   rapid.SampledFrom([]float64{0, 1}).Draw(t, "sigma"),
			Seed:    rapid.Uint64().Draw(t, "seed"),
			Costs:   cluster.PausePerChange(rapid.SampledFrom([]float64{0, 30}).Draw(t, "seconds")),
			Round:   rapid.SampledFrom([]int64{0, 60_000}).Draw(t, "round"),
		}
		if rapid.Bool().Draw(t, "curves") {
			cfg.Curves = curves
		}
		if cfg.PerHost > 0 && rapid.Bool().Draw(t, "a host is lost") {
			from := rapid.Int64Range(0, 500_000).Draw(t, "from")
			cfg.Outages = []cluster.Outage{{Host: 1, From: from, To: from + 100_000}}
		}
		var jobs []trace.Job
		at := int64(0)
		for i := range rapid.IntRange(1, 30).Draw(t, "jobs") {
			jobs = append(jobs, trace.Job{Line: i + 2, Name: fmt.Sprint("j", i), Arrived: at,
				Duration: rapid.Int64Range(1, 400_000).Draw(t, "duration"),
				GPUs:     rapid.IntRange(1, 8).Draw(t, "GPUs")})
			if rapid.Bool().Draw(t, "it has a deadline") {
				jobs[i].Deadline = at + rapid.Int64Range(1, 2_000_000).Draw(t, "deadline")
			}
			at += rapid.Int64Range(0, 60_000).Draw(t, "gap")
		}
		r, err := cluster.Play(jobs, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if r.Done+r.Refused != len(jobs) {
			t.Fatalf("%s: %d done, %d refused and %d never started of %d", policy.Name, r.Done,
				r.Refused, r.Unfinished, len(jobs))
		}
		if len(r.Faults) > 0 {
			t.Fatalf("%s: %v", policy.Name, r.Faults)
		}
		for _, j := range r.Jobs {
			if cfg.Curves == nil && cfg.PerHost == 0 && j.Done() && j.JCT() < j.Duration {
				t.Fatalf("%s: %+v took %d ms", policy.Name, j, j.JCT())
			}
			if policy.Name == "deadline" && cfg.Sigma == 0 && cfg.PerHost == 0 &&
				j.Deadline > 0 && j.Done() && !j.MetDeadline() {
				t.Fatalf("%+v was admitted and is late", j)
			}
		}
		if most := cfg.MostMet(jobs); r.Met > most {
			t.Fatalf("%s: %d deadlines are met, and the bound is %d", policy.Name, r.Met, most)
		}
		again, err := cluster.Play(jobs, cfg)
		if err != nil {
			t.Fatal(err)
		}
		a, b := resultText(t, r), resultText(t, again)
		if !bytes.Equal(a, b) {
			t.Fatalf("%s: %s\nand then %s", policy.Name, a, b)
		}
	})
}

// resultText returns all that a result has.
func resultText(t *rapid.T, r *cluster.Result) []byte {
	a, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(r.Jobs)
	if err != nil {
		t.Fatal(err)
	}
	return append(a, b...)
}

// publicTrace reads a public trace below the folder of SHOAL_DATA.
func publicTrace(t testing.TB, name string) []trace.Job {
	t.Helper()
	data := os.Getenv("SHOAL_DATA")
	if data == "" {
		t.Skip("SHOAL_DATA names no folder with public traces")
	}
	f, err := os.Open(filepath.Join(data, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := trace.Read(f, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Jobs
}

// TestCheckValues compares with the mean completion times that the description of the traces gives
// and that another simulator has come to, within a hundredth: rigid jobs without places, where a
// job that was preempted goes on 30 s later.
func TestCheckValues(t *testing.T) {
	for _, c := range []struct {
		file  string
		gpus  int
		hours map[string]float64
	}{
		{"elasticflow-traces/raw/cluster04.csv.gz", 512, map[string]float64{"fifo": 41.20,
			"fifo-skip": 17.01, "sjf": 7.91, "las": 11.38, "srsf": 6.24}},
		{"elasticflow-traces/raw/cluster07.csv.gz", 288, map[string]float64{"fifo": 14.54,
			"fifo-skip": 11.75, "sjf": 9.08, "las": 8.44, "srsf": 7.81}},
	} {
		jobs := publicTrace(t, c.file)
		for name, want := range c.hours {
			policy, err := sched.Named(name)
			if err != nil {
				t.Log(err)
				continue
			}
			r, err := cluster.Play(jobs, cluster.Config{Policy: policy, GPUs: c.gpus,
				Costs: cluster.PausePerChange(30)})
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(r.Mean/want-1) > 0.01 {
				t.Errorf("%s on %d GPUs, %s: %.2f h, want %.2f", c.file, c.gpus, name, r.Mean, want)
			}
		}
	}
}
