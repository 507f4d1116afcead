package decide

import (
	"cmp"
	"fmt"
	"slices"
)

// Claim is a claim of a job on the quota of a queue: one Workload of Kueue. A job has one, and
// another one for each time that it is to grow beyond what it has. Pods are alike, so the job may
// have as many as all its claims together were granted.
type Claim struct {
	Number   int  // counts the claims of a job; names of Workloads have it
	Count    int  // pods that it asks for
	Least    int  // with fewer it is not granted
	Reserved bool // the queue keeps quota for it
	Admitted bool // its pods may run
	Granted  int  // pods for which it has quota
	Returned int  // of these, those for which the job has given the quota back
	Taken    int  // pods that are there by it
	Evicted  bool // the queue wants the quota back
	Deleting bool // somebody has deleted it
	Finished bool // it claims nothing any more
	Held     bool // it cannot go before the operator lets it
	Ready    bool // the queue was told that its pods run
	Astray   bool // the job names another queue by now, or another template of pods
	Why      string
}

// Usable returns how many pods may run by a claim.
func (c Claim) Usable() int {
	if !c.Admitted || !c.Reserved || c.Evicted || c.Deleting || c.Finished {
		return 0
	}
	return max(0, c.Granted-c.Returned)
}

// waits reports whether a claim waits for quota, and may be changed.
func (c Claim) waits() bool { return !c.Reserved && !c.Deleting && !c.Finished }

// leaves reports whether the quota of a claim is to be given back.
func (c Claim) leaves() bool { return !c.waits() && (c.Finished || c.Deleting || c.Evicted) }

// QueueView is what is to be judged of a job that is in a queue.
type QueueView struct {
	Queue    string
	Claims   []Claim
	Replicas int  // pods that people want
	Least    int  // pods without which the job cannot train
	Suspend  bool // people want that it has none
	Deleted  bool // somebody has deleted the job
	Over     bool // the job has ended
	Frozen   bool // its spec is wrong, so that it asks for nothing new
	Idle     bool // it has not begun, or is parked
	Live     int  // pods that there are or may be
	Running  int  // of these, those whose processes run
}

// QueueDecision is what follows for a job that is in a queue.
type QueueDecision struct {
	Pods    int    // that the job may have now; 0 = none
	Because string // why the queue does not let it have what people want; "" = it does
	Create  *Claim
	Resize  []Claim // such as wait, with another Count and Least, in the queue that the job names
	Return  []Claim // such as are granted, with a larger Returned
	Clear   []int   // numbers of claims that were evicted, and are to wait again
	Delete  []int   // numbers of claims that are to go
	Finish  []int   // numbers of claims that have served
	Ready   []int   // numbers of claims whose pods all run
}

// Frees reports whether the decision gives quota back. One that does holds only if the pods that it
// was made of were all there are.
func (d *QueueDecision) Frees() bool {
	return len(d.Return)+len(d.Clear)+len(d.Delete)+len(d.Finish) > 0
}

// Queue returns what a job may have by its claims, and what is to become of these. Quota is given
// back when the pods are gone that had it, and not before.
func Queue(v QueueView) (d QueueDecision) {
	v.Claims = slices.Clone(v.Claims)
	slices.SortFunc(v.Claims, func(a, b Claim) int { return cmp.Compare(a.Number, b.Number) })
	usable := 0
	for _, c := range v.Claims {
		usable += c.Usable()
	}
	d.Pods = min(v.Replicas, usable)
	switch {
	case v.Deleted || v.Suspend:
		d.Pods = 0
		if v.Live == 0 {
			d.deleteClaims(v.Claims)
		}
	case v.Over:
		for _, c := range v.Claims {
			if v.Live == 0 && (!c.Finished || c.Held) {
				d.Finish = append(d.Finish, c.Number)
			}
		}
	case v.Frozen && v.Idle && v.Live == 0:
		d.Pods, d.Because = 0, "its spec is wrong"
		d.deleteClaims(v.Claims)
	case d.Pods < v.Least:
		d.Pods, d.Because = 0, v.why()
		if v.Live == 0 {
			d.wait(v)
		}
	default:
		if d.Pods < v.Replicas {
			d.Because = v.why()
		}
		if v.Frozen {
			d.freeze(v, usable)
			return d
		}
		d.adjust(v, usable)
		d.release(v, usable)
	}
	return d
}

