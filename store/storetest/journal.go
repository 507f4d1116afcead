package storetest

import (
	"context"
	"time"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/record"
	"github.com/shoal-ml/shoal/topo"
)

// What of package store the tests of stores use in other ways than a job does. The functions wait
// for the store, and any goroutine may call them.

// Claim makes o the head of its job, as a head that begins does; with force, whoever leads it.
func Claim(ctx context.Context, s store.Store, o store.Owner, force bool) error {
	_, _, err := store.Begin(ctx, s, o, false, force)
	return err
}

// Release records the end of the job of o, as a [store.Recorder] that is closed does.
func Release(ctx context.Context, s store.Store, o store.Owner, now time.Time) error {
	return store.CarryOut(ctx, s,
		record.Release(record.Owner{Job: o.Job, Run: o.Run, Host: o.Host}, now.Unix()))
}

// Journal is the generations of one run of a job in a store. Each has one record, which never
// changes. Its methods wait for the store, and any goroutine may call them.
type Journal struct {
	store    store.Store
	job, run string
}

// NewJournal returns the journal of a run. It does not touch the store.
func NewJournal(s store.Store, job, run string) *Journal { return &Journal{s, job, run} }

// Write adds a generation, by the rules of [record.Write].
func (j *Journal) Write(ctx context.Context, r member.Record) error {
	t, err := record.Write(j.job, j.run, r)
	if err != nil {
		return err
	}
	return store.CarryOut(ctx, j.store, t)
}

// Read returns a generation: ErrNotFound if it was not written.
func (j *Journal) Read(ctx context.Context, g topo.Generation) (member.Record, error) {
	key := j.key(g)
	e, err := j.store.Get(ctx, key)
	if err != nil {
		return member.Record{}, err
	}
	return record.DecodeGeneration(key, e.Value)
}

// Generations lists what was written, in ascending order. One may be missing where the store could
// not be reached for long.
func (j *Journal) Generations(ctx context.Context) ([]topo.Generation, error) {
	keys, err := j.store.Keys(ctx, record.GenerationPrefix(j.job, j.run))
	if err != nil {
		return nil, err
	}
	return record.ParseGenerations(j.job, j.run, keys)
}

// Newest returns the newest generation that was written: ErrNotFound if none was.
func (j *Journal) Newest(ctx context.Context) (member.Record, error) {
	all, err := j.Generations(ctx)
	if err != nil {
		return member.Record{}, err
	}
	if len(all) == 0 {
		return member.Record{}, store.ErrNotFound
	}
	return j.Read(ctx, all[len(all)-1])
}

// key returns the key of a generation.
func (j *Journal) key(g topo.Generation) string { return record.GenerationKey(j.job, j.run, g) }
