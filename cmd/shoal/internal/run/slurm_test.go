package run

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// variables are what Slurm sets for a task of three.
var variables = map[string]string{"SLURM_PROCID": "1", "SLURM_NNODES": "3",
	"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_STEP_NODELIST": "n[1-3]", "SLURM_STEP_NUM_NODES": "3",
	"SLURM_STEP_NUM_TASKS": "3", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0",
	"SLURM_SUBMIT_DIR": "/shared", "SLURM_CPUS_ON_NODE": "8", "SLURM_RESTART_COUNT": "2"}

// A task knows its place from what Slurm sets, and says which variable is missing or wrong.
func TestReadSlurmTask(t *testing.T) {
	read := func(change map[string]string) (*slurmTask, error) {
		env := maps.Clone(variables)
		maps.Copy(env, change)
		return readSlurmTask(func(name string) string { return env[name] })
	}
	got, err := read(nil)
	if err != nil || got.proc != 1 || got.node != "n2" || got.job != "17" || got.restart != "2" ||
		got.meetingPath() != "/shared/.shoal-17.0" ||
		!slices.Equal(got.nodes, []string{"n1", "n2", "n3"}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, c := range []struct {
		change map[string]string
		fits   func(*slurmTask) bool
	}{
		{map[string]string{"SLURMD_NODENAME": "other"}, func(t *slurmTask) bool {
			return t.node == "other"
		}},
		{map[string]string{"SLURM_STEP_NODELIST": "n[2-3]", "SLURM_STEP_NUM_NODES": "2",
			"SLURM_STEP_NUM_TASKS": "2"}, func(t *slurmTask) bool {
			return t.nodes[0] == "n2" && t.node == "n3"
		}},
		{map[string]string{"SLURM_RESTART_COUNT": ""}, func(t *slurmTask) bool {
			return t.restart == "0"
		}},
		{map[string]string{"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"},
			func(t *slurmTask) bool { return t.job == "17" && t.name == "17_3" }},
		{nil, func(t *slurmTask) bool { return t.name == "17" }},
		{map[string]string{"SLURM_SUBMIT_DIR": ""}, func(t *slurmTask) bool {
			here, _ := os.Getwd()
			return t.dir == here
		}},
	} {
		if got, err := read(c.change); err != nil || !c.fits(got) {
			t.Errorf("with %v: %+v, %v", c.change, got, err)
		}
	}
	for _, c := range []struct{ name, value, want string }{
		{"SLURM_PROCID", "", "SLURM_PROCID is not set, so srun has not started this"},
		{"SLURM_JOB_ID", "", "SLURM_JOB_ID is not set"},
		{"SLURM_NNODES", "", "SLURM_NNODES is not set"},
		{"SLURM_JOB_NODELIST", "", "SLURM_JOB_NODELIST is not set"},
		{"SLURM_STEP_NODELIST", "", "SLURM_STEP_NODELIST is not set"},
		{"SLURM_JOB_ID", "../17", `SLURM_JOB_ID="../17" is no number`},
		{"SLURM_ARRAY_JOB_ID", "-f", `SLURM_ARRAY_JOB_ID="-f" is no number`},
		{"SLURM_PROCID", "3", "SLURM_PROCID=3 is no task of 3"},
		{"SLURM_STEP_NUM_TASKS", "6", "6 tasks on 3 nodes"},
		{"SLURM_STEP_NODELIST", "n[1-2]", "3 tasks on 3 nodes (2 names)"},
		{"SLURM_STEP_NODELIST", "n[1-", "[ without ]"},
		{"SLURMD_NODENAME", "-x", "cannot be the name of a host"},
	} {
		_, err := read(map[string]string{c.name: c.value})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: %v, want %q", c.name, c.value, err, c.want)
		}
	}
}

// A node takes a worker for each GPU that Slurm gives the job there, else one for each processor.
func TestReadSlots(t *testing.T) {
	for _, c := range []struct {
		gpus, processors string
		want             int
		err              string
	}{
		{"4", "8", 4, ""}, {"0", "8", 8, ""}, {"", "8", 8, ""}, {"", "", DefaultSlots(), ""},
		{"", "many", 0, `SLURM_CPUS_ON_NODE="many" is no number of workers`},
		{"2000", "8", 0, `SLURM_GPUS_ON_NODE="2000" is no number of workers`},
	} {
		env := map[string]string{"SLURM_GPUS_ON_NODE": c.gpus, "SLURM_CPUS_ON_NODE": c.processors}
		got, err := readSlots(func(name string) string { return env[name] })
		if got != c.want || (err != nil) != (c.err != "") || err != nil &&
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%v: %d, %v", env, got, err)
		}
	}
}

// A job in Slurm grows, unless it says what speaks against that, and begins on its first node.
func TestSlurmFillsTheSpec(t *testing.T) {
	task := &slurmTask{}
	for _, c := range []struct{ spec, want job.Spec }{
		{job.Spec{}, job.Spec{Workers: 4, Grow: true}},
		{job.Spec{Workers: 8}, job.Spec{Workers: 8, Grow: true}},
		{job.Spec{Max: 2}, job.Spec{Workers: 2, Max: 2, Grow: true}},
		{job.Spec{Min: 6}, job.Spec{Workers: 6, Min: 6, Grow: true}},
		{job.Spec{Spares: 1}, job.Spec{Workers: 4, Spares: 1}},
	} {
		if got := task.withDefaults(c.spec, 4); got.String() != c.want.String() {
			t.Errorf("%v became %v, and not %v", c.spec, got, c.want)
		}
	}
}

