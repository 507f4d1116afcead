package trace_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/sim/trace"
)

// head is the first line of most traces of the tests, and dated that of those with dates.
const (
	head  = "job_id,submission_time,duration,num_gpu\n"
	dated = "timestamp,duration,num_gpus,gpu_time,cluster\n"
)

// rules are files with something to notice: which rules find it, how often and in which line first;
// which jobs are left; and what a strict reader says, which is nothing where there are only notes.
// A cluster of 8 GPUs is meant.
var rules = []struct{ text, found, jobs, strict string }{
	{head + "a,0,10,1\nb,5,10,2\n", "", "a b", ""},
	{"job_id,submission_time,duration,num_gpu\r\na,0,10,1\r\n", "CR LF 2 1", "a", "line 1"},
	{"\xef\xbb\xbf" + head + "a,0,10,1\n", "byte order mark 1 1", "a", "line 1"},
	{head + "a,0,10,1\nb,1,10\nc,1,10,1,9\n", "cells 2 3", "a", "line 3"},
	{head + "\"a,b\",0,10,1\n\"c,1,10,1\n", "cells 1 3", "a,b", "line 3"},
	{head + "a,0,10,1\nb,x,10,1\nc,1,,1\n", "no number 2 3", "a", "line 3"},
	{head + "a,0,10,1\nb,1,nan,1\nc,1,10,NaN\n", "no number 2 3", "a", "line 3"},
	{head + "a,0,10,1\nb,1,inf,1\nc,1,1e400,1\n", "too large 2 3", "a", "line 3"},
	{head + "a,0,10,1\nb,-1,10,1\nc,1,-10,1\nd,1,10,-1\n", "negative 3 3", "a", "line 3"},
	{head + "a,0,10,1\nb,1,10,1.5\n", "no number 1 3", "a", "line 3"},
	{head + "b,0,10,1\na,0,10,0\n", "no GPUs 1 3", "b", "line 3"},
	{head + "a,0,10,1\nb,1,0,1\n", "no time 1 3", "a", "line 3"},
	{head + "a,0,10,9\nb,0,10,8\n", "larger than the cluster 1 2", "b", "line 2"},
	{head + "a,9,10,1\nb,0,10,1\nc,8,10,1\n", "unsorted 2 3", "b c a", "line 3"},
	{head + "a,9,10,1\nb,10,10,1\n", "starts late 1 0", "a b", ""},
	{head + "a,0,10,1\na,0,10,1\na,1,10,1\n", "repeated row 1 3,repeated name 2 3", "a a#3 a#4",
		"line 3"},
	{dated + "2017-10-09 07:01:55,66.0,2,132.0,x\n2017-10-09T07:01:56,66.0,2,66.0,x\n",
		"GPU time 1 3", "2 3", "line 3"},
	{dated + "2017-02-29 07:01:55,6,2,12,x\n2016-02-29 07:01:55,6,2,12,x\n", "no number 1 2", "3",
		"line 2"},
	{"name,arrival,duration,gpus,deadline\na,0,10,1,10\nb,0,10,1,9\nc,0,10,1,\n",
		"tight deadline 1 3", "a b c", ""},
	{"name,arrival,duration,gpus,priority\na,0,10,1,-3\nb,0,10,1,x\n", "no number 1 3", "a",
		"line 3"},
	{"name,arrival,duration,gpus,colour\na,0,10,1,red\n", "unused columns 1 0", "a", ""},
}

// TestRules reads these files.
func TestRules(t *testing.T) {
	for _, c := range rules {
		got, err := trace.Read(strings.NewReader(c.text), trace.Options{GPUs: 8})
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		if found := findings(got.Found); found != c.found {
			t.Errorf("%q: found %q, want %q", c.text, found, c.found)
		}
		var names []string
		for _, job := range got.Jobs {
			names = append(names, job.Name)
		}
		if jobs := strings.Join(names, " "); jobs != c.jobs {
			t.Errorf("%q: jobs %q, want %q", c.text, jobs, c.jobs)
		}
		_, err = trace.Read(strings.NewReader(c.text), trace.Options{GPUs: 8, Strict: true})
		if (err == nil) != (c.strict == "") || err != nil &&
			!strings.Contains(err.Error(), c.strict) {
			t.Errorf("%q: a strict reader says %v, want %q", c.text, err, c.strict)
		}
	}
}

