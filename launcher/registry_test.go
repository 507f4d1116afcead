package launcher

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/setting"
)

// What is told of a job does not grow with every worker that it has lost: the last that ended are
// in it, and every worker that runs.
func TestEndedWorkersThatAreDescribed(t *testing.T) {
	const lost = mostEnded + 10
	r := newRegistry("a", 1)
	for worker := range lost + 1 {
		r.register("a", &message{Started: &startedMessage{worker, 1000 + worker}})
		if worker > 0 { // worker 0, the oldest, goes on
			r.register("a", &message{Ended: &endedMessage{Worker: worker, Signal: 9}})
		}
	}
	list, _ := r.recentWorkers()
	if len(list) != 1+mostEnded {
		t.Fatalf("%d workers, want 1 that runs and %d that have ended", len(list), mostEnded)
	}
	if list[0].worker != 0 || list[0].exit != nil {
		t.Errorf("the worker that runs is missing: %+v", list[0])
	}
	if first, last := list[1].worker, list[mostEnded].worker; last != lost ||
		first != lost-mostEnded+1 {
		t.Errorf("workers %d to %d are told of, want those that ended last", first, last)
	}
}

// What a launcher keeps does not grow with the workers that a job has lost and replaced, and it
// still knows when the job is over. A line of output of a worker that is forgotten makes it no new
// one.
func TestLostWorkersAreForgotten(t *testing.T) {
	const lost = 1000
	r := newRegistry("a", 2)
	r.setJob(&jobMessage{})
	r.setHost("a")
	start := func(worker int) {
		r.register("a", &message{Started: &startedMessage{worker, 1000 + worker}})
		r.register("a", &message{Joined: &workerMessage{worker}})
	}
	end := func(worker int, m endedMessage) {
		m.Worker = worker
		r.register("a", &message{Ended: &m})
	}
	start(0)
	start(1)
	for worker := 1; worker <= lost; worker++ {
		start(worker + 1)
		r.setDismissed(worker)
		end(worker, endedMessage{Signal: 9, Survived: true})
	}
	const most = mostEnded + 3 // three ran at once
	if n := len(r.endings); n != most {
		t.Errorf("%d endings are kept, want %d", n, most)
	}
	if n := len(r.workers); n != most+2 {
		t.Errorf("%d workers are known, want %d that have ended and 2 that run", n, most)
	}
	if n := len(r.shutdown.dismissed); n != most {
		t.Errorf("%d workers are kept as dismissed, want %d", n, most)
	}
	if n := len(r.old.numbers); n != 1 {
		t.Errorf("the numbers of forgotten workers are %d ranges, want 1", n)
	}
	report := &message{Report: &reportMessage{Worker: 1}}
	if r.registerAndCheckHost("b", 1) || r.register("a", report) || r.workers[1] != nil {
		t.Error("a forgotten worker is known again")
	}
	if v := r.verdict(); v.done {
		t.Errorf("two workers run, and the job is over: %+v", v)
	}
	end(0, endedMessage{})
	end(lost+1, endedMessage{})
	if v := r.verdict(); !v.done || v.fault != noFault {
		t.Errorf("all workers have ended, and two of them well: %+v", v)
	}
	if n := len(r.runResult().Workers); n != most {
		t.Errorf("result.json has %d workers, want %d", n, most)
	}
}

// Whoever ends in a fault is not forgotten, however many end after it, and a job whose forgotten
// workers alone ended well has not failed.
func TestFaultsAreNotForgotten(t *testing.T) {
	r := newRegistry("a", 1)
	r.setJob(&jobMessage{})
	r.setHost("a")
	for worker := range 500 {
		r.register("a", &message{Started: &startedMessage{worker, 1000 + worker}})
		r.register("a", &message{Joined: &workerMessage{worker}})
		m := endedMessage{Worker: worker, Signal: 9, Survived: worker >= 200}
		if worker < 200 {
			m.Signal = 0
		}
		r.register("a", &message{Ended: &m})
	}
	if v := r.verdict(); !v.done || v.fault != noFault {
		t.Errorf("200 workers have ended well, and %d of them are forgotten: %+v", r.old.well, v)
	}
	r.register("a", &message{Started: &startedMessage{500, 1500}})
	r.register("a", &message{Ended: &endedMessage{Worker: 500, Code: 3}})
	for worker := 501; worker < 1000; worker++ {
		r.register("a", &message{Started: &startedMessage{worker, 1000 + worker}})
		r.register("a", &message{Ended: &endedMessage{Worker: worker, Signal: 9, Survived: true}})
	}
	v := r.verdict()
	if v.fault != badExit || v.culprit.worker != 500 {
		t.Fatalf("worker 500 has failed, and the verdict is %+v", v)
	}
	if f := r.failureReport(v, time.Now(), nil); f.Rank != 500 || f.Size != 1000 {
		t.Errorf("the report is about worker %d of %d", f.Rank, f.Size)
	}
}

