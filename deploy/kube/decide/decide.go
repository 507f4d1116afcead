// Package decide says what is to be done for a ShoalJob: a pure function of what people want, what
// was written down, and what was seen of its pods. The operator writes the new state first, and
// creates and deletes only what that state says; before it acts it reads all pods anew. So an
// operator that is killed at any moment, or whose cache is late, makes no second set of pods.
//
// A run is the life of a job from its first pod to its end, or until it is parked. The first pod of
// a run begins the job (shoal run), all others join it (shoal agent), and so does each that takes
// the place of the first. No other pod is created before the first one was seen to run and that is
// written: if the first one vanishes before, no worker has trained anywhere else.
package decide

import (
	"cmp"
	"fmt"
	"slices"
)

// Phase says in a word what a job does; package v1alpha1 says what each means.
type Phase string

// The phases of a job.
const (
	Pending   Phase = ""
	Starting  Phase = "Starting"
	Running   Phase = "Running"
	Parking   Phase = "Parking"
	Parked    Phase = "Parked"
	Succeeded Phase = "Succeeded"
	Failed    Phase = "Failed"
)

// End is what a pod has said of the job when it ended.
type End string

// The ends of a pod.
const (
	NoEnd    End = ""         // it runs, or has said nothing
	Left     End = "left"     // the job goes on without it
	Over     End = "over"     // the job has ended; another pod says how
	Finished End = "finished" // the job has ended well
	Broken   End = "failed"   // the job has failed
	Stopped  End = "stopped"  // somebody has stopped the job
	Shelved  End = "parked"   // the job goes on from a checkpoint when it is begun again
)

// Fruitless is how many runs in a row may end without a step before the job has failed.
const Fruitless = 5

// Member is a pod that the job is meant to have.
type Member struct {
	Number int
	Seen   bool // it was there
}

// State is what is written down of a job: the operator goes on from it.
type State struct {
	Phase     Phase
	Run       int  // counts the runs; 0 = none yet
	Begun     bool // the first pod of the run was seen to run
	Trained   bool // the run has committed a step
	Fruitless int  // runs in a row that have ended without a step
	Retries   int  // runs that were begun because the job had failed
	Next      int  // number of the next new pod of the run
	Members   []Member

	Crashes   int   // pods in a row that have ended by themselves, those of one moment as one
	LastCrash int64 // when the last one did, in seconds of View.Now

	PausedSince int64 // since when it stands while it is to be parked; 0 = it does not

	ParkFailures int   // how often it could not be parked since it is to be
	ParkAgain    int64 // when it may be asked for that again; 0 = it has been, or may be at once
}

// Pod is a pod of the job as it was seen.
type Pod struct {
	Name        string
	Run, Number int
	Running     bool   // its process has been started
	Ended       bool   // its process has ended
	Lingers     bool   // it has Ended, and is there until it is deleted: other processes run in it
	Deleting    bool   // somebody has asked for its end; it may run for a while
	Patient     bool   // it is Deleting, and has more time for that than pods of a deleted job get
	Leaves      bool   // if the job is to have fewer pods, this one goes first
	End         End    // what it has said of the job, if it has ended
	Why         string // how it ended, in words
}

// View is what is to be judged.
type View struct {
	Deleted  bool   // somebody has deleted the job
	Frozen   bool   // its spec is wrong, so that nothing new is made of it
	Suspend  bool   // it should have no pods
	Because  string // why it should have none, or fewer than people want; "" = suspend is true
	Limited  bool   // others than people say how many it may have
	Replicas int    // pods that the job should have
	Retries  int    // how often a job that has failed is begun again
	Now      int64  // seconds since any time, above 0
	Grace    int64  // seconds that a pod gets to leave
	State    State
	Pods     []Pod // of all runs
	Live     Live
}

// Live is what the job says of itself; the zero value = nobody answers.
type Live struct {
	Answers   bool
	Waiting   bool   // all pods that run have been asked, and each waits for a job to join
	Silent    bool   // pods that run have been asked, and none that may train answers
	Early     bool   // not all with whom it begins are there yet: it has made no step
	Paused    bool   // it has too few workers to make steps
	Stuck     bool   // all pods that may train say that they are too few to go on
	Mesh      bool   // each worker has a part of the state
	Steps     int64  // committed ones
	ParkedBy  string // who has asked for it to be parked; "" = nobody
	Parked    bool   // its checkpoint is sealed
	ParkError string // why it could not be parked when that was last asked; "" = it could
}

