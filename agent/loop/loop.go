// Package loop runs package act on an agent: it looks at the job four times a second, has the
// policies decide, and passes what they want to the head. The clock and the goroutine are here; the
// decisions are not.
package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// maxPast is how many beginnings and ends of changes are kept for policies that run later.
const maxPast = 128

// Look is what an agent knows of its job at a moment.
type Look struct {
	// Entries are the entries of the log since the last look that began or ended a change, oldest
	// first, and one for how the job trains now.
	Entries     []act.Entry
	Observation sense.Observation
	OnMesh      bool // the job has a mesh, so nothing may change, and is led here
	Waits       bool // a change waits for the end of a step, where this agent leads
}

// Job is the job as its agent lets a Loop see and change it. The Loop calls it from its own
// goroutine and from those that call Predict or WorkerFailed. All methods but ReportLine and
// TellHead may wait for the engine's thread.
type Job interface {
	// Look returns what the agent knows; false = the agent has ended, or nothing of the job's
	// setting is open, and only OnMesh is known. What it returns is the Loop's.
	Look() (Look, bool)
	// Change does what head.Agent.Change says.
	Change(next setting.Setting, c setting.Change) error
	// ReportLine tells people what a policy would change, or what is wrong with one.
	ReportLine(line string)
	// TellHead has the Loop of the agent that leads told what WorkersStayed says. It may be lost.
	TellHead(s act.Stay)
}

// Loop decides about the job of an agent. Its methods may be called from any goroutine.
type Loop struct {
	job   Job
	group *group.Group // of the agent; programs of policies are in it
	// What workers have said since the last look of how they synchronise; nil = nothing.
	stay atomic.Pointer[act.Stay]

	mu    sync.Mutex // guards what follows; held while it looks at the job and policies decide
	act   *act.Loop  // nil = it has not looked at the job yet
	mode  act.Mode
	users func(g *group.Group) []decide.Policy // starts those of users; nil = nothing is to start
	waits bool                                 // those do not run yet, and nobody decides
	own   []decide.Policy                      // those that run
	past  []act.Entry                          // of changes, while waits; at most maxPast
	leads bool                                 // as of the newest look
	open  string                               // what people were told that policies decide about
}

// New returns a Loop in the mode act.Off.
func New(j Job, g *group.Group) *Loop { return &Loop{job: j, group: g} }

// Drive has policies decide from the next look on: those of shoal, and those of users, which users
// starts when this agent leads for the first time; nil = none. Until these run nobody decides, lest
// shoal's decide what is theirs. It is called once at most, and waits for no policy to start.
func (l *Loop) Drive(mode act.Mode, users func(g *group.Group) []decide.Policy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mode, l.users, l.waits = mode, users, users != nil
	l.act = nil
}