// A host that leads once more is told once more how workers of others have ended, and counts each
// end once. What comes of a worker whose end is known is not heeded.
func TestLeadingOnceMore(t *testing.T) {
	r := newRegistry("a", 3)
	r.setJob(&jobMessage{})
	r.setHost("a")
	for worker, host := range []string{"a", "b", "b"} {
		r.register(host, &message{Started: &startedMessage{worker, 1000 + worker}})
		r.register(host, &message{Joined: &workerMessage{worker}})
	}
	lost := &message{Ended: &endedMessage{Worker: 1, Signal: 9, Survived: true}}
	if !r.register("b", lost) || r.register("b", lost) {
		t.Error("the end of a worker is not heeded once")
	}
	r.register("a", &message{Ended: &endedMessage{Worker: 0}})
	r.setLeader("b", nil)
	if len(r.endings) != 1 || r.endings[0].worker != 0 {
		t.Errorf("a host that does not lead has the endings %+v", r.endings)
	}
	r.setLeader("a", []string{"a", "b"})
	r.addOffer("b", offerMessage{Known: true})
	for worker := 1; worker < 3; worker++ {
		r.register("b", &message{Started: &startedMessage{worker, 1000 + worker}})
		r.register("b", &message{Joined: &workerMessage{worker}})
	}
	r.register("b", lost)
	if v := r.verdict(); v.done || len(r.endings) != 2 {
		t.Errorf("worker 2 runs, and the verdict is %+v of %+v", v, r.endings)
	}
	r.register("b", &message{Ended: &endedMessage{Worker: 2}})
	if v := r.verdict(); !v.done || v.fault != noFault {
		t.Errorf("all workers have ended, and the verdict is %+v of %+v", v, r.endings)
	}
}

// A host that comes to lead judges by all workers, or not at all: not before each other host has
// told of its workers, nor where there is none. Workers of a host that led meanwhile and is lost
// are awaited no more by the host on which the job began.
func TestJudgingOnANewHead(t *testing.T) {
	// ended has a worker of a host start, join and end well.
	ended := func(r *registry, worker int) {
		r.register(r.host, &message{Started: &startedMessage{worker, 1000 + worker}})
		r.register(r.host, &message{Joined: &workerMessage{worker}})
		r.register(r.host, &message{Ended: &endedMessage{Worker: worker}})
	}
	r := newRegistry("b", 0)
	r.setJob(&jobMessage{})
	r.setLeader("b", []string{"b"})
	if v := r.verdict(); v.done {
		t.Errorf("without a worker the verdict is %+v", v)
	}

	r = newRegistry("b", 0)
	r.setJob(&jobMessage{})
	r.setLeader("a", nil)
	ended(r, 1)
	r.setLeader("b", []string{"b", "c"})
	r.register("c", &message{Started: &startedMessage{2, 1002}})
	if v := r.verdict(); v.done {
		t.Errorf("before c has told all the verdict is %+v", v)
	}
	r.addOffer("c", offerMessage{Known: true})
	if v := r.verdict(); v.done {
		t.Errorf("while worker 2 runs the verdict is %+v", v)
	}

	r = newRegistry("a", 2)
	r.setJob(&jobMessage{})
	r.setHost("a")
	r.register("b", &message{Started: &startedMessage{1, 1001}})
	r.setLeader("b", nil)
	r.forgetHost("b")
	ended(r, 0)
	r.setLeader("a", []string{"a"})
	if v := r.verdict(); !v.done || v.fault != noFault {
		t.Errorf("worker 1 went with its host, and the verdict is %+v", v)
	}
}

// A worker that waits to take part, and ends well since the state of the job is lost with the host
// that led, is not at fault: the report says with which host.
func TestStateIsLostWithTheHead(t *testing.T) {
	for _, lost := range []bool{false, true} {
		r := newRegistry("a", 0)
		r.setJob(&jobMessage{})
		r.setHost("a")
		r.setLeader("b", []string{"a", "b"})
		if lost {
			r.forgetHost("b")
		}
		r.setLeader("a", []string{"a"})
		r.register("a", &message{Started: &startedMessage{1, 1001}})
		r.register("a", &message{Joined: &workerMessage{1}})
		r.register("a", &message{Ended: &endedMessage{Worker: 1}})
		r.setJobEnd(false)
		v, want := r.verdict(), ""
		if lost {
			want = "was let go: the state of the job was lost with host b"
		}
		f := r.failureReport(v, time.Now(), nil)
		if v.fault != allLost || f.Exit.Lost != want || lost != (f.Host == "b") {
			t.Errorf("fault %d: %v on %s, not %q", v.fault, f.Exit, f.Host, want)
		}
		if f.Rank != 1 || f.Size != 2 { // worker 0 was another host's
			t.Errorf("rank %d of %d", f.Rank, f.Size)
		}
	}
}

