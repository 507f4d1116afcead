package launcher

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/setting"
)

// The report about a failed worker is short, whatever the worker has written.
func TestFailureIsOneScreen(t *testing.T) {
	f := &Failure{Job: "digits", Rank: 2, Size: 4, Host: "h1",
		Exit:  proc.Exit{PID: 4711, Signal: syscall.SIGKILL},
		After: 12345678 * time.Microsecond, Tail: []string{"step 1", strings.Repeat("é", 300)},
		Log: "/runs/digits/rank-2.log"}
	want := `job digits failed: rank 2 of 4 was killed by SIGKILL
  where   host h1, process 4711, 12.35s after the start
  output  its last 2 lines
    | step 1
    | ` + strings.Repeat("é", 240) + `…
  log     /runs/digits/rank-2.log
  next    the kernel's out-of-memory killer is the usual cause: check dmesg; use fewer workers or smaller batches`
	if d := cmp.Diff(want, f.Error()); d != "" {
		t.Error(d)
	}
}

// The report says how the worker ended, and what helps.
func TestFailureSaysWhatToDo(t *testing.T) {
	for want, f := range map[string]Failure{
		"exited with code 3":      {Exit: proc.Exit{Code: 3}},
		"its last line\n":         {Tail: []string{"x"}},
		"output  none":            {Exit: proc.Exit{Code: 1}},
		"run the command alone":   {Exit: proc.Exit{Code: 1}},
		"shoal.join()":            {Early: true},
		"before joining":          {Early: true},
		"/dev/shm":                {Exit: proc.Exit{Signal: syscall.SIGBUS}},
		"PYTHONFAULTHANDLER":      {Exit: proc.Exit{Signal: syscall.SIGSEGV}},
		"was killed by SIGUSR1":   {Exit: proc.Exit{Signal: syscall.SIGUSR1}},
		"was killed by signal 40": {Exit: proc.Exit{Signal: 40}},
		"cannot find":             {Exit: proc.Exit{Code: 127}},
		"failed: rank 1 exited with code 0, while rank 0 waits for it in barrier()\n  then    " +
			"rank 0 of 2 exited with code 1\n": {Size: 2, Exit: proc.Exit{Code: 1},
			Because: "rank 1 exited with code 0, while rank 0 waits for it in barrier()"},
		"change 7 (batch 64 -> 128), which policy batch had made\n": {Exit: proc.Exit{Code: 1},
			Trial: &setting.Change{Number: 7, From: "batch=64", To: "batch=128", Policy: "batch"}},
		"let the batch_range end below 128, such as at the 64 of before": {
			Exit: proc.Exit{Code: 1}, Tail: []string{"x"},
			Trial: &setting.Change{From: "batch=64", To: "batch=128,rate=1.4"}},
		"too little memory, train with a smaller batch": {
			Exit: proc.Exit{Code: 1}, Tail: []string{"x"},
			Trial: &setting.Change{From: "batch=256", To: "batch=128"}},
		"the samples that the change gave them": {Exit: proc.Exit{Code: 1}, Tail: []string{"x"},
			Trial: &setting.Change{From: "size=4", To: "size=2"}},
		"why does the one end before the others?": {Exit: proc.Exit{Code: 1},
			Because: "rank 1 exited"},
	} {
		if !strings.Contains(f.Error(), want) {
			t.Errorf("no %q in\n%s", want, f.Error())
		}
	}
}
