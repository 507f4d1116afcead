package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/rundir"
	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/store"
)

// That a job is to start is in the store before its launcher is started, and before the submission
// is answered.
func TestIntentionBeforeOrder(t *testing.T) {
	h := newHost1(t)
	written := atomic.Bool{} // whether the store has that the job is to start
	k := h.start(&stepped{h.record, func(key string, value []byte,
		do func() (store.Revision, error)) (store.Revision, error) {
		if key != pool.JobKey("lab", "one") || written.Load() {
			return do()
		}
		for range 5 { // what the keeper would do meanwhile
			if err := Call(context.Background(), "lab", PathQueue, nil, &State{}); err != nil {
				t.Error(err)
			}
		}
		if _, err := os.Stat(filepath.Join(h.dir, "one"+partSuffix)); !errors.Is(err,
			fs.ErrNotExist) {
			t.Errorf("before %s is written, the job is started: %v", value, err)
		}
		r, err := do()
		written.Store(strings.Contains(string(value), `"state":"starting"`))
		return r, err
	}})
	<-k.up
	if a, err := h.submit("one", "ends"); err != nil || a.Job != "one" {
		t.Fatalf("%+v %v", a, err)
	}
	if _, err := h.record.Get(context.Background(), pool.JobKey("lab", "one")); err != nil {
		t.Errorf("the submission is answered before the store has it: %v", err)
	}
	h.until("the end of the job", func() bool { return h.job("one").State == pool.Ended })
	if !written.Load() {
		t.Error("it was never written that the job starts")
	}
}

// errDead is what a store answers whose keeper is as if it was killed.
var errDead = fmt.Errorf("%w: the keeper is dead", store.ErrUnavailable)

// A keeper that is gone at any write, before it or after it, is followed by one that starts the job
// if it was not started, and never twice.
func TestGoneAtAnyWrite(t *testing.T) {
	for at := range 2 * 40 {
		h := newHost1(t)
		n, dead := atomic.Int64{}, atomic.Bool{}
		died := make(chan struct{}, 1)
		k := h.start(&stepped{h.record, func(_ string, _ []byte,
			do func() (store.Revision, error)) (r store.Revision, err error) {
			switch last := n.Add(1) == int64(at/2)+1; {
			case dead.Load():
				return 0, errDead
			case last && at%2 == 1:
				_, _ = do()
				fallthrough
			case last:
				dead.Store(true)
				died <- struct{}{}
				return 0, errDead
			}
			return do()
		}})
		var answered error = errDead
		over := make(chan struct{})
		g := group.New(context.Background())
		g.Go("submit", func(context.Context) error {
			defer close(over)
			h.until("a keeper", func() bool { return dead.Load() || answers("lab") })
			if _, answered = h.submit("one", "ends"); answered != nil {
				return nil
			}
			h.until("its end", func() bool {
				var j Job
				err := Call(context.Background(), "lab", PathJob+"?name=one", nil, &j)
				return dead.Load() || err == nil && j.Job.State == pool.Ended
			})
			return nil
		})
		if at == 0 {
			<-died
		}
		select {
		case <-died:
		case <-over:
		}
		k.cancel()
		<-k.ended
		_ = g.Wait()
		crashed := dead.Load()

		k = h.start(h.record)
		<-k.up
		if answered != nil {
			var j Job
			if Call(context.Background(), "lab", PathJob+"?name=one", nil, &j) != nil {
				if _, err := h.submit("one", "ends"); err != nil {
					t.Fatal(err)
				}
			}
		}
		h.until("the end of the job", func() bool { return h.job("one").State == pool.Ended })
		if n := starts(t, h.work, "one"); n != 1 {
			t.Errorf("with a keeper that is gone at write %d: the job was started %d times", at/2+1,
				n)
		}
		k.cancel()
		<-k.ended
		if !crashed {
			if at < 10 {
				t.Errorf("only %d writes: the test tests nothing", at/2)
			}
			return
		}
	}
	t.Error("the writes do not end")
}