// Where all workers end by themselves in the trial of a policy's change, the report names it. It
// does not where they were killed, the change was a person's, or it has ended. A change of routes
// meanwhile does not matter.
func TestAllEndInATrial(t *testing.T) {
	policys := &setting.Change{Number: 2, Phase: setting.Entered, Policy: "batch"}
	for name, x := range map[string]struct {
		end     endedMessage
		changes []*setting.Change
		want    *setting.Change
	}{
		"by themselves": {endedMessage{Code: 1}, []*setting.Change{policys}, policys},
		"with another route": {endedMessage{Code: 1}, []*setting.Change{policys, {Number: 1,
			Phase: setting.Entered, Policy: setting.Routes}}, policys},
		"with the route of before": {endedMessage{Code: 1}, []*setting.Change{policys, {Number: 1,
			Phase: setting.Reverted, Policy: setting.Routes}}, policys},
		"killed":     {endedMessage{Signal: 9}, []*setting.Change{policys}, nil},
		"no change":  {endedMessage{Code: 1}, nil, nil},
		"a person's": {endedMessage{Code: 1}, []*setting.Change{{Phase: setting.Entered}}, nil},
		"kept": {endedMessage{Code: 1}, []*setting.Change{policys, {Number: 2,
			Phase: setting.Kept, Policy: "batch"}}, nil},
	} {
		r := newRegistry("a", 1)
		r.setJob(&jobMessage{})
		r.setHost("a")
		told := newReporter(nil, nil)
		for _, c := range x.changes {
			told.reportEvent(agent.Event{What: "change", Change: c})
		}
		for worker := range 2 {
			r.register("a", &message{Started: &startedMessage{worker, 1000 + worker}})
			r.register("a", &message{Joined: &workerMessage{worker}})
		}
		for worker := range 2 {
			end := x.end
			end.Worker, end.Survived = worker, true
			r.register("a", &message{Ended: &end})
		}
		r.setJobEnd(false)
		v := r.verdict()
		f := r.failureReport(v, time.Now(), told.changeOnTrial())
		if v.fault != allLost || f.Trial != x.want {
			t.Errorf("%s: fault %d, trial %v", name, v.fault, f.Trial)
		}
	}
}

// A set of numbers has what was added, in whatever order, and as few ranges as there can be.
func TestNumberSet(t *testing.T) {
	var s numberSet
	want := map[int]bool{}
	for _, n := range []int{5, 3, 4, 9, 0, 1, 4, 7, 8} {
		s.add(n)
		want[n] = true
		for i := range 12 {
			if s.has(i) != want[i] {
				t.Fatalf("after %d: %v has %d: %t", n, s, i, s.has(i))
			}
		}
	}
	if want := (numberSet{{0, 1}, {3, 5}, {7, 9}}); !slices.Equal(s, want) {
		t.Errorf("the ranges are %v, want %v", s, want)
	}
}

// Lists of result.json are never null, whatever has become of the job.
func TestResultOfAJobWithoutWorkers(t *testing.T) {
	text, err := json.Marshal(newRegistry("a", 1).runResult())
	if err != nil || !strings.Contains(string(text), `"workers":[]`) {
		t.Errorf("%s, %v", text, err)
	}
}

// A host that has left a job says which host led it then, also where that one was lost before the
// workers here had ended: the job has not ended with them.
func TestResultOfAHostThatHasLeft(t *testing.T) {
	r := newRegistry("a", 1)
	r.setJob(&jobMessage{})
	r.setHost("a")
	r.register("a", &message{Started: &startedMessage{0, 1000}})
	r.setLeader("b", []string{"a", "b"})
	r.setDrained()
	r.setHostNotNeeded(nil)
	r.forgetHost("b")
	r.register("a", &message{Ended: &endedMessage{Worker: 0}})
	if done, err := r.mayLeave(); !done || err != nil {
		t.Fatalf("it stays: %t, %v", done, err)
	}
	if goesOn := r.runResult().GoesOn; goesOn != "b" {
		t.Errorf("the job goes on on %q, not b", goesOn)
	}
}

// A job does not wait for the end of a worker that was to start on a host that left before: when
// the members have finished, nobody starts any more.
func TestWorkersThatNeverStartDoNotKeepAJob(t *testing.T) {
	r := newRegistry("a", 2)
	r.setJob(&jobMessage{})
	r.setHost("a")
	r.register("a", &message{Started: &startedMessage{0, 1000}})
	r.register("a", &message{Joined: &workerMessage{0}})
	r.register("a", &message{Ended: &endedMessage{Worker: 0}})
	if v := r.verdict(); v.done {
		t.Errorf("%+v, while another worker is to start", v)
	}
	r.setJobEnd(true)
	if v := r.verdict(); !v.done || v.fault != noFault {
		t.Errorf("%+v when the members have finished, want a good end", v)
	}
}