// Run decides about the job until ctx ends. It is a goroutine of the agent.
func (l *Loop) Run(ctx context.Context) error {
	ticker := time.NewTicker(time.Duration(act.LookInterval))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			l.runTurn()
			if users := l.popUserPolicies(); users != nil {
				l.group.Go("policies of users", func(context.Context) error {
					l.startUsers(users)
					return nil
				})
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// runTurn looks at the job once, has the policies decide, and passes on what they want. It returns
// whether there was anything to see.
func (l *Loop) runTurn() bool { return l.runTurnAfterFailure("") }

// runTurnAfterFailure is runTurn, where a worker has ended by itself, and how; "" = none has.
func (l *Loop) runTurnAfterFailure(lost string) bool {
	l.mu.Lock() // before it looks: looks are taken in their order
	defer l.mu.Unlock()
	look, ok := l.job.Look()
	if !ok {
		if look.OnMesh {
			l.reportOpenOnce("what may change: nothing, since a job on a mesh keeps its setting; " +
				"shoal reshape changes the mesh")
		}
		return false
	}
	l.adoptLook(look)
	if !look.Waits {
		l.act.OrderDropped()
	}
	if s := l.stay.Swap(nil); s != nil {
		l.act.WorkersStayed(*s)
	}
	// The agent that leads may have no workers, and whatever it is told may be lost with it.
	if s := l.act.Staying(); s.Sync != "" && !l.leads {
		l.job.TellHead(s)
	}
	l.reportOpenLevers(look.Observation)
	if lost != "" {
		l.act.WorkerFailed(lost)
	}
	for _, o := range l.act.Observe(look.Observation) {
		if o.Watch {
			l.job.ReportLine("would change " + o.Change.Reason())
			continue
		}
		// An agent that has just ceased to lead orders nothing: the next head decides anew.
		if err := l.job.Change(o.Next, o.Change); err != nil && !errors.Is(err, head.ErrNotHead) {
			l.act.OrderRefused(err)
		}
	}
	for _, f := range l.act.PopFaults() {
		line := fmt.Sprintf("%s left things as they are: %s", f.Policy, f.Text)
		if f.Off {
			line += "; that was the third time in a row, so it is not asked any more"
		}
		l.job.ReportLine(line)
	}
	return true
}

// adoptLook tells the loop what has become true, and makes it before the first look. l.mu is held.
func (l *Loop) adoptLook(look Look) {
	l.leads = len(look.Entries) > 0 && look.Entries[len(look.Entries)-1].Leads
	if l.act == nil {
		l.act = l.makeLoop()
		for _, e := range l.past { // what they have shown counts, whoever has come to lead
			l.act.EntryApplied(e)
		}
	}
	for _, e := range look.Entries {
		if l.waits && e.Change != nil {
			l.past = append(l.past[max(0, len(l.past)-maxPast+1):], e)
		}
		l.act.EntryApplied(e)
	}
}

// reportOpenLevers tells people what the policies decide about, where this agent leads, when that
// is known and again when it has become more. l.mu is held.
func (l *Loop) reportOpenLevers(o sense.Observation) {
	// before a step is made, not all that is open is known
	if _, any := o.Steps.Newest(); !any || !l.leads || l.waits {
		return
	}
	// one worker has all of the work, as long as no policy may want others
	isAlone := o.Size == 1 && !o.Levers.Size.IsOpen()
	const sharesAreUnequal = " (they are unequal now: shoal set JOB shares=1:1… makes them equal)"
	if l.mode == act.Off {
		if isAlone {
			return
		}
		open := "what may change: shares of work, since workers that average in pairs take as " +
			"many samples as each can"
		if !setting.MeetsInPairs(o.Setting.Sync) || o.Levers.Alike {
			if l.open == "" {
				return
			}
			open = "what may change: nothing any more, and shares of work stay"
			if !o.Setting.HasEqualShares() {
				open += sharesAreUnequal
			}
		}
		l.reportOpenOnce(open)
		return
	}
	var list, notes []string
	if o.Levers.Batch.IsOpen() {
		list = append(list, fmt.Sprintf("batch %v", o.Levers.Batch))
	} else {
		notes = append(notes, "the batch stays, as the program gives no range for it")
	}
	if o.Levers.Size.IsOpen() {
		list = append(list, fmt.Sprintf("size %v", o.Levers.Size))
	}
	switch {
	case isAlone:
	case !o.Levers.Alike:
		list = append(list, "shares of work")
	case o.Setting.HasEqualShares():
		notes = append(notes, "shares of work are closed: "+setting.WhyAlike)
	default:
		notes = append(notes, "shares of work are closed: "+setting.WhyAlike+sharesAreUnequal)
	}
	if o.Levers.Save {
		list = append(list, "steps between checkpoints")
	}
	if o.Levers.Auto && !isAlone {
		list = append(list, "how workers synchronise")
	}
	if l.mode == act.Watch {
		notes = append(notes, "policies only say what they would change")
	}
	l.reportOpenOnce(strings.Join(append([]string{"what may change: " +
		cmp.Or(strings.Join(list, ", "), "nothing")}, notes...), "; "))
}

// reportOpenOnce tells people what may change, unless they were told the same. l.mu is held.
func (l *Loop) reportOpenOnce(open string) {
	if open != l.open {
		l.open = open
		l.job.ReportLine(open)
	}
}

// popUserPolicies returns what starts the policies of users, once, when this agent leads; nil =
// nothing is to be started.
func (l *Loop) popUserPolicies() (users func(g *group.Group) []decide.Policy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leads {
		users, l.users = l.users, nil
	}
	return users
}

// startUsers starts the policies of users, and has policies decide from then on. It waits for the
// programs, without the lock: nobody else waits for them.
func (l *Loop) startUsers(users func(g *group.Group) []decide.Policy) {
	list := users(l.group)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.own, l.waits, l.act = list, false, nil
}

// makeLoop returns the loop with its policies. l.mu is held.
func (l *Loop) makeLoop() *act.Loop {
	c := act.Config{Mode: l.mode, Policies: withBuiltIn(l.own)}
	if l.waits {
		c = act.Config{Mode: act.Off}
	}
	made, err := act.New(c)
	if err == nil {
		return made
	}
	l.job.ReportLine(fmt.Sprintf("%v; only the policies of shoal decide", err))
	c.Policies = withBuiltIn(nil)
	made, err = act.New(c)
	if err != nil {
		panic(err) // the policies of shoal go together
	}
	return made
}

// withBuiltIn returns the policies of users, and after them those of shoal whose levers are free.
func withBuiltIn(users []decide.Policy) []decide.Policy {
	return act.CombinePolicies(users, []decide.Policy{policy.Batch{}, policy.Size{},
		policy.Shares{}, policy.Checkpoint{}, policy.Sync{}})
}

// Predict returns the change by which a person gives the job another setting, with what is
// predicted of it, as far as that can be said. It waits for policies that decide.
func (l *Loop) Predict(next setting.Setting, who string) setting.Change {
	sees := l.runTurn() // so that the newest steps count
	l.mu.Lock()
	defer l.mu.Unlock()
	if sees && l.act != nil {
		if o, err := l.act.Propose(next, who); err == nil {
			return o.Change
		}
	}
	return setting.Change{Phase: setting.Entered, Who: who}
}

// Decides reports whether policies change the setting of the job, or say what they would change. It
// waits for policies that decide, and so for the engine's thread.
func (l *Loop) Decides() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mode != act.Off
}

// WorkerFailed tells the loop that a worker of the job has ended by itself, and how. When it
// returns, the head was asked to take back the change that may be why, so that the job has it for
// one step: it waits for the engine's thread, and for policies that decide.
func (l *Loop) WorkerFailed(how string) { l.runTurnAfterFailure(how) }

// WorkersStayed tells the loop that workers go on by another way to synchronise than the setting
// has: workers of this agent, or of one that has told this agent so. It waits for nobody: the next
// look takes it in.
func (l *Loop) WorkersStayed(s act.Stay) { l.stay.Store(&s) }

// WhyNots returns, for each policy, why it left things as they are lately.
func (l *Loop) WhyNots() []act.WhyNot {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.act == nil {
		return nil
	}
	return l.act.WhyNots()
}
