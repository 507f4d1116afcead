package launcher

import (
	"encoding/json"
	"strings"
	"testing"
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

// Lists of result.json are never null, whatever has become of the job.
func TestResultOfAJobWithoutWorkers(t *testing.T) {
	text, err := json.Marshal(newRegistry("a", 1).runResult())
	if err != nil || !strings.Contains(string(text), `"workers":[]`) {
		t.Errorf("%s, %v", text, err)
	}
}
