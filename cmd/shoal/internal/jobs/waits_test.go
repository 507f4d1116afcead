package jobs

import (
	"strings"
	"testing"
	"time"

	api "github.com/shoal-ml/shoal/api/control"
)

// TestAdviceLines checks that what is advised is what can be done: by what the process does, where
// it is, and what the job can do without it.
func TestAdviceLines(t *testing.T) {
	train := api.Job{Name: "train", Head: "a", Size: 4, Want: 4,
		Training: api.Training{Elastic: true}}
	// with returns a changed copy of the job train.
	with := func(change func(j *api.Job)) api.Job {
		j := train
		change(&j)
		return j
	}
	here := api.Worker{Worker: 2, Host: "a", PID: 77, Awaited: &api.Wait{Waiters: 3}}
	there, unborn, circle := here, here, here
	there.Host, unborn.PID, circle.Awaited = "b", 0, &api.Wait{Waiters: 1, OwnCall: "recv()"}
	for _, c := range []struct {
		name  string
		job   api.Job
		who   api.Worker
		state byte     // 0 = the number is not that of the process here
		want  []string // beside the log
	}{
		{"it computes", train, here, 'R',
			[]string{"py-spy dump --pid 77",
				"kill -9 77; the others go on without it, and shoal resize train 4 starts " +
					"another"}},
		{"it is stopped", train, here, 'T', []string{"kill -CONT 77", "kill -9 77"}},
		{"a debugger has it", train, here, 't', []string{"by a debugger", "kill -9 77"}},
		{"the disk does not answer", train, here, 'D',
			[]string{"waits in the kernel", "kill -9 77"}},
		{"on another host", train, there, 0,
			[]string{"on b, in the container of its agent if there is one: py-spy dump",
				"to end it there: kill -9 77"}},
		{"in another PID namespace", train, here, 0,
			[]string{"not to be seen here under its number", "py-spy",
				"to end it there: kill -9 77"}},
		{"a spare waits", with(func(j *api.Job) {
			j.Spares = 1
		}), here, 'S', []string{"py-spy",
			"kill -9 77; the others go on without it, with a spare in its place"}},
		{"a mesh", with(func(j *api.Job) {
			j.Mesh = "dp=2,tp=2"
		}), here, 'S', []string{"py-spy",
			"on a smaller mesh; if it alone has a part of the state, they go back to a " +
				"checkpoint"}},
		{"a mesh and a spare", with(func(j *api.Job) {
			j.Mesh, j.Spares = "tp=4", 1
		}), here, 'S', []string{"py-spy",
			"with a spare in its place; if it alone has a part of the state"}},
		{"no fewer", with(func(j *api.Job) {
			j.Min = 4
		}), here, 'S', []string{"py-spy", "the job waits then for another: shoal resize train 4"}},
		{"no steps", with(func(j *api.Job) {
			j.Elastic = false
		}), here, 'S', []string{"py-spy", "to end the job: shoal stop train"}},
		{"not started", train, unborn, 0, []string{"has not been started yet"}},
		{"a circle", train, circle, 'S', []string{"py-spy", "made their calls in different " +
			"orders, and do not come out of that by themselves, unless one of them computes",
			"kill -9 77"}},
		{"a circle without steps", with(func(j *api.Job) {
			j.Elastic = false
		}), circle, 'S', []string{"py-spy", "made their calls in different orders",
			"shoal stop train"}},
	} {
		got := adviceLines(c.job, c.who, c.state, c.state != 0)
		want := append([]string{"shoal logs train --rank 2"}, c.want...)
		if len(got) != len(want) {
			t.Errorf("%s: %q", c.name, got)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("%s: %q, want %q in it", c.name, got[i], want[i])
			}
		}
	}
}

// TestWaitText checks what is said of a worker that others wait for.
func TestWaitText(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)
	for _, c := range []struct {
		wait api.Wait
		want string
	}{
		{api.Wait{Since: now.Add(-42 * time.Second), Call: "barrier()", Waiters: 1},
			"worker 2: 1 other waits for it in barrier(), since 11:59:18 (42 s)"},
		{api.Wait{Since: now.Add(-90 * time.Minute), Call: "barrier()", Group: 3, Waiters: 7},
			"worker 2: 7 others wait for it in barrier() of group 3, since 10:30:00 (1h30m)"},
		{api.Wait{Since: now.Add(-599 * time.Second), Call: "barrier()", Waiters: 1, Absent: true},
			"worker 2: 1 other waits for it in barrier(), since 11:50:01 (599 s); it has not " +
				"joined yet"},
		{api.Wait{Since: now.Add(time.Second), Call: "send()", Waiters: 1, OwnCall: "recv()"},
			"worker 2: 1 other waits for it in send(), since 12:00:01 (0 s); its own call waits " +
				"too: recv()"},
	} {
		if got := waitText(api.Worker{Worker: 2, Awaited: &c.wait}, now); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestPrintNeed checks what is said of a job that goes on only when somebody does something.
func TestPrintNeed(t *testing.T) {
	paused := api.Job{Name: "train", State: api.Paused, Size: 1, Min: 2}
	mesh, full := paused, paused
	mesh.Mesh, full.Unplaced = "dp=2", 1
	larger := api.Job{Name: "train", State: api.Resizing, Size: 2, Want: 4, Unplaced: 2,
		Room: api.Room{Slots: 2},
		Join: "a:7000"}
	for _, c := range []struct {
		job  api.Job
		want string
	}{
		{api.Job{Name: "train", State: api.Running, Size: 2, Min: 2}, ""},
		{paused, "train: waits, because 1 member is fewer than --min 2; shoal resize train 2 " +
			"gives it more\n"},
		{mesh, "train: waits, because 1 member is fewer than --min 2; shoal reshape train gives " +
			"it more\n"},
		{full, "train: waits, because 1 member is fewer than --min 2, and no host has a free " +
			"slot; shoal resize train 2 says how another one joins\n"},
		{larger, "train: no host has a free slot for 2 workers, since the hosts have 2 slots in " +
			"all; the job goes on, and starts them when a host joins: shoal agent --join a:7000 " +
			"--token-file FILE, with a token of shoal token train\n"},
		{api.Job{Name: "train", State: api.Stuck}, "train: too few hosts are left to go " +
			"on by themselves; if the others are gone for good, shoal recover train --force\n"},
	} {
		var out strings.Builder
		if err := printNeed(&out, c.job); err != nil || out.String() != c.want {
			t.Errorf("%+v: %q (%v), want %q", c.job, out.String(), err, c.want)
		}
	}
}