// Event is something that people should know.
type Event struct {
	Reason  string // one word
	Text    string
	Warning bool
}

// Decision is what is to be done: State is written first, and when that has succeeded the rest is
// done, in any order and as often as you like.
type Decision struct {
	State   State
	Create  []Member // pods of State.Run; number 0 begins the job unless State.Begun
	Delete  []string // names of pods
	Later   int64    // seconds until pods are made that are not made yet; 0 = there are none
	Park    bool     // the job is to be asked to park
	Gone    []int    // members that vanished, by number: the others may be told so
	Release bool     // nothing is left of a deleted job, so that its finalizer may go
	Events  []Event
}

// Acts reports whether the decision is more than a note. One that acts holds only if the pods that
// it was made of were all there are at that time: a cache may lack one that was just created.
func (d Decision) Acts(before State) bool {
	return len(d.Create) > 0 || len(d.Delete) > 0 || d.Release ||
		d.State.Run != before.Run || d.State.Phase != before.Phase ||
		!slices.EqualFunc(d.State.Members, before.Members,
			func(a, b Member) bool { return a.Number == b.Number })
}

// say adds an event.
func (d *Decision) say(reason, text string, args ...any) {
	d.Events = append(d.Events, Event{Reason: reason, Text: fmt.Sprintf(text, args...)})
}

// warn adds an event that is a warning.
func (d *Decision) warn(reason, text string, args ...any) {
	d.Events = append(d.Events, Event{reason, fmt.Sprintf(text, args...), true})
}

// why says why a job should have no pods.
func (v View) why() string { return cmp.Or(v.Because, "suspend is true") }

// until says when it goes on.
func (v View) until() string {
	switch {
	case v.Frozen && !v.Suspend:
		return "its spec is right again"
	case v.Because != "":
		return "it is given pods again"
	}
	return "suspend is false"
}

// Next returns what is to be done. It sorts v.Pods in their place, and changes nothing else.
func Next(v View) Decision {
	d := Decision{State: v.State}
	d.State.Members = slices.Clone(v.State.Members)
	// A time to come is that of a clock that was put back, or of another operator's.
	d.State.LastCrash = min(d.State.LastCrash, v.Now)
	d.State.boundParkAgain(v.Now)
	d.State.PausedSince = 0 // outlasts says otherwise
	slices.SortFunc(v.Pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Run, b.Run), cmp.Compare(a.Number, b.Number))
	})
	switch {
	case v.Deleted:
		d.deleteAll(v.Pods, true)
		for _, p := range v.Pods {
			if p.Patient { // another one, to which it would leave the job, does not come
				d.Delete = append(d.Delete, p.Name)
			}
		}
		if len(v.Pods) == 0 {
			d.Release, d.State.Members = true, nil // nobody makes one any more
		}
		return d
	case v.State.Phase == Succeeded || v.State.Phase == Failed:
		d.deleteAll(v.Pods, false)
		return d
	}
	if v.Live.Answers && v.Live.Steps > 0 {
		d.State.Trained, d.State.Fruitless = true, 0
	}
	if d.takeEnd(v) {
		return d.freeze(v).delay(v)
	}
	switch {
	case v.State.Phase == Pending || v.State.Phase == Parked:
		d.begin(v)
	case v.Suspend:
		d.park(v)
	default:
		if v.State.Phase == Parking {
			d.say("TrainsOn", "the job may have pods again: it trains on, or begins again if it "+
				"has made its checkpoint")
		}
		d.keepSize(v)
	}
	return d.freeze(v).delay(v)
}

// Holds reports whether a pod still has what it was given of the cluster.
func (p Pod) Holds() bool { return !p.Ended || p.Lingers }

// logs says where people read more of a pod that has ended.
func (p Pod) logs() string {
	if p.Lingers {
		return "its logs go with it, since another container of it does not end"
	}
	return fmt.Sprintf("kubectl logs %s shows more", p.Name)
}

// deleteAll deletes all pods that are not being deleted yet; those that have ended stay for their
// logs, unless ended.
func (d *Decision) deleteAll(pods []Pod, ended bool) {
	for _, p := range pods {
		if !p.Deleting && (ended || p.Holds()) {
			d.Delete = append(d.Delete, p.Name)
		}
	}
}

