package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/setting"
)

// What shoal demo does to a job, and what comes of that. The functions without a receiver keep
// nothing; demoChange and outcome are values.

// The plot of the demo, in shares of its steps: when a worker is killed, when a number of
// demoJoiners more are ordered, and when one becomes slow. Nothing is done in the last demoRoom
// steps: a worker that is killed when all steps are made takes its report with it.
const (
	demoKillAt  = 0.2
	demoOrderAt = 0.35
	demoSlowAt  = 0.45
	demoJoiners = 2
	demoRoom    = 10
)

// slowSignal makes a worker of the demo three times slower.
const slowSignal = syscall.SIGUSR2

// demoStory kills a worker of a job that trains and orders new ones, from outside, as anybody
// could; and puts together what the workers report about it. Every worker says when it has made the
// first step with new members, and at the end what its audit found. Several goroutines may use it
// at once.
type demoStory struct {
	workers, steps int               // number of workers at the start, and of steps in all
	slows          bool              // a worker becomes slow
	tell           func(line string) // shows a line to the people who watch

	mu      sync.Mutex            // guards what follows
	killed  time.Time             // when a worker was killed; zero = none was
	after   uint64                // generation in which the worker was killed
	recover time.Duration         // time that the kill cost the slowest survivor
	ordered time.Time             // when new workers were ordered; zero = not yet
	joins   map[int]time.Duration // by number of the new worker, from the order to its first step
	ended   []map[string]float64  // the last report of each worker
	changes []setting.Change      // of how the job trains, in order, each as it was last seen
	slowed  bool                  // a worker became slow
}

// play kills a worker of the job of the run in dir, orders new ones, and makes one slow, each when
// the job has come to its share of the steps. It returns after that, or when the job has ended.
func (s *demoStory) play(ctx context.Context, dir string) error {
	j, err := control.Find(ctx, dir)
	if err == nil && s.workers > 1 {
		if err = s.waitForShare(ctx, j, demoKillAt); err == nil {
			err = s.killMember(j)
		}
	}
	if err == nil {
		if err = s.waitForShare(ctx, j, demoOrderAt); err == nil {
			err = s.orderWorkers(ctx, j)
		}
	}
	if err == nil && s.slows {
		if err = s.waitForShare(ctx, j, demoSlowAt); err == nil {
			err = s.slowMember(j)
		}
	}
	var unknown *control.Unknown
	var refusal *control.Refusal // the job is ending
	if errors.Is(err, control.ErrEnded) || errors.As(err, &unknown) ||
		errors.As(err, &refusal) || errors.Is(err, syscall.ESRCH) || ctx.Err() != nil {
		return nil // what the job came to, its launcher says
	}
	return err
}

// waitForShare polls the job until the given share of the steps, from 0 to 1, is done and no change
// of members is under way. It fails if the job ends before, as play says, or is about to.
func (s *demoStory) waitForShare(ctx context.Context, j *control.Job, share float64) error {
	err := cli.Poll(ctx, func() (bool, error) {
		err := j.Refresh(ctx)
		return float64(j.Steps) >= share*float64(s.steps) && j.Size == j.Want, err
	})
	if err == nil && int(j.Steps)+demoRoom > s.steps {
		return control.ErrEnded
	}
	return err
}

// killMember kills a random member, wherever it is in its step; not the last one. j is as play has
// refreshed it. It holds s.mu, so that no report comes between the kill and its time.
func (s *demoStory) killMember(j *control.Job) error {
	w, ok := randomMember(j)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if err := syscall.Kill(w.PID, syscall.SIGKILL); err != nil {
		return fmt.Errorf("killing worker %d: %w", w.Worker, err)
	}
	s.after, s.killed = j.Generation, now
	s.tell(fmt.Sprintf("worker %d (process %d) was killed after step %d", w.Worker, w.PID, j.Steps))
	return nil
}

// slowMember makes a random member slow; not the last one. j is as play has refreshed it.
func (s *demoStory) slowMember(j *control.Job) error {
	w, ok := randomMember(j)
	if !ok {
		return nil
	}
	if err := syscall.Kill(w.PID, slowSignal); err != nil {
		return fmt.Errorf("slowing worker %d down: %w", w.Worker, err)
	}
	s.mu.Lock()
	s.slowed = true
	s.mu.Unlock()
	s.tell(fmt.Sprintf("worker %d (rank %d) computes %d times slower from step %d on", w.Worker,
		w.Rank, demoSlow, j.Steps))
	return nil
}

// randomMember returns a member of the job by chance; false if it has fewer than two.
func randomMember(j *control.Job) (w api.Worker, ok bool) {
	members := slices.DeleteFunc(slices.Clone(j.Workers), func(w api.Worker) bool {
		return !w.Running || w.Rank < 0
	})
	if len(members) < 2 {
		return w, false
	}
	return members[rand.IntN(len(members))], true
}

// addChange records that a change of how the job trains begins or ends, of which the launcher
// tells. It does not wait: the engine's thread calls it.
func (s *demoStory) addChange(c setting.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.changes {
		if s.changes[i].Name() == c.Name() {
			s.changes[i] = c
			return
		}
	}
	s.changes = append(s.changes, c)
}