// deleteClaims has claims go.
func (d *QueueDecision) deleteClaims(claims []Claim) {
	for _, c := range claims {
		d.Delete = append(d.Delete, c.Number)
	}
}

// why says why a job has fewer pods than people want.
func (v QueueView) why() string {
	for _, c := range v.Claims {
		if c.Evicted && c.Reserved && !c.Finished {
			return fmt.Sprintf("queue %s takes quota back: %s", v.Queue, c.Why)
		}
	}
	for _, c := range v.Claims {
		if c.waits() && c.Why != "" {
			return fmt.Sprintf("it waits for quota of queue %s: %s", v.Queue, c.Why)
		}
	}
	return "it waits for quota of queue " + v.Queue
}

// wait leaves a job without pods the first of its claims, to wait for all that people want.
func (d *QueueDecision) wait(v QueueView) {
	next := 1
	for i, c := range v.Claims {
		next = c.Number + 1
		switch {
		case i > 0 || c.Deleting || c.Finished || c.Admitted && c.Reserved && !c.Evicted:
			d.Delete = append(d.Delete, c.Number) // what is granted is too little to begin with
		case c.Reserved && c.Evicted:
			d.Clear = append(d.Clear, c.Number)
		case c.Reserved:
		case c.Count != v.Replicas || c.Least != v.Least || c.Astray:
			c.Count, c.Least, c.Astray = v.Replicas, v.Least, false
			d.Resize = append(d.Resize, c)
		}
	}
	if len(v.Claims) == 0 {
		d.Create = &Claim{Number: next, Count: v.Replicas, Least: v.Least}
	}
}

// adjust has one claim wait for the pods that a running job lacks, and none if it lacks nothing.
func (d *QueueDecision) adjust(v QueueView, usable int) {
	missing, next, leaving := v.Replicas-usable, 1, false
	waiting := -1
	for i, c := range v.Claims {
		next = c.Number + 1
		switch {
		case c.waits() && waiting < 0:
			waiting = i
		case c.waits():
			d.Delete = append(d.Delete, c.Number)
		case c.leaves():
			leaving = true
			d.leave(v, c, usable)
		case c.Reserved && !c.Admitted:
			missing -= c.Granted
		case v.Running >= d.Pods && !c.Ready:
			d.Ready = append(d.Ready, c.Number)
		}
	}
	switch {
	case missing <= 0 && waiting >= 0:
		d.Delete = append(d.Delete, v.Claims[waiting].Number)
	case missing <= 0:
	case waiting >= 0:
		if c := v.Claims[waiting]; c.Count != missing || c.Least != 1 || c.Astray {
			c.Count, c.Least, c.Astray = missing, 1, false
			d.Resize = append(d.Resize, c)
		}
	case !leaving: // one that leaves may be the next to wait
		d.Create = &Claim{Number: next, Count: missing, Least: 1}
	}
}

// leave gives back the quota of a claim that leaves, when no pod needs it.
func (d *QueueDecision) leave(v QueueView, c Claim, usable int) {
	switch {
	case v.Live > usable:
	case c.Evicted && !c.Finished && !c.Deleting:
		d.Clear = append(d.Clear, c.Number)
	default:
		d.Delete = append(d.Delete, c.Number)
	}
}

// release gives back the quota of pods that people want no more, of the newest claims first, and of
// none more than no pod has.
func (d *QueueDecision) release(v QueueView, usable int) {
	excess := usable - v.Replicas
	if v.Live > v.Replicas {
		return
	}
	for _, c := range slices.Backward(v.Claims) {
		n := min(c.Usable()-c.Taken, excess)
		switch {
		case n <= 0:
			continue
		case n == c.Usable():
			d.Delete = append(d.Delete, c.Number)
		default:
			c.Returned += n
			d.Return = append(d.Return, c)
		}
		excess -= n
	}
}