// takeEnd takes in what a pod of this run has said of the end of the job, and reports whether one
// has.
func (d *Decision) takeEnd(v View) bool {
	if v.State.Phase == Pending || v.State.Phase == Parked {
		return false
	}
	for _, p := range v.Pods {
		if p.Run != v.State.Run || !p.Ended {
			continue
		}
		switch p.End {
		case Finished:
			d.State.Phase = Succeeded
			d.say("Succeeded", "the training has ended well; pod %s has seen it through", p.Name)
		case Broken, Stopped:
			if p.End == Broken && v.State.Retries < v.Retries {
				d.retry(v, p)
				return true
			}
			d.State.Phase = Failed
			d.warn("Failed", "the job has failed, as pod %s says: %s; %s", p.Name, p.Why, p.logs())
		case Shelved:
			d.State.Phase = Parked
			d.say("Parked", "the job has made a checkpoint and given its pods back; it goes on at "+
				"the next sample when %s", v.until())
		default:
			continue
		}
		d.State.Members = nil
		d.deleteAll(v.Pods, false)
		return true
	}
	return false
}

// begin begins a run, when no pod of an earlier one is left, unless the job is suspended or wrong.
func (d *Decision) begin(v View) {
	d.State.Phase = Parked
	// names of pods have the run, so they would not be in the way
	d.deleteAll(v.Pods, !v.Suspend && !v.Frozen)
	switch {
	case v.Frozen:
		d.State.Phase = v.State.Phase
		return
	case v.Suspend:
		if v.State.Phase == Pending {
			d.say("Suspended", "the job has no pods: %s", v.why())
		}
		return
	case countLive(v.Pods) > 0:
		d.State.Phase = v.State.Phase
		return
	}
	d.newRun()
	// People want it now, and a run that was parked has not ended for want of a step.
	d.State.Crashes, d.State.LastCrash, d.State.Fruitless = 0, 0, v.State.Fruitless
	d.Create = []Member{{}}
	if d.State.Run == 1 {
		d.say("Started", "pod %d begins the job; the others join it when it is there", 0)
	} else {
		d.say("Resumed", "run %d begins from the newest checkpoint", d.State.Run)
	}
}

// newRun makes the state that of a new run.
func (d *Decision) newRun() {
	fruitless := d.State.Fruitless
	if d.State.Begun && !d.State.Trained {
		fruitless++
	}
	d.State = State{Phase: Starting, Run: d.State.Run + 1, Fruitless: fruitless,
		Retries: d.State.Retries, Next: 1, Members: []Member{{}}, Crashes: d.State.Crashes,
		LastCrash: d.State.LastCrash}
}

// keepSize sees to it that the job has as many pods as it should, those that are being deleted
// among them: what a pod has is free only when the pod is gone.
func (d *Decision) keepSize(v View) {
	s := &d.State
	live, first := countLive(v.Pods), find(v.Pods, s.Run, 0)
	if !s.Begun {
		switch {
		case first == nil:
			s.Phase, s.Members, s.Next = Starting, []Member{{}}, 1
			if d.deleteStrays(v.Pods); live == 0 {
				d.Create = []Member{{}}
			}
			return
		case !first.Running && !first.Ended:
			return
		}
		s.Begun = true
	}
	s.Phase = Running
	over := d.dropGone(v)
	if v.lost() || len(s.Members) == 0 && live == 0 {
		d.beginAgain(v)
		return
	}
	if !over {
		d.setSize(v, live)
	}
	for _, m := range s.Members {
		if !m.Seen && find(v.Pods, s.Run, m.Number) == nil && live+len(d.Create) < v.Replicas {
			d.Create = append(d.Create, m)
		}
	}
	d.deleteStrays(v.Pods)
}

// deleteStrays deletes pods that the job is not meant to have: such as were seen late, and such as
// linger. One that says that the job is over is left until all have ended.
func (d *Decision) deleteStrays(pods []Pod) {
	for _, p := range pods {
		if p.Run == d.State.Run && p.End == Over && len(d.State.Members) > 0 {
			continue
		}
		member := p.Run == d.State.Run && slices.ContainsFunc(d.State.Members,
			func(m Member) bool { return m.Number == p.Number })
		if !member && p.Holds() && !p.Deleting && !slices.Contains(d.Delete, p.Name) {
			d.Delete = append(d.Delete, p.Name)
		}
	}
}