// orderWorkers asks the job for demoJoiners more workers. It waits for the launcher's answer, and
// not for the workers.
func (s *demoStory) orderWorkers(ctx context.Context, j *control.Job) error {
	s.mu.Lock()
	s.ordered = time.Now()
	s.mu.Unlock()
	s.tell(fmt.Sprintf("%d more workers were ordered after step %d", demoJoiners, j.Steps))
	return j.Resize(ctx, j.Size+demoJoiners, "shoal demo")
}

// addReport records a worker's report of a change of members, or its last report. It keeps the map.
// A goroutine of the launcher calls it.
func (s *demoStory) addReport(worker int, m map[string]float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, isChange := m["at_us"]
	if !isChange {
		s.ended = append(s.ended, m)
		return
	}
	committed := time.UnixMicro(int64(at))
	switch {
	case worker >= s.workers && !s.ordered.IsZero():
		if _, again := s.joins[worker]; !again {
			s.joins[worker] = committed.Sub(s.ordered)
		}
	case !s.killed.IsZero() && uint64(m["generation"]) == s.after+1:
		beyond := committed.Sub(s.killed) - time.Duration(m["pace_us"])*time.Microsecond
		s.recover = max(s.recover, beyond) // of the slowest survivor
	}
}

// outcome is what the last object of shoal demo --json says of a job that lost and gained workers.
type outcome struct {
	stepsLost, samplesLost, samplesRepeated int // numbers
	// handedOn is the number of samples of the killed worker that other workers took over.
	handedOn          int
	recoverMS, joinMS []float64 // as in demoState
	// equal says whether the parameters of all members were equal, at every step and at the end.
	equal   bool
	members int // number of members at the end
	changes []demoChange
	slowed  bool // a worker became slow
}

// demoChange is a change that a policy has made of how the job trains, as in demoState.
type demoChange struct {
	Policy    string       `json:"policy"`
	From      string       `json:"from"`
	To        string       `json:"to"`
	Because   string       `json:"because"`
	Predicted setting.Band `json:"predicted"`          // factor of the samples a second
	Measured  float64      `json:"measured,omitempty"` // 0 = it was not
	Kept      bool         `json:"kept"`               // it was not taken back
}

// outcome returns the worst of what the audits of the members at the end have found. It is called
// when the job has ended, and copies what it returns.
func (s *demoStory) outcome() outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := outcome{equal: true, slowed: s.slowed, recoverMS: []float64{}, joinMS: []float64{}}
	digest, known := 0.0, false
	for _, m := range s.ended {
		if int(m["step"]) != s.steps {
			continue
		}
		o.members++
		o.stepsLost = max(o.stepsLost, int(m["steps_lost"]))
		o.samplesLost = max(o.samplesLost, int(m["samples_lost"]))
		o.samplesRepeated = max(o.samplesRepeated, int(m["samples_repeated"]))
		o.handedOn = max(o.handedOn, int(m["samples_handed_on"]))
		if !known {
			digest, known = m["digest"], true
		}
		o.equal = o.equal && m["steps_unequal"] == 0 && m["digest"] == digest
	}
	o.equal = o.equal && known
	if !s.killed.IsZero() {
		o.recoverMS = append(o.recoverMS, cli.Milliseconds(s.recover))
	}
	o.changes = []demoChange{}
	for _, c := range s.changes {
		o.changes = append(o.changes, newDemoChange(c))
	}
	for _, d := range s.joins {
		o.joinMS = append(o.joinMS, cli.Milliseconds(d))
	}
	slices.Sort(o.joinMS)
	return o
}

// newDemoChange returns what the demo says of a change.
func newDemoChange(c setting.Change) demoChange {
	return demoChange{c.Policy, c.From, c.To, c.Because, c.Predicted, c.Measured,
		c.Phase != setting.Reverted}
}

// measured puts what was measured beside what was predicted.
func (c demoChange) measured() string {
	text := fmt.Sprintf("predicted %.2fx the samples a second (%.2f–%.2f), ", c.Predicted.Mid,
		c.Predicted.Low, c.Predicted.High)
	switch {
	case c.Measured == 0:
		return text + "not measured"
	case c.Kept:
		return text + fmt.Sprintf("measured %.2fx, kept", c.Measured)
	}
	return text + fmt.Sprintf("measured %.2fx, taken back", c.Measured)
}

// String returns the outcome in a few lines.
func (o *outcome) String() string {
	var b strings.Builder
	for _, ms := range o.recoverMS {
		fmt.Fprintf(&b,
			"without the killed worker the next step took %.1f ms more; the others took over %s\n",
			ms, plural.Of(o.handedOn, "sample"))
	}
	for _, ms := range o.joinMS {
		fmt.Fprintf(&b, "a new worker made its first step %.0f ms after it was ordered\n", ms)
	}
	for _, c := range o.changes {
		fmt.Fprintf(&b, "%s: %s\n", setting.Change{From: c.From, To: c.To}.DiffText(), c.measured())
	}
	equal := "not the same"
	if o.equal {
		equal = "the same"
	}
	fmt.Fprintf(&b,
		"steps lost %d, samples lost %d, samples repeated %d; parameters %s on all workers\n",
		o.stepsLost, o.samplesLost, o.samplesRepeated, equal)
	return b.String()
}