// What is on the disk and what runs when a keeper comes, where the one before it was killed between
// two steps of a start; and what the new one reports first. Only who runs holds slots.
func TestFoundOnDisk(t *testing.T) {
	started := `{"attempt":1,"part":1,"pid":0,"run":""}`
	for _, c := range []struct {
		name   string
		part   string // file of the part; "" = none
		locked bool   // whether a process of it runs
		want   string // what is reported at first
	}{
		{"nothing was begun", "", false, "[]"},
		{"only the lock was made", "", true, "[]"},
		{"it may have been started", started, false, "[1.1 live]"},
		{"it was started, and nobody wrote that", started, true, "[1.1 live]"},
		{"the file is torn", started[:12], true, "[0.0 live]"},
		{"the file is torn, and nothing runs", started[:12], false, "[0.0 live]"},
		{"the file is empty", " ", true, "[0.0 live]"},
		{"numbers that cannot be", strings.Replace(started, `"pid":0`, `"pid":-1`, 1), true,
			"[0.0 live]"},
	} {
		h := newHost1(t)
		if c.part != "" {
			err := os.WriteFile(filepath.Join(h.dir, "one"+partSuffix), []byte(c.part), 0o600)
			if err != nil {
				t.Fatal(err)
			}
		}
		lock, err := os.OpenFile(filepath.Join(h.dir, "one"+lockSuffix), os.O_CREATE|os.O_RDWR,
			0o600)
		if err != nil {
			t.Fatal(err)
		}
		if c.locked {
			if err := durable.Flock(lock, syscall.LOCK_EX); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		g := group.New(ctx)
		host := newHost(Config{Name: "lab", Host: "here", Slots: 2, Dir: h.dir}, g)
		report := func() string {
			list := []string{}
			for _, j := range host.report().Jobs {
				text := fmt.Sprintf("%d.%d", j.Attempt, j.Part)
				if j.Live {
					text += " live"
				}
				list = append(list, text)
			}
			return fmt.Sprint(list)
		}
		host.find(ctx)
		<-host.changed // it is reported at once
		if got := report(); c.locked && got != c.want {
			t.Errorf("%s: %s is reported, not %s", c.name, got, c.want)
		}
		lock.Close()
		h.until("the end of it", func() bool {
			return report() == strings.ReplaceAll(c.want, " live", "")
		})
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// A launcher that was killed with its keeper before it had begun tells nothing, and its job is
// started again. One that has said what is wrong has failed.
func TestKilledWithItsKeeper(t *testing.T) {
	for said, final := range map[string]bool{"": false, "shoal: there is no such thing\n": true} {
		h := newHost1(t)
		for suffix, text := range map[string]string{logSuffix: said,
			partSuffix: `{"attempt":1,"part":1,"pid":4194305,"run":""}`} {
			path := filepath.Join(h.dir, "one"+suffix)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		g := group.New(ctx)
		host := newHost(Config{Name: "lab", Host: "here", Slots: 2, Dir: h.dir}, g)
		host.find(ctx)
		h.until("the end of it", func() bool { return !host.report().Jobs[0].Live })
		if x := host.report().Jobs[0].End; x == nil || x.Final != final ||
			x.Lost != !final || final && x.Error != "there is no such thing" {
			t.Errorf("it has said %q: %+v", said, x)
		}
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// Jobs whose launcher cannot be started, or ends before there is a run, have failed, and say why.
func TestCannotStart(t *testing.T) {
	h := newHost1(t)
	k := h.start(h.record)
	<-k.up
	if _, err := h.submit("fails", "fails"); err != nil {
		t.Fatal(err)
	}
	work := h.work
	h.work = filepath.Join(work, "gone")
	if _, err := h.submit("homeless", "ends"); err != nil {
		t.Fatal(err)
	}
	h.work = work
	for name, want := range map[string]string{"fails": "there is no such thing",
		"homeless": "it could not be started: "} {
		h.until("the end of "+name, func() bool { return h.job(name).State.Over() })
		if v := h.job(name); v.State != pool.Failed || !strings.Contains(v.Error, want) {
			t.Errorf("job %s: %+v", name, v)
		}
		if n := starts(t, h.work, name); n > 1 {
			t.Errorf("job %s was started %d times", name, n)
		}
	}
}

// The launcher of a job that is submitted with another folder for temporary files answers where the
// keeper looks for it.
func TestOtherTemporaryFolder(t *testing.T) {
	h := newHost1(t)
	t.Setenv("TMPDIR", os.Getenv("XDG_RUNTIME_DIR"))
	t.Setenv("XDG_RUNTIME_DIR", "")
	k := h.start(h.record)
	<-k.up
	if _, err := h.submit("one", "ends", "TMPDIR="+t.TempDir()); err != nil {
		t.Fatal(err)
	}
	h.until("the end of the job", func() bool { return h.job("one").State == pool.Ended })
	want, err := rundir.Path()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(h.work, "sockets-one"))
	if err != nil || string(got) != want {
		t.Errorf("the launcher answers in %q, %v; the keeper looks in %q", got, err, want)
	}
}

// The time of a pool goes on where the clock of its machine is set back, and follows it where it is
// set ahead, or has slept.
func TestClock(t *testing.T) {
	now := time.Now()
	for _, c := range []struct{ set, want time.Duration }{
		{0, time.Minute}, {-time.Hour, time.Minute}, {time.Hour, time.Hour + time.Minute},
	} {
		before := now.Add(-time.Minute)
		told := time.Duration(before.UnixNano()) - c.set
		k := clock{before, told}
		if got := k.at(now) - told.Milliseconds(); got != c.want.Milliseconds() {
			t.Errorf("a minute in which the clock is set by %v: %d ms", c.set, got)
		}
	}
}

// A job does not start beside processes of it of which the keeper lost track: it does when they are
// gone.
func TestStartBesideLeft(t *testing.T) {
	h := newHost1(t)
	lock, err := os.OpenFile(filepath.Join(h.dir, "one"+lockSuffix), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = durable.Flock(lock, syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	k := h.start(h.record)
	<-k.up
	if _, err := h.submit("one", "ends"); err != nil {
		t.Fatal(err)
	}
	h.until("an attempt", func() bool { return h.job("one").Attempt == 1 })
	for range 50 { // what the keeper would do meanwhile
		if v := h.job("one"); v.Attempt != 1 || v.State.Over() || starts(t, h.work, "one") > 0 {
			t.Fatalf("%+v", v)
		}
	}
	lock.Close()
	h.until("the end of the job", func() bool { return h.job("one").State.Over() })
	if v := h.job("one"); v.State != pool.Ended || v.Attempt != 2 || starts(t, h.work, "one") != 1 {
		t.Errorf("%+v", v)
	}
}

// What an earlier start has said is gone before it is written that the next one may run.
func TestEarlierWords(t *testing.T) {
	h := newHost1(t)
	p := newPart(newHost(Config{Name: "lab", Host: "here", Dir: h.dir}, nil), "one")
	log := filepath.Join(h.dir, "one"+logSuffix)
	if err := os.WriteFile(log, []byte("shoal: job one, 1 worker, files in /old\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(h.dir, "one"+partSuffix)
	if err := os.Mkdir(part, 0o700); err != nil { // so that it cannot be written, as if killed
		t.Fatal(err)
	}
	err := p.start(pool.Order{Verb: pool.StartRun, Dir: h.work})
	if err == nil || p.runDir() != "" {
		t.Errorf("start: %v, and its run is %q", err, p.runDir())
	}
}

// Of a job that is over only the log stays, and of many the last logs.
func TestFilesGo(t *testing.T) {
	h := newHost1(t)
	for i := range maxLogs + 10 {
		for _, suffix := range []string{logSuffix, specSuffix, tokenSuffix} {
			path := filepath.Join(h.dir, fmt.Sprintf("old-%d%s", i, suffix))
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			old := time.Unix(int64(1000-i), 0)
			if err := os.Chtimes(path, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	k := h.start(h.record)
	<-k.up
	if _, err := h.submit("one", "ends"); err != nil {
		t.Fatal(err)
	}
	h.until("the end of the job", func() bool { return h.job("one").State == pool.Ended })
	var names []string
	h.until("the end of its files", func() bool {
		files, err := os.ReadDir(h.dir)
		if err != nil {
			t.Fatal(err)
		}
		names = nil
		for _, file := range files {
			names = append(names, file.Name())
		}
		return !slices.Contains(names, "one"+partSuffix) && len(names) == maxLogs
	})
	for name, is := range map[string]bool{"one.log": true, "old-0.log": true, "old-98.log": true,
		"old-99.log": false} {
		if slices.Contains(names, name) != is {
			t.Errorf("%s is there: %t", name, !is)
		}
	}
}

// A launcher that answers nobody for as long as it wants keeps its slot, also when the keeper is
// another one, and the job ends when the launcher does.
func TestSlowLauncher(t *testing.T) {
	h := newHost1(t)
	h.slots = 1
	if err := syscall.Mkfifo(filepath.Join(h.work, "gate"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := h.start(h.record)
	<-k.up
	for _, name := range []string{"slow", "next"} {
		_, err := h.submit(name, map[string]string{"slow": "waits", "next": "ends"}[name])
		if err != nil {
			t.Fatal(err)
		}
	}
	h.until("its start", func() bool { return starts(t, h.work, "slow") == 1 })
	k.cancel()
	<-k.ended
	k = h.start(h.record)
	if n := <-k.up; n != 2 {
		t.Errorf("the next keeper finds %d jobs", n)
	}
	for range 5 {
		if v := h.job("next"); v.State != pool.Waiting || starts(t, h.work, "next") != 0 {
			t.Errorf("%+v", v)
		}
	}
	gate, err := os.OpenFile(filepath.Join(h.work, "gate"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	gate.Close()
	for _, name := range []string{"slow", "next"} {
		h.until("the end of "+name, func() bool { return h.job(name).State == pool.Ended })
		if n := starts(t, h.work, name); n != 1 {
			t.Errorf("job %s was started %d times", name, n)
		}
	}
}

// Of two keepers of one pool, one loses the store and ends, with the reason. Both leave no
// goroutine.
func TestTwoKeepers(t *testing.T) {
	h := newHost1(t)
	if err := syscall.Mkfifo(filepath.Join(h.work, "gate"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := h.start(h.record)
	<-k.up
	if _, err := h.submit("one", "waits"); err != nil {
		t.Fatal(err)
	}
	h.until("its start", func() bool { return starts(t, h.work, "one") == 1 })
	second := h.start(h.record)
	select {
	case err := <-second.ended:
		if err == nil || !strings.Contains(err.Error(), "is kept already") {
			t.Errorf("a second keeper with the same folder: %v", err)
		}
	case <-second.up:
		t.Fatal("two keepers have the same folder")
	}
	if v := h.job("one"); v.ID != "one" { // of the first one, which still answers
		t.Errorf("%+v", v)
	}
	h.dir = t.TempDir() // as on another host
	t.Setenv("XDG_RUNTIME_DIR", filepath.Dir(h.dir))
	rival := h.start(h.record)
	<-rival.up
	gate, err := os.OpenFile(filepath.Join(h.work, "gate"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	gate.Close() // both want to write how it ends
	select {
	case err = <-k.ended:
	case err = <-rival.ended:
	}
	if !errors.Is(err, store.ErrConflict) || !strings.Contains(err.Error(), "somebody else keeps") {
		t.Errorf("got %v", err)
	}
	k.cancel()
	rival.cancel()
	<-k.ended
	<-rival.ended
	h.until("the end of all goroutines", func() bool { return len(ours()) == 0 })
}

// ours returns the goroutines in which code of a keeper is at work.
func ours() []string {
	text := make([]byte, 1<<20)
	list := strings.Split(string(text[:runtime.Stack(text, true)]), "\n\n")
	return slices.DeleteFunc(list, func(s string) bool {
		return !strings.Contains(s, "/pool/keeper.") || strings.Contains(s, "testing.tRunner")
	})
}
