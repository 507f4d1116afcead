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
)

// The plot of the demo, in shares of its steps: when a worker is killed, and when a number of
// demoJoiners more are ordered.
const (
	demoKillAt  = 0.25
	demoOrderAt = 0.45
	demoJoiners = 2
)

// demoStory kills a worker of a job that trains and orders new ones, from outside, as anybody
// could; and puts together what the workers report about it. Every worker says when it has made the
// first step with new members, and at the end what its audit found. Several goroutines may use it
// at once.
type demoStory struct {
	workers, steps int               // number of workers at the start, and of steps in all
	tell           func(line string) // shows a line to the people who watch

	mu      sync.Mutex            // guards what follows
	killed  time.Time             // when a worker was killed; zero = none was
	victim  int                   // number of the worker that was killed
	after   uint64                // generation in which the worker was killed
	recover time.Duration         // time that the kill cost the slowest survivor
	ordered time.Time             // when new workers were ordered; zero = not yet
	joins   map[int]time.Duration // by number of the new worker, from the order to its first step
	ended   []map[string]float64  // the last report of each worker
}

// play kills a worker of the job of the run in dir, and orders new ones, each when the job has come
// to its share of the steps. It returns after that, or when the job has ended.
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
	var unknown *control.Unknown
	if errors.Is(err, control.ErrEnded) || errors.As(err, &unknown) || ctx.Err() != nil {
		return nil // what the job came to, its launcher says
	}
	return err
}

// waitForShare polls the job until the given share of the steps, from 0 to 1, is done and no change
// of members is under way. It fails with control.ErrEnded where the job ends before.
func (s *demoStory) waitForShare(ctx context.Context, j *control.Job, share float64) error {
	return cli.Poll(ctx, func() (bool, error) {
		err := j.Refresh(ctx)
		var refusal *control.Refusal
		if errors.As(err, &refusal) {
			err = control.ErrEnded
		}
		return float64(j.Steps) >= share*float64(s.steps) && j.Size == j.Want, err
	})
}

// killMember kills a random member, wherever it is in its step; not the last one. j is as play has
// refreshed it. It holds s.mu, so that no report comes between the kill and its time.
func (s *demoStory) killMember(j *control.Job) error {
	members := slices.DeleteFunc(slices.Clone(j.Workers), func(w api.Worker) bool {
		return !w.Running || w.Rank < 0
	})
	if len(members) < 2 {
		return nil
	}
	w := members[rand.IntN(len(members))]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.victim, s.after, s.killed = w.Worker, j.Generation, time.Now()
	if err := syscall.Kill(w.PID, syscall.SIGKILL); err != nil {
		return fmt.Errorf("killing worker %d: %w", w.Worker, err)
	}
	s.tell(fmt.Sprintf("worker %d (process %d) was killed after step %d", w.Worker, w.PID, j.Steps))
	return nil
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
}

// outcome returns the worst of what the audits of the members at the end have found. It is called
// when the job has ended, and copies what it returns.
func (s *demoStory) outcome() outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := outcome{equal: true, recoverMS: []float64{}, joinMS: []float64{}}
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
	for _, d := range s.joins {
		o.joinMS = append(o.joinMS, cli.Milliseconds(d))
	}
	slices.Sort(o.joinMS)
	return o
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
	equal := "not the same"
	if o.equal {
		equal = "the same"
	}
	fmt.Fprintf(&b,
		"steps lost %d, samples lost %d, samples repeated %d; parameters %s on all workers\n",
		o.stepsLost, o.samplesLost, o.samplesRepeated, equal)
	return b.String()
}