// Who has led a job that is not done puts it back into the queue, and nobody else does.
func TestSlurmJobIsUnfinished(t *testing.T) {
	bad := errors.New("ended")
	for _, c := range []struct {
		proc   int
		result *runs.Result
		err    error
		want   bool
	}{
		{0, nil, bad, true}, // before anything has run
		{1, nil, bad, false},
		{1, nil, nil, false},
		{0, &runs.Result{OK: true, Parked: true}, nil, true},
		{2, &runs.Result{OK: true, Parked: true}, nil, true},
		{0, &runs.Result{}, bad, true},
		{0, &runs.Result{OK: true}, nil, false},
		{0, &runs.Result{OK: true, GoesOn: "n2"}, nil, false},
	} {
		task := &slurmTask{proc: c.proc, result: c.result}
		if got := task.isUnfinished(c.err); got != c.want {
			t.Errorf("task %d with %+v, %v: %v", c.proc, c.result, c.err, got)
		}
	}
}

// The tasks of a step meet by a file that only its owner can read; one of an earlier start counts
// for nothing, and one that somebody else can write is refused.
func TestSlurmMeeting(t *testing.T) {
	first := &slurmTask{job: "17", step: "0", restart: "0", dir: t.TempDir(), node: "n1",
		nodes: []string{"n1", "n2"}}
	again := *first
	again.restart, again.proc, again.node = "1", 1, "n2"
	if err := first.writeMeeting(slurmMeeting{Join: "n1:1", Token: "old"}); err != nil {
		t.Fatal(err)
	}
	if m, err := again.readMeeting(); m != nil || err != nil {
		t.Errorf("the file of an earlier start gives %+v, %v", m, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	met, g := make(chan *slurmMeeting), group.New(t.Context())
	g.Go("wait for task 0", func(context.Context) error {
		m, err := again.awaitMeeting(ctx, t.Output(), meetingPatience)
		met <- m
		return err
	})
	now := again
	now.proc = 0
	if err := now.writeMeeting(slurmMeeting{Join: "n1:2", Token: "secret"}); err != nil {
		t.Fatal(err)
	}
	if m := <-met; g.Wait() != nil || m == nil || m.Join != "n1:2" || m.Token != "secret" {
		t.Errorf("met at %+v", m)
	}
	if info, err := os.Stat(now.meetingPath()); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}
	other := again // a step beside it, of the same job
	other.step = "1"
	if m, err := other.readMeeting(); m != nil || err != nil || now.meetingPath() ==
		other.meetingPath() {
		t.Errorf("the file of another step gives %+v, %v", m, err)
	}
	now.leaveMeeting(nil)
	if m, err := again.awaitMeeting(ctx, t.Output(), meetingPatience); err != nil || !m.Over {
		t.Errorf("a task that comes after the end: %+v, %v", m, err)
	}
	now.leaveMeeting(errors.New("no port is free"))
	if _, err := again.awaitMeeting(ctx, t.Output(), meetingPatience); err == nil ||
		!strings.Contains(err.Error(), "n1 says that the job has failed: no port is free") {
		t.Errorf("a task 0 that failed: %v", err)
	}
	now.met = now.met.Add(-2 * meetingPatience)
	now.leaveMeeting(nil)
	if _, err := os.Stat(now.meetingPath()); !os.IsNotExist(err) {
		t.Errorf("the file is left behind for good: %v", err)
	}
	killed := again // before it has written anything
	killed.restart = "2"
	if _, err := killed.awaitMeeting(ctx, t.Output(), 0); err == nil || !strings.Contains(
		err.Error(), "task 0 on n1 has not written "+killed.meetingPath()+" within 0s") {
		t.Errorf("a task 0 that was killed: %v", err)
	}
	cancel(errors.New("SIGTERM"))
	for what, spoil := range map[string]func(path string) error{
		"not a file of yours that only you can read": func(path string) error {
			return os.WriteFile(path, nil, 0o644)
		},
		"not a file of yours": func(path string) error { return os.Symlink("/dev/null", path) },
		"does not say where the job listens": func(path string) error {
			return os.WriteFile(path, []byte("{}"), 0o600)
		},
		"has not joined the job: SIGTERM": func(string) error { return nil },
	} {
		task := again
		task.dir = t.TempDir()
		if err := spoil(filepath.Join(task.dir, ".shoal-17.0")); err != nil {
			t.Fatal(err)
		}
		if _, err := task.awaitMeeting(ctx, t.Output(), meetingPatience); err == nil ||
			!strings.Contains(err.Error(), what) {
			t.Errorf("want %q: %v", what, err)
		}
	}
}

// Whatever a file says, it is refused, or says where the job listens or why there is none.
func FuzzSlurmMeeting(f *testing.F) {
	for _, text := range []string{
		`{"shoal":"slurm","version":1,"job":"1","step":"0","restart":"0","join":"n:7","token":"x"}`,
		`{"shoal":"slurm","version":1,"failed":"no port"}`, `{}`, `{"version":2}`, `[`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parseMeeting([]byte(text))
		if err == nil && (m.Failed == "") == (m.Join == "" || m.Token == "") {
			t.Errorf("%q is %+v", text, m)
		}
	})
}