// findings writes rules, counts and first lines.
func findings(all []trace.Finding) string {
	var list []string
	for _, f := range all {
		list = append(list, fmt.Sprint(f.Rule, " ", f.Count, " ", f.Line))
	}
	return strings.Join(list, ",")
}

// TestErrors reads what is no trace.
func TestErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "is empty",
		"\x1f\x8bno gzip":     "none",
		"a,b\n1,2\n":          `no column "submission_time"`,
		"arrival,gpus\n1,2\n": `no column "duration"`,
		"x,y," + strings.Repeat("ä,", 99) + "\n": `ä,…"`, // no half of a letter
		"arrival,duration\n1,2\n":                `no column "num_gpu"`,
		"\n{\"a\": 1}\n":                         "line 2, which has to name the columns, has a",
		head:                                     "no line after the first",
		head + "a,0,10,0\n":                      "ask for no GPU",
		"duration,interval,expect_time_list\n":   "Chronus",
	} {
		_, err := trace.Read(strings.NewReader(text), trace.Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestJob reads all columns that a job can have, on a clock that begins with the first job.
func TestJob(t *testing.T) {
	got, err := trace.Read(strings.NewReader("job_id,submission_time,num_iteration,model_name,"+
		"deadline,batch_size,num_gpu,duration,user,kind,priority,value\n"+
		"x,1000,1,m,2000,64,1,10,,,,\ny,1000.5,49066,gpt2,13212,128,2,13423.25,ann,k,7,2.5\n"),
		trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := trace.Job{Line: 3, Name: "y", Arrived: 500, Duration: 13423250, GPUs: 2, Tenant: "ann",
		Kind: "k", Model: "gpt2", Batch: 128, Iterations: 49066, Deadline: 12212000, Priority: 7,
		Value: 2.5}
	if d := cmp.Diff(want, got.Jobs[1]); d != "" {
		t.Error(d)
	}
	if got.Start != 1000000 || got.Work() != 10000+2*13423250 {
		t.Errorf("starts at %d, work %v", got.Start, got.Work())
	}
}

// TestDeadlineOfDates reads deadlines beside arrivals that are dates: dates, since a number of
// seconds would be one of 1970.
func TestDeadlineOfDates(t *testing.T) {
	got, err := trace.Read(strings.NewReader("name,timestamp,duration,gpus,deadline\n"+
		"a,2017-10-09 07:01:55,10,1,2017-10-09 07:02:55\nb,2017-10-09 07:01:56,10,1,\n"+
		"c,2017-10-09 07:01:57,10,1,60\n"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Jobs) != 2 || got.Jobs[0].Deadline != 60_000 || got.Jobs[1].Deadline != 0 {
		t.Errorf("jobs %+v", got.Jobs)
	}
	if found := findings(got.Found); found != "no number 1 4" {
		t.Errorf("found %q", found)
	}
}

// TestCutGzip cuts a compressed trace everywhere: what comes before the cut is read, whole lines
// alone, and a strict reader refuses it.
func TestCutGzip(t *testing.T) {
	var text strings.Builder
	text.WriteString(head)
	for i := range 500 {
		fmt.Fprintf(&text, "job%d,%d,%d,%d\n", i, i*i, 1+i*7919%1000, 1+i%8)
	}
	packed := pack(t, text.String())
	whole, err := trace.Read(bytes.NewReader(packed), trace.Options{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(whole.Jobs) != 500 {
		t.Fatalf("%d jobs, want 500", len(whole.Jobs))
	}
	cut := 0
	for n := 0; n < len(packed); n += 37 {
		got, err := trace.Read(bytes.NewReader(packed[:n]), trace.Options{})
		if err != nil { // no job is left
			if n > 0 && strings.Contains(err.Error(), "empty") {
				t.Fatalf("cut at %d: %v", n, err)
			}
			continue
		}
		cut++
		if got.Found[0].Rule != trace.CutGzip {
			t.Fatalf("cut at %d: found %v", n, got.Found)
		}
		if d := cmp.Diff(whole.Jobs[:len(got.Jobs)], got.Jobs); d != "" {
			t.Fatalf("cut at %d: %s", n, d)
		}
		_, err = trace.Read(bytes.NewReader(packed[:n]), trace.Options{Strict: true})
		if err == nil {
			t.Fatalf("cut at %d: a strict reader takes it", n)
		}
	}
	if cut == 0 {
		t.Error("no cut leaves a job")
	}
}

// pack compresses a text.
func pack(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestCurves reads a table of speeds in which blank, 0 and nan say that nothing was measured.
func TestCurves(t *testing.T) {
	const text = "global_batch_size,1,4,2,8,16\n64,10,30,20,0,15\n128,0,nan,,8,\n256,0,0,0,0,0\n"
	got, found, err := trace.ReadCurves("m", strings.NewReader(text), true)
	if err != nil {
		t.Fatal(err)
	}
	want := []trace.Curve{
		{Model: "m", Batch: 64, Sizes: []int{1, 2, 4, 16}, Speeds: []float64{10, 20, 30, 15}},
		{Model: "m", Batch: 128, Sizes: []int{8}, Speeds: []float64{8}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if list := findings(found); list != "not measured 10 2,falls 1 2" {
		t.Errorf("found %q", list)
	}
	for gpus, want := range map[int]float64{-1: -1, 0: -1, 1: 10, 3: 20 + 10*math.Log2(1.5),
		8: 22.5, 16: 15, 17: -1} {
		speed, known := got[0].At(gpus)
		if !known {
			speed = -1
		}
		if math.Abs(speed-want) > 1e-12 {
			t.Errorf("%d GPUs: %v, want %v", gpus, speed, want)
		}
	}
}

// TestCurveErrors reads what is no table of speeds, and lines that are left out.
func TestCurveErrors(t *testing.T) {
	for text, want := range map[string]string{
		"a,1\n1,2\n":                     `no column "global_batch_size"`,
		"global_batch_size,x\n1,2\n":     `"x"`,
		"global_batch_size,1,1\n1,2,3\n": `"1"`,
		"global_batch_size,0\n1,2\n":     `"0"`,
		"global_batch_size,1\n64,-1\n":   "below zero",
		"global_batch_size,1\n64,abc\n":  "finite number",
		"global_batch_size,1\n64,nan\n":  "not measured",
	} {
		_, _, err := trace.ReadCurves("m", strings.NewReader(text), false)
		if want == "not measured" && err != nil {
			want = "no line with a batch and a speed"
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestProfile reads what was measured of an application, and interpolates within it alone.
func TestProfile(t *testing.T) {
	p := trace.Profile{App: "yolov3"}
	found, err := p.ReadPoints(strings.NewReader("placement,local_bsz,step_time,sync_time\n"+
		"1,4,1,0.1\n1,8,2,0.2\n1,11,9,9\n13,4,3,1\n22,4,5,1\nx,4,1,1\n"), false)
	if err != nil {
		t.Fatal(err)
	}
	if list := findings(found); list != "no number 1 7,beyond memory 1 4" {
		t.Errorf("found %q", list)
	}
	_, err = p.ReadPoints(strings.NewReader("num_nodes,num_replicas,local_bsz,step_time,"+
		"sync_time\n2,2,4,2,0\n"), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		nodes, gpus       int
		local, step, sync float64 // step 0 = outside
	}{{1, 1, 4, 1, 0.1}, {1, 1, 7, 1.75, 0.175}, {1, 1, 9, 0, 0}, {1, 1, 3, 0, 0}, {1, 2, 4, 0, 0},
		{2, 4, 4, 4, 1}, {2, 3, 4, 3, 0.5}, {2, 5, 4, 0, 0}, {3, 3, 4, 0, 0}} {
		step, sync, err := p.StepTime(c.nodes, c.gpus, c.local)
		if (err != nil) != (c.step == 0) ||
			math.Abs(step-c.step)+math.Abs(sync-c.sync) > 1e-12 {
			t.Errorf("%+v: %v, %v, %v", c, step, sync, err)
		}
	}
	found, err = p.ReadEpochs(8, strings.NewReader("progress,metric,grad_sqr,grad_var\n"+
		"10,3,1,3\n20,2,1,7\n"), true)
	if err != nil {
		t.Fatal(err)
	}
	if list := findings(found); list != "lower is better 1 0" {
		t.Errorf("found %q", list)
	}
	if gain := p.Epochs[0].List[0].Gain(3); gain != 2 {
		t.Errorf("gain %v, want 2", gain)
	}
}

// TestPublic reads the public files below the folder of SHOAL_DATA: jobs, GPU hours and what is
// wrong with them, as their descriptions say.
func TestPublic(t *testing.T) {
	data := os.Getenv("SHOAL_DATA")
	if data == "" {
		t.Skip("SHOAL_DATA names no folder with public traces")
	}
	for name, want := range map[string]struct {
		jobs  int
		hours float64
		found string
	}{
		"elasticflow-traces/raw/cluster04.csv.gz": {15802, 705683,
			"starts late 1 0,cut at 600 s 15802 0"},
		"elasticflow-traces/raw/cluster07.csv.gz": {12699, 366800,
			"starts late 1 0,cut at 600 s 12699 0"},
		"elasticflow-traces/deadline/cluster10.csv.gz": {260, 4023,
			"starts late 1 0,generated 260 0,cut at 600 s 260 0,tight deadline 136 2"},
		"philly/philly.csv.gz": {82247, 978078,
			"unsorted 82242 3,repeated row 65 3137,long jobs 822 0"},
	} {
		f, err := os.Open(filepath.Join(data, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := trace.Read(f, trace.Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if hours := got.Work() / 3.6e6; len(got.Jobs) != want.jobs ||
			math.Abs(hours-want.hours) > 0.5 {
			t.Errorf("%s: %d jobs, %v GPU hours", name, len(got.Jobs), hours)
		}
		if found := findings(got.Found); found != want.found {
			t.Errorf("%s: found %q", name, found)
		}
	}
}

// TestPublicProfiles reads the public tables of speeds and profiles below the folder of SHOAL_DATA.
func TestPublicProfiles(t *testing.T) {
	data := os.Getenv("SHOAL_DATA")
	if data == "" {
		t.Skip("SHOAL_DATA names no folder with public profiles")
	}
	// each calls f with the name and text of all files that match a pattern, and returns how many.
	each := func(pattern string, f func(path string, text []byte) error) int {
		files, err := filepath.Glob(filepath.Join(data, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err == nil {
				err = f(file, text)
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
		return len(files)
	}
	unmeasured, batches := 0, 0
	files := each("elasticflow-throughputs/*/*.csv", func(path string, text []byte) error {
		curves, found, err := trace.ReadCurves(path, bytes.NewReader(text), false)
		for _, f := range found {
			if f.Rule == trace.NotMeasured {
				unmeasured += f.Count
			}
		}
		batches += len(curves)
		return err
	})
	if files != 13 || batches != 26 || unmeasured != 13 {
		t.Errorf("%d files, %d batches, %d cells without value", files, batches, unmeasured)
	}
	p := trace.Profile{App: "yolov3"}
	beyond := 0
	for _, name := range []string{"placements", "scalability"} {
		each("pollux-profiles/yolov3/"+name+".csv", func(_ string, text []byte) error {
			found, err := p.ReadPoints(bytes.NewReader(text), false)
			for _, f := range found {
				beyond += f.Count
			}
			return err
		})
	}
	epochs := each("pollux-profiles/yolov3/validation-*.csv", func(_ string, text []byte) error {
		_, err := p.ReadEpochs(8, bytes.NewReader(text), true)
		return err
	})
	if len(p.Points) != 3*108+3*36 || beyond != 2*108 || epochs != 7 {
		t.Errorf("%d settings, %d beyond memory, %d batches", len(p.Points), beyond, epochs)
	}
	step, sync, err := p.StepTime(1, 4, 8)
	if err != nil || !(0 < sync && sync < step) {
		t.Errorf("a step on one node takes %v, %v, %v", step, sync, err)
	}
}

// FuzzTrace feeds any bytes to the reader of traces: it does not panic, and what it makes of them
// keeps what Job promises, whatever the defects.
func FuzzTrace(f *testing.F) {
	for _, c := range rules {
		f.Add([]byte(c.text), 8)
	}
	f.Add([]byte("\x1f\x8b\x08\x00"), 0)
	f.Add([]byte(head+"a,1e10,1e10,1048576\n"), 0)
	f.Add([]byte("timestamp,duration,num_gpus,deadline\n9999-12-31 23:59:59,1e10,1,0\n"), 1)
	f.Fuzz(func(t *testing.T, text []byte, gpus int) {
		got, err := trace.Read(bytes.NewReader(text), trace.Options{GPUs: gpus})
		if err != nil {
			return
		}
		names, before := map[string]bool{}, int64(0)
		for _, job := range got.Jobs {
			if names[job.Name] || job.Arrived < before || job.Duration < 1 || job.GPUs < 1 ||
				gpus > 0 && job.GPUs > gpus || job.Batch < 0 || job.Value < 0 || job.Deadline < 0 {
				t.Fatalf("after %d: %+v", before, job)
			}
			names[job.Name], before = true, job.Arrived
		}
		if got.Jobs[0].Arrived != 0 || len(got.Jobs) > got.Rows {
			t.Fatalf("%d jobs of %d rows, from %d on", len(got.Jobs), got.Rows, got.Jobs[0].Arrived)
		}
	})
}

// FuzzCurves feeds any bytes to the readers of speeds and profiles: they do not panic, and no speed
// is zero, between sizes either.
func FuzzCurves(f *testing.F) {
	f.Add([]byte("global_batch_size,1,4,2,8,16\n64,10,30,20,0,15\n128,0,nan,,8,\n"))
	f.Add([]byte("placement,local_bsz,step_time,sync_time\n1,4,1,0.1\n13,8,2,0.2\n"))
	f.Add([]byte("progress,iteration,metric,grad_sqr,grad_var\n10,10,3,1,3\n20,20,2,1,7\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		curves, _, _ := trace.ReadCurves("m", bytes.NewReader(text), false)
		for _, c := range curves {
			for i := range c.Sizes {
				n := c.Sizes[max(i-1, 0)]
				speed, known := c.At(n + (c.Sizes[i]-n)/2)
				if !known || !(speed > 0) || i > 0 && c.Sizes[i] <= c.Sizes[i-1] {
					t.Fatalf("%+v: %v, %v", c, speed, known)
				}
			}
		}
		var p trace.Profile
		_, _ = p.ReadPoints(bytes.NewReader(text), false)
		for _, x := range p.Points {
			if step, _, err := p.StepTime(x.Nodes, x.GPUs, float64(x.LocalBatch)); x.Nodes <= 16 &&
				(err != nil || !(step > 0)) {
				t.Fatalf("%+v: %v, %v", x, step, err)
			}
		}
		_, _ = p.ReadEpochs(8, bytes.NewReader(text), false)
		for _, e := range p.Epochs {
			for _, x := range e.List {
				_ = x.Gain(2)
			}
		}
	})
}
