// Package checkpoints keeps account of the checkpoints that the workers of a host write and read:
// the parts that are being written, the buckets, and what was fetched from these.
package checkpoints

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/sense/saves"
)

// Saves counts the parts of checkpoints that this host writes, also for workers that are lost
// meanwhile. It is safe for concurrent use. The zero value counts none.
type Saves struct {
	mu      sync.Mutex // guards what follows
	writing []*snapshot.Part
	idle    chan struct{} // closed when no part is being written any more; nil = none ever was
	telling bool          // a Wait tells how far the parts are, until idle is closed
	ended   int64         // bytes of the parts that were written since idle was made
	// unsealed has by its root, while parts are missing, the newest checkpoint of which a part was
	// written. Rank 0 removes what is left of older ones.
	unsealed map[string]unsealed
	newest   saves.Newest // without its Seconds while it is written
	step     uint64       // of the newest, as its program counts
	began    time.Time    // when the first part of the newest began to be written
}

// unsealed is a checkpoint of which this host has a part.
type unsealed struct {
	attempt snapshot.Attempt
	folder  snapshot.Folder
}

// Begin counts a part that is about to be written, until End. Its checkpoint is of the state after
// so many commits of this run.
func (s *Saves) Begin(p *snapshot.Part, commits uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unsealed == nil {
		s.unsealed = map[string]unsealed{}
	}
	s.unsealed[p.Folder.Root] = unsealed{attemptOf(p), p.Folder}
	if p.Step() != s.step {
		s.began = time.Now()
	}
	s.newest, s.step = saves.Newest{Step: commits}, p.Step()
	if s.writing = append(s.writing, p); len(s.writing) == 1 {
		s.idle, s.ended = make(chan struct{}), 0
	}
}

// attemptOf names the checkpoint of a part.
func attemptOf(p *snapshot.Part) snapshot.Attempt {
	return snapshot.Attempt{Step: p.Step(), Seed: p.Seed}
}

// End uncounts a part that was written, or has failed; over says that its checkpoint is sealed or
// abandoned.
func (s *Saves) End(p *snapshot.Part, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if over && s.unsealed[p.Folder.Root].attempt == attemptOf(p) {
		delete(s.unsealed, p.Folder.Root)
	}
	s.writing = slices.DeleteFunc(s.writing, func(q *snapshot.Part) bool { return q == p })
	s.ended += int64(len(p.Body))
	if len(s.writing) == 0 {
		close(s.idle)
		s.telling = false
		s.newest.Done, s.newest.Seconds = true, time.Since(s.began).Seconds()
	}
}

// Newest returns the checkpoint of which this host has begun last to write parts.
func (s *Saves) Newest() saves.Newest {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.newest
	if !n.Done && n.Step > 0 {
		n.Seconds = time.Since(s.began).Seconds()
	}
	return n
}

// IsDone reports whether no part is being written.
func (s *Saves) IsDone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.writing) == 0
}

const (
	// tellFrom is for how long people wait for parts until they are told how far these are, and
	// tellEvery how long from then on until they are told again.
	tellFrom, tellEvery = 2 * time.Second, 10 * time.Second
)

// Wait blocks until no part is being written, also none that begins meanwhile. Where that takes
// longer than two seconds, one of those who wait has tell say how far they are, now and then.
func (s *Saves) Wait(tell func(line string)) {
	s.mu.Lock()
	idle, mine := s.idle, !s.telling
	if len(s.writing) == 0 {
		s.mu.Unlock()
		return
	}
	s.telling = true
	s.mu.Unlock()
	if !mine {
		<-idle
		return
	}
	began, timer := time.Now(), time.NewTimer(tellFrom)
	defer timer.Stop()
	for {
		select {
		case <-idle:
			return
		case <-timer.C:
			tell(s.progress(time.Since(began)))
			timer.Reset(tellEvery)
		}
	}
}

// progress says how far the parts are that are being written, for which people have waited for
// some time.
func (s *Saves) progress(waited time.Duration) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	done, all := s.ended, s.ended
	for _, p := range s.writing {
		done, all = done+p.Written(), all+int64(len(p.Body))
	}
	return fmt.Sprintf("the checkpoint of step %d is being written: %.2f of %.2f GB of this host, "+
		"%.0f s so far", s.step, float64(done)/1e9, float64(all)/1e9, waited.Seconds())
}

// AbandonUnsealed removes the checkpoints that are not sealed, and has their folders' Log tell
// people. No part may be written any more, by other hosts neither. It
// waits for the disk or the store.
func (s *Saves) AbandonUnsealed() {
	s.mu.Lock()
	left := s.unsealed
	s.unsealed = nil
	s.mu.Unlock()
	for _, u := range left {
		_ = u.folder.CleanUp() // the next job tries again
	}
}