// dropGone takes those out of the members that have ended, are gone, or are asked to end, and says
// so of those that nobody has asked. It reports whether the job is over, as one of them says.
func (d *Decision) dropGone(v View) (over bool) {
	s := &d.State
	var kept []Member
	for _, m := range s.Members {
		p := find(v.Pods, s.Run, m.Number)
		switch {
		case p == nil && m.Seen:
			d.Gone = append(d.Gone, m.Number)
			d.warn("PodGone", "pod %d of run %d is gone; the job goes on without it", m.Number,
				s.Run)
		case p == nil:
			kept = append(kept, m)
		case p.Ended && p.End == Over:
			over = true
		case p.Ended && p.End == Left:
			d.say("PodLeft", "pod %s has left the job at the end of a step", p.Name)
		case p.Ended:
			if !p.Deleting {
				s.crash(v.Now)
			}
			d.warn("PodEnded", "pod %s has ended: %s; the job goes on without it%s", p.Name, p.Why,
				s.delayText(v.Now))
		case p.Deleting:
		default:
			kept = append(kept, Member{m.Number, true})
		}
	}
	s.Members = kept
	for _, p := range v.Pods {
		over = over || p.Run == s.Run && p.Ended && p.End == Over
	}
	return over
}

// setSize adds members that are missing and deletes pods of those that are too many: such as leave
// first, then those that have not started, and then the newest. live is how many pods there are.
func (d *Decision) setSize(v View, live int) {
	s := &d.State
	unseen := 0
	for _, m := range s.Members {
		if !m.Seen && find(v.Pods, s.Run, m.Number) == nil {
			unseen++
		}
	}
	switch missing := v.Replicas - live - unseen; {
	case missing > 0 && !v.Frozen:
		for range missing {
			s.Members = append(s.Members, Member{Number: s.Next})
			s.Next++
		}
	case len(s.Members) > v.Replicas:
		slices.SortStableFunc(s.Members, func(a, b Member) int {
			return cmp.Or(cmp.Compare(d.startedRank(v, a), d.startedRank(v, b)),
				cmp.Compare(a.Number, b.Number))
		})
		for _, m := range s.Members[v.Replicas:] {
			if p := find(v.Pods, s.Run, m.Number); p != nil {
				d.Delete = append(d.Delete, p.Name)
			}
		}
		text := fmt.Sprintf("the job goes from %d to %d pods: the others leave at the end of "+
			"their step", len(s.Members), v.Replicas)
		if v.Because != "" {
			text += "; " + v.Because
		}
		d.say("Smaller", "%s", text)
		s.Members = slices.Clone(s.Members[:v.Replicas])
	}
}

// startedRank orders members by how much it costs to lose them: 0 = its process runs, 1 = not yet,
// 2 = there is no pod, 3 = it is to go first.
func (d *Decision) startedRank(v View, m Member) int {
	switch p := find(v.Pods, d.State.Run, m.Number); {
	case p == nil:
		return 2
	case p.Leaves:
		return 3
	case !p.Running:
		return 1
	}
	return 0
}

// beginAgain begins another run because all pods of the job are gone and none has said how it
// ended, or gives the job up where that has happened too often without a step. What is left are
// pods that wait for a job to join.
func (d *Decision) beginAgain(v View) {
	if v.Frozen { // it is parked when they are gone
		d.deleteAll(v.Pods, false)
		return
	}
	d.newRun()
	if d.State.Fruitless < Fruitless {
		d.warn("Restarted", "all pods that trained are gone and the job has not ended: run %d "+
			"begins from the newest checkpoint", d.State.Run)
		d.beginFirst(v)
		return
	}
	d.State.Phase, d.State.Members, d.State.Run = Failed, nil, v.State.Run
	d.deleteAll(v.Pods, false)
	why := "its pods were deleted"
	for _, p := range v.Pods {
		if p.Run == v.State.Run && p.Why != "" {
			why = p.Why
		}
	}
	d.warn("Failed", "%d runs have ended without a step, so the job is given up; the last one: %s",
		Fruitless, why)
}

// find returns the pod of a run with a number; nil = there is none.
func find(pods []Pod, run, number int) *Pod {
	for i := range pods {
		if pods[i].Run == run && pods[i].Number == number {
			return &pods[i]
		}
	}
	return nil
}

// countLive returns how many pods have something of the cluster.
func countLive(pods []Pod) (n int) {
	for _, p := range pods {
		if p.Holds() {
			n++
		}
	}
	return n
}
