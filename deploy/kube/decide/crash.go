package decide

import "fmt"

// Pods that end by themselves, and jobs that fail: how soon others are made, and how often.

// A pod that ends by itself is replaced at once the first time, then firstDelay seconds later, and
// each time twice as late, up to longestDelay. One that ends more than calm seconds after the one
// before is a first one again.
const (
	firstDelay   = 10
	longestDelay = 300
	calm         = 600
)

// crash notes that a pod has ended by itself. While pods are delayed for that, others that do are
// of the same moment, and are not counted.
func (s *State) crash(now int64) {
	if now-s.LastCrash > calm {
		s.Crashes = 0
	}
	if s.wait(now) == 0 {
		s.Crashes, s.LastCrash = s.Crashes+1, now
	}
}

// wait returns for how many seconds no pod is made because pods have ended by themselves.
func (s *State) wait(now int64) int64 {
	if s.Crashes < 2 {
		return 0
	}
	return max(0, s.LastCrash+growing(s.Crashes-2)-now)
}

// growing returns a pause in seconds after n others, each of which was twice as long as the one
// before, up to longestDelay.
func growing(n int) int64 { return int64(min(firstDelay<<min(n, 8), longestDelay)) }

// delay takes back the pods that are to be made if too many have ended by themselves.
func (d Decision) delay(v View) Decision {
	if wait := d.State.wait(v.Now); wait > 0 && len(d.Create) > 0 {
		d.Create, d.Later = nil, wait
	}
	return d
}

// delayText says how long it takes until another pod is made; "" = that is not delayed.
func (s *State) delayText(now int64) string {
	if wait := s.wait(now); wait > 0 {
		return fmt.Sprintf(", and another one is made in %d s, since %d have ended by themselves",
			wait, s.Crashes)
	}
	return ""
}

// retry begins a job again that has failed, as a pod says.
func (d *Decision) retry(v View, p Pod) {
	d.State.crash(v.Now)
	if v.Frozen || v.Suspend {
		d.State.Phase, d.State.Members = Parked, nil
		d.State.Retries++
		d.warn("Retried", "the job has failed, as pod %s says: %s; it begins again from its "+
			"newest checkpoint when %s, %d of %d times", p.Name, p.Why, v.until(), d.State.Retries,
			v.Retries)
		d.deleteAll(v.Pods, false)
		return
	}
	d.newRun()
	d.State.Retries++
	d.warn("Retried", "the job has failed, as pod %s says: %s; it begins again from its newest "+
		"checkpoint, %d of %d times", p.Name, p.Why, d.State.Retries, v.Retries)
	d.beginFirst(v)
}

// beginFirst makes the first pod of a run when no other pod is left.
func (d *Decision) beginFirst(v View) {
	if d.deleteAll(v.Pods, false); countLive(v.Pods) == 0 {
		d.Create = []Member{{}}
	}
}
