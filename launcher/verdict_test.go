package launcher

import (
	"slices"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
)

// The launcher decides from the workers that have ended whether the job is over, and which of them
// has failed.
func TestJudge(t *testing.T) {
	well := func(worker int) ending { return ending{worker: worker} }
	bad := func(worker int) ending { return ending{worker: worker, exit: proc.Exit{Code: 1}} }
	killed := func(worker int) ending {
		return ending{worker: worker, exit: proc.Exit{Signal: syscall.SIGKILL}}
	}
	lost := func(worker int) ending { e := killed(worker); e.survived = true; return e }
	for name, c := range map[string]struct {
		ended   []ending
		joined  []int
		done    bool
		culprit int
		fault   fault
	}{
		"nobody has ended":   {nil, []int{0, 1, 2}, false, 0, noFault},
		"one has ended well": {[]ending{well(1)}, []int{0, 1}, false, 0, noFault},
		"all have ended well": {[]ending{well(1), well(0), well(2)}, []int{0, 1, 2},
			true, 0, noFault},
		"one has failed": {[]ending{well(1), bad(2)}, []int{0, 1, 2}, true, 2,
			badExit},
		"the first that failed decides": {[]ending{killed(1), bad(0), bad(2)}, nil, true, 1,
			badExit},
		"all alone, some still run": {[]ending{well(0), well(1)}, nil, false, 0, noFault},
		"all alone": {[]ending{well(0), well(1), well(2)}, nil, true, 0,
			noFault},
		"one never joined": {[]ending{well(0), well(1)}, []int{0}, true, 1,
			neverJoined},
		"one never joined, all have ended": {[]ending{well(0), well(2), well(1)}, []int{0, 2}, true,
			1, neverJoined},
		"a loss is survived": {[]ending{lost(1)}, []int{0, 1, 2}, false, 0, noFault},
		"the others end well after it": {[]ending{lost(1), well(0), well(2)}, []int{0, 1, 2},
			true, 0, noFault},
		"all are lost": {[]ending{lost(1), lost(0), lost(2)}, []int{0, 1, 2},
			true, 2, allLost},
		"a failure because of an absence": {[]ending{well(0), bad(1)}, []int{1}, true, 0,
			neverJoined},
		"an absence after a failure": {[]ending{bad(1), well(0)}, []int{1}, true, 1, badExit},
		"who was released carries nothing": {[]ending{well(2), lost(1), lost(0)}, []int{0, 1, 2},
			true, 0, allLost},
		"nor who never got the state": {[]ending{lost(0), lost(1), well(2)}, []int{0, 1, 2},
			true, 1, allLost},
	} {
		v := judge(3, forgotten{}, c.ended, func(worker int) bool {
			return slices.Contains(c.joined, worker)
		}, len(c.joined) > 0, c.fault == allLost)
		if v.done != c.done || v.fault != c.fault || v.culprit.worker != c.culprit {
			t.Errorf("%s: done %v, fault %v of worker %d", name, v.done, v.fault, v.culprit.worker)
		}
	}
}

// A worker that fails by itself ends the job, unless enough others are left by the user's word, the
// job was well without it, or a policy has just changed how the job trains.
func TestJobSurvives(t *testing.T) {
	failed, killed := proc.Exit{Code: 3}, proc.Exit{Signal: 9}
	for _, x := range []struct {
		name   string
		spec   job.Spec
		worker int
		exit   proc.Exit
		status agent.Status
		want   bool
	}{
		{"fails", job.Spec{Workers: 2}, 1, failed, agent.Status{Elastic: true}, false},
		{"is killed", job.Spec{Workers: 2}, 1, killed, agent.Status{Elastic: true}, true},
		{"is killed, no steps", job.Spec{Workers: 2}, 1, killed, agent.Status{}, false},
		{"came late", job.Spec{Workers: 2}, 2, failed, agent.Status{Elastic: true}, true},
		{"with min", job.Spec{Workers: 2, Min: 1}, 1, failed, agent.Status{Elastic: true}, true},
		{"in a trial", job.Spec{Workers: 2}, 1, failed,
			agent.Status{Elastic: true, Trying: true}, true},
	} {
		if got := jobSurvives(x.spec, x.worker, x.exit, x.status); got != x.want {
			t.Errorf("a worker that %s: the job survives: %v, expected %v", x.name, got, x.want)
		}
	}
}
