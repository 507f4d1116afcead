package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/pool"
)

// A job gets the variables of who submits it, but for those that its hosts decide.
func TestSubmittedEnvironment(t *testing.T) {
	got, err := environment([]string{"PATH=/bin", "XDG_RUNTIME_DIR=/run/user/7", "SHOAL_RANK=3",
		"_=/x", "CUDA_VISIBLE_DEVICES=7", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_HOME=/cuda",
		"=C:=C:", "EMPTY=", "SHOAL_NCCL=0"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"PATH=/bin", "CUDA_HOME=/cuda", "EMPTY=", "SHOAL_NCCL=0"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// An entry that is no variable is refused, and not left out.
func TestSubmittedEnvironmentIsChecked(t *testing.T) {
	for _, entry := range []string{"no variable", "NUL=\x00", ""} {
		_, err := environment([]string{"PATH=/bin", entry})
		if no := new(pool.UsageError); !errors.As(err, &no) ||
			!strings.Contains(no.Msg, fmt.Sprintf("env: %q is no variable", entry)) {
			t.Errorf("%q: %v", entry, err)
		}
	}
}

// A job gets no more workers than a launcher takes, however many slots the pool has.
func TestMostWorkers(t *testing.T) {
	q := Request{Spec: "{workers: 2, max: 5000, command: [x]}", Dir: "/"}
	if s, err := q.submission(); err != nil || s.Max != job.MaxWorkers {
		t.Errorf("up to %d workers: %v", s.Max, err)
	}
}

// A job does not take itself for the task of Slurm in which its keeper was started, or in which it
// was submitted.
func TestKeeperInSlurm(t *testing.T) {
	h := newHost1(t)
	for _, name := range []string{"SLURM_JOB_ID", "SLURMD_NODENAME", "PMI_SIZE", "SLURM_CONF"} {
		t.Setenv(name, "7")
	}
	k := h.start(h.record)
	<-k.up
	if _, err := h.submit("one", "ends", "SLURM_STEP_NUM_TASKS=2", "SLURMS=2"); err != nil {
		t.Fatal(err)
	}
	h.until("the end of the job", func() bool { return h.job("one").State == pool.Ended })
	text, err := os.ReadFile(filepath.Join(h.work, "environment-one"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for variable := range strings.Lines(string(text)) {
		if strings.HasPrefix(variable, "SLURM") || strings.HasPrefix(variable, "PMI") {
			got = append(got, variable)
		}
	}
	slices.Sort(got)
	if d := cmp.Diff([]string{"SLURMS=2\n", "SLURM_CONF=7\n"}, got); d != "" {
		t.Error(d)
	}
}

// A job whose folder is not there fails, and says so, not that there is no shoal.
func TestFolderIsMissing(t *testing.T) {
	h := newHost1(t)
	k := h.start(h.record)
	<-k.up
	gone := filepath.Join(h.work, "gone")
	if err := Call(context.Background(), "lab", PathSubmit, Request{Spec: "name: one\n" +
		"command: [fake]\n", Dir: gone, Env: []string{}, Who: "ada"}, &pool.Answer{}); err != nil {
		t.Fatal(err)
	}
	h.until("its failure", func() bool { return h.job("one").State == pool.Failed })
	want := "the folder " + gone + " in which it was submitted: no such file or directory: "
	if why := h.job("one").Error; !strings.Contains(why, want) {
		t.Errorf("it failed since %q, want %q", why, want)
	}
}

// Who asks with more than a keeper reads is told so, also while he still writes.
func TestRequestIsTooLong(t *testing.T) {
	h := newHost1(t)
	k := h.start(h.record)
	<-k.up
	_, err := h.submit("one", "ends", "LONG="+strings.Repeat("x", 4*maxRequest))
	if no := new(pool.UsageError); !errors.As(err, &no) || !strings.Contains(no.Msg, "more than") {
		t.Errorf("got %v", err)
	}
}

// A keeper refuses what cannot be printed as the name of who asks, and a body that is no request in
// words of its own. Who is not named is somebody.
func TestWhoAsksIsPrinted(t *testing.T) {
	h := newHost1(t)
	k := h.start(h.record)
	<-k.up
	ctx := context.Background()
	if _, err := h.submit("one", "waits"); err != nil {
		t.Fatal(err)
	}
	for want, body := range map[string]any{
		"who: \"a\\nb\" cannot stand in a message":             Ask{Job: "one", Who: "a\nb"},
		"field job has a number (at byte 8), and takes a text": map[string]int{"job": 1},
	} {
		err := Call(ctx, "lab", PathPark, body, nil)
		if no := new(pool.UsageError); !errors.As(err, &no) || !strings.Contains(no.Msg, want) {
			t.Errorf("%v: %v, want %q", body, err, want)
		}
	}
	if err := Call(ctx, "lab", PathPark, Ask{Job: "one"}, &struct{}{}); err != nil {
		t.Fatal(err)
	}
	if why := h.job("one").Because; !strings.HasPrefix(why, "parked by somebody") {
		t.Errorf("it is parked, because %q", why)
	}
}

// A job of the longest name that there is can be started however often it is submitted.
func TestLongestName(t *testing.T) {
	m, err := pool.New(pool.Config{Name: "lab"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m.HostUp(1, "here", 4, "")
	name := strings.Repeat("x", 50)
	for range 12 {
		id, err := m.Submit(1, pool.Submission{Name: name, Spec: "x", Min: 1, Max: 1, Asked: 1})
		if err == nil {
			err = job.CheckName(id)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if job.CheckName(name+"x") == nil {
		t.Error("a longer name would do")
	}
}
