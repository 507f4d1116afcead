// Package checkpoints keeps account of the checkpoints that the workers of a host write and read:
// the parts that are being written, the buckets, and what was fetched from these.
package checkpoints

import (
	"sync"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/sense/saves"
)

// Saves counts the parts of checkpoints that this host writes, also for workers that are lost
// meanwhile. It is safe for concurrent use. The zero value counts none.
type Saves struct {
	mu      sync.Mutex    // guards what follows
	writing int           // parts that are being written
	idle    chan struct{} // closed when writing becomes 0; nil = no part was ever written
	// unsealed has by its root, while parts are missing, the newest checkpoint of which a part was
	// written. Rank 0 removes what is left of older ones.
	unsealed map[string]unsealed
	newest   saves.Newest // without its Seconds while it is written
	began    time.Time    // when the first part of the newest began to be written
}

// unsealed is a checkpoint of which this host has a part.
type unsealed struct {
	attempt snapshot.Attempt
	folder  snapshot.Folder
}

// Begin counts a part that is about to be written, until End.
func (s *Saves) Begin(p *snapshot.Part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unsealed == nil {
		s.unsealed = map[string]unsealed{}
	}
	s.unsealed[p.Folder.Root] = unsealed{attemptOf(p), p.Folder}
	if p.Step() != s.newest.Step {
		s.began = time.Now()
	}
	s.newest = saves.Newest{Step: p.Step()}
	if s.writing++; s.writing == 1 {
		s.idle = make(chan struct{})
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
	if s.writing--; s.writing == 0 {
		close(s.idle)
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

// IsDone reports whether no part is being written. With wait it blocks until that is so, and is
// true.
func (s *Saves) IsDone(wait bool) bool {
	s.mu.Lock()
	writing, idle := s.writing, s.idle
	s.mu.Unlock()
	if writing > 0 && wait {
		<-idle
		writing = 0
	}
	return writing == 0
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
