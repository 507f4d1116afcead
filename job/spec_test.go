package job_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/job"
)

// A spec with every key is read.
func TestParse(t *testing.T) {
	got, err := job.Parse([]byte("name: digits\nworkers: 4\ncommand: [python3, " +
		"train.py]\nenv:\n  A: b\n  M: 2\nmin: 2\nmax: 8\ngrow: true\n" +
		"fixed_routes: true\nredundant: true\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := job.Spec{Name: "digits", Workers: 4, Command: []string{"python3", "train.py"},
		Env: map[string]string{"A": "b", "M": "2"}, Min: 2, Max: 8, Grow: true, FixedRoutes: true,
		Redundant: true}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// YAML takes more words for numbers and truths than people do: an octal 0123, a 1.10 that is 1.1.
func TestTextsAreTakenAsWritten(t *testing.T) {
	got, err := job.Parse([]byte("name: 0123\ncommand: [fit, 1e3, 1.10, yes, 1e-4]\nenv: {SEED: " +
		"0123, VERSION: 1.10, N: no, LONG: 12345678901234567890, ZONE: 12:30, EMPTY: }\n---\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := job.Spec{Name: "0123", Command: []string{"fit", "1e3", "1.10", "yes", "1e-4"},
		Env: map[string]string{
			"SEED": "0123", "VERSION": "1.10", "N": "no", "LONG": "12345678901234567890",
			"ZONE": "12:30", "EMPTY": "",
		}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Unknown, repeated and wrongly typed keys are refused, by name and with advice.
func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"unknown key": {"wrokers: 4\n",
			[]string{"wrokers",
				"known are name, workers, command, env, min, max, spares, grow, prefork, " +
					"fixed_routes, redundant, auto, policies"}},
		"other case":   {"Name: a\n", []string{"Name", "no such key"}},
		"repeated key": {"name: a\nname: b\n", []string{"name", "already set"}},
		"growth of 3":  {"grow: 3\n", []string{"grow: a number", "write it like this: grow: true"}},
		"wrong type":   {"workers: four\n", []string{"workers: a string", "workers: 4"}},
		"zero workers": {"workers: 0\n", []string{"workers: 0", "1 to 1024"}},
		"fraction":     {"workers: 2.5\n", []string{"workers: a number", "workers: 4"}},
		"command line": {"command: python3 train.py\n",
			[]string{"command", "[python3, train.py]"}},
		"word that is null": {"command: [a, ~]\n",
			[]string{"command: word 1 is null", `write "" for an empty word`}},
		"word that is not there": {"command:\n- a\n-\n", []string{"command: word 1 is null"}},
		"env list":               {"env: [A=b]\n", []string{"env: an array", "env: {LOG_LEVEL"}},
		"documents": {"workers: 2\n---\nworkers: 3\n",
			[]string{"more than one document", "---"}},
		"schedule key": {"schedule: {priorty: 1}\n",
			[]string{"schedule", "priorty", "priority"}},
		"schedule list": {"schedule: [1]\n", []string{"schedule", "{priority: 10}"}},
		"schedule type": {"schedule: {sizes: 4}\n", []string{"schedule", "sizes: [1, 2, 4]"}},
		"schedule steps": {"schedule: {steps: -5}\n",
			[]string{"schedule", "number -5", "{steps: 2000}"}},
		"schedule key outside": {"priority: 3\n",
			[]string{"priority: it is a key of schedule", "schedule: {priority: 10}"}},
		"no number":     {"schedule: {value: .inf}\n", []string{"+Inf is no number"}},
		"mesh of words": {"schedule: {meshes: {four: a}}\n", []string{"schedule"}},
		"not a mapping": {"- a\n- b\n", []string{"not YAML with keys", "workers: 4"}},
		"not YAML":      {"a: [b\n", []string{"not YAML", "line 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := job.Parse([]byte(c.text))
			if err == nil {
				t.Fatal("accepted")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in: %v", w, err)
				}
			}
		})
	}
}

// Every error of Load names the file.
func TestLoadNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	missing, big, bad := filepath.Join(dir, "none.yaml"), filepath.Join(dir, "big.yaml"),
		filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(big, make([]byte, 1<<20+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, []byte("x: 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{missing, big, bad, dir} {
		if _, err := job.Load(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A spec without a name gets that of its script or program, and one worker.
func TestDefaults(t *testing.T) {
	for name, c := range map[string]struct {
		command []string
		want    string
	}{
		"script":      {[]string{"python3", "-u", "dir/My_Train.py", "x.py"}, "my-train"},
		"program":     {[]string{"/opt/bin/fit"}, "fit"},
		"nothing":     {nil, "job"},
		"only dashes": {[]string{"___"}, "job"},
		"long":        {[]string{strings.Repeat("a", 49) + "-b"}, strings.Repeat("a", 49)},
	} {
		got := job.Spec{Command: c.command}.WithDefaults()
		if got.Name != c.want || got.Workers != 1 {
			t.Errorf("%s: name %q, %d workers; want %q, 1", name, got.Name, got.Workers, c.want)
		}
	}
}

// Whatever the command is, the name that is made of it is valid.
func TestDefaultNamesAreValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[^\x00]+`).Draw(t, "word")
		if err := (job.Spec{Command: []string{word}}).WithDefaults().Validate(); err != nil {
			t.Fatal(err)
		}
	})
}

// What flags set replaces what the file says, and the environments are merged.
func TestOverride(t *testing.T) {
	file := job.Spec{Name: "a", Workers: 2, Command: []string{"x"},
		Env: map[string]string{"K": "file", "L": "file"}}
	got := file.Override(
		job.Spec{Workers: 3, Env: map[string]string{"K": "flag"}, FixedRoutes: true,
			Redundant: true, Auto: job.AutoWatch})
	want := job.Spec{Name: "a", Workers: 3, Command: []string{"x"},
		Env: map[string]string{"K": "flag", "L": "file"}, FixedRoutes: true, Redundant: true,
		Auto: job.AutoWatch}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if file.Env["K"] != "file" {
		t.Error("Override changed its receiver")
	}
}

// Each fault of a spec is an error for its key.
func TestValidate(t *testing.T) {
	good := job.Spec{Name: "a", Workers: 1, Command: []string{"x"},
		Env: map[string]string{"SHOAL_NCCL": "0"}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		spoil func(*job.Spec)
		key   string
	}{
		"no workers":  {func(s *job.Spec) { s.Workers = 0 }, "workers"},
		"negative":    {func(s *job.Spec) { s.Workers = -1 }, "workers"},
		"too many":    {func(s *job.Spec) { s.Workers = job.MaxWorkers + 1 }, "workers"},
		"odd auto":    {func(s *job.Spec) { s.Auto = "yes" }, "auto"},
		"idle policy": {func(s *job.Spec) { s.Policies = []string{"a.py"} }, "policies"},
		"no policy": {func(s *job.Spec) { s.Auto, s.Policies = job.AutoAct, []string{""} },
			"policies"},
		"no command":   {func(s *job.Spec) { s.Command = nil }, "command"},
		"empty word":   {func(s *job.Spec) { s.Command = []string{""} }, "command"},
		"NUL":          {func(s *job.Spec) { s.Command = []string{"x", "a\x00b"} }, "command"},
		"path as name": {func(s *job.Spec) { s.Name = "../a" }, "name"},
		"long name":    {func(s *job.Spec) { s.Name = strings.Repeat("a", 51) }, "name"},
		"our variable": {func(s *job.Spec) {
			s.Env = map[string]string{"SHOAL_RANK": "1"}
		}, "env"},
		"torch's rank":  {func(s *job.Spec) { s.Env = map[string]string{"RANK": "1"} }, "env"},
		"odd tenant":    {withSchedule(job.Schedule{Tenant: "a\x1b"}), "schedule"},
		"odd priority":  {withSchedule(job.Schedule{Priority: 1001}), "schedule"},
		"odd deadline":  {withSchedule(job.Schedule{Deadline: "soon"}), "schedule"},
		"past deadline": {withSchedule(job.Schedule{Deadline: "-1h"}), "schedule"},
		"no time":       {withSchedule(job.Schedule{Deadline: "999us"}), "schedule"},
		"odd value":     {withSchedule(job.Schedule{Value: -1}), "schedule"},
		"odd preempt":   {withSchedule(job.Schedule{Preempt: "prak"}), "schedule"},
		"odd steps":     {withSchedule(job.Schedule{Steps: 1 << 53}), "schedule"},
		"sizes beyond":  {withSchedule(job.Schedule{Sizes: []int{2, 4}}), "schedule"},
		"mesh beyond": {withSchedule(job.Schedule{Sizes: []int{1},
			Meshes: map[int]string{2: "dp=2"}}), "schedule"},
		"no mesh": {withSchedule(job.Schedule{
			Meshes: map[int]string{2: "banana"}}), "schedule"},
		"mesh of others": {withSchedule(job.Schedule{
			Meshes: map[int]string{2: "dp=8"}}), "schedule"},
		"growth and spares": {func(s *job.Spec) { s.Grow, s.Spares = true, 1 }, "grow"},
		"growth and money": {func(s *job.Spec) {
			s.Grow, s.Budget, s.Price, s.Auto, s.Max = true, 1, 1, job.AutoAct, 2
		}, "grow"},
		"odd variable": {func(s *job.Spec) { s.Env = map[string]string{"A=B": "1"} }, "env"},
	} {
		s := good
		c.spoil(&s)
		err, ok := s.Validate().(*job.Error)
		if !ok || err.Key != c.key {
			t.Errorf("%s: got %v, want an error for %s", name, err, c.key)
		}
	}
}

// withSchedule returns a function that gives a spec a schedule.
func withSchedule(c job.Schedule) func(*job.Spec) {
	return func(s *job.Spec) { s.Schedule = &c }
}

// A schedule with every key is read, and is the same after it was written.
func TestScheduleIsParsed(t *testing.T) {
	got, err := job.Parse([]byte("name: a\nworkers: 4\ncommand: [x]\nschedule: {tenant: v, " +
		"priority: -3, deadline: 1h30m, value: 2, budget: 3.5, steps: 70, sizes: [2, 4], " +
		"meshes: {4: \"dp=2,tp=2\"}, preempt: park}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := job.Spec{Name: "a", Workers: 4, Command: []string{"x"},
		Schedule: &job.Schedule{Tenant: "v", Priority: -3, Deadline: "1h30m", Value: 2,
			Budget: 3.5, Steps: 70, Sizes: []int{2, 4}, Meshes: map[int]string{4: "dp=2,tp=2"},
			Preempt: job.PreemptPark}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	if again, err := job.Parse([]byte(got.String())); err != nil || cmp.Diff(got, again) != "" {
		t.Errorf("%v: %s", err, cmp.Diff(got, again))
	}
}

// No text makes the reader of specs panic, and what is valid is read again as it was.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"name: a\nworkers: 4\n", "schedule: {sizes: [1]}",
		"schedule: {meshes: {4: x}}", "schedule: {steps: 9}", "env: {A: b}\n---\n", "- 1",
		"schedule: 3"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		spec, err := job.Parse(text)
		if err != nil || spec.WithDefaults().Validate() != nil {
			return
		}
		if again, err := job.Parse([]byte(spec.String())); err != nil ||
			cmp.Diff(spec, again, cmpopts.EquateEmpty()) != "" {
			t.Errorf("%v: %s", err, cmp.Diff(spec, again))
		}
	})
}

// Parse reads what String writes.
func TestStringIsParsed(t *testing.T) {
	want := job.Spec{Name: "a", Workers: 3, Command: []string{"sh", "-c", "echo '1: #'"},
		Env: map[string]string{"A": "yes", "B": "007"}}
	got, err := job.Parse([]byte(want.String()))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestSplitPython splits commands that run a script or a module, and knows what is none.
func TestSplitPython(t *testing.T) {
	for _, c := range []struct {
		command string
		options int // -1 = it is no such command
	}{
		{"python3 train.py", 1}, {"/usr/bin/python3.12 -u -W error -X dev train.py -m x", 6},
		{"python -m train --epochs 3", 1}, {"python3 -Wd -um", -1}, {"python3 -um pkg.train", -1},
		{"python3 -uc pass", -1}, {"python3 -uW ignore train.py", 3}, {"python3 -Xdev train.py", 2},
		{"python3 -Wd train.py", 2}, {"python3 -m", -1},
		{"python3 -c pass", -1}, {"python3 -", -1}, {"python3", -1}, {"python3 -W", -1},
		{"torchrun train.py", -1}, {"./train.py", -1}, {"python3-config train.py", -1}, {"", -1},
	} {
		command := strings.Fields(c.command)
		options, words, is := job.SplitPython(command)
		if is != (c.options >= 0) || is && (len(options) != c.options ||
			!slices.Equal(append(slices.Clone(options), words...), command)) {
			t.Errorf("%s: %q, %q, %v", c.command, options, words, is)
		}
	}
}

// TestPreforkIsChecked refuses what is no module, and a command that imports none.
func TestPreforkIsChecked(t *testing.T) {
	for _, c := range []struct {
		modules, command []string
		want             string
	}{
		{[]string{"torch", "shoal.torch"}, []string{"python3", "train.py"}, ""},
		{[]string{"torch transformers"}, []string{"python3", "train.py"},
			`prefork: "torch transformers" is not the name of a Python module`},
		{[]string{"torch"}, []string{"sh", "train.sh"},
			"prefork: modules are imported for a script or a module of Python, and the command " +
				"is sh train.sh; write python3"},
	} {
		err := job.Spec{Prefork: c.modules, Command: c.command}.WithDefaults().Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil ||
			!strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q, %q: %v, want %q", c.modules, c.command, err, c.want)
		}
	}
}
