package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// Journal is the generations of one run of a job in a store. Each has one record, which never changes.
type Journal struct {
	store    Store
	job, run string
}

// NewJournal returns the journal of a run. It touches nothing.
func NewJournal(s Store, job, run string) *Journal { return &Journal{s, job, run} }

// DivergedError says that a generation was decided twice, which the agreement of the hosts rules out.
type DivergedError struct {
	Job, Run    string
	Have, Wants member.Record
}

func (e *DivergedError) Error() string {
	return fmt.Sprintf("the job %q (run %s) has two records of one generation: the store has %s led by %s, and %s led by %s was to be written; two parts of the job may be training: stop the one that you do not want",
		e.Job, e.Run, e.Have.View, e.Have.Head, e.Wants.View, e.Wants.Head)
}

// Write adds a generation. Writing what is there already succeeds; anything else of that generation is a [*DivergedError].
func (j *Journal) Write(ctx context.Context, r member.Record) error {
	value, err := encode(&generationValue{header{kindGeneration, version}, j.job, j.run, recordToValue(r)})
	if err != nil {
		return err
	}
	key := j.key(r.View.Generation)
	if _, err = j.store.Create(ctx, key, value); !errors.Is(err, ErrExists) {
		return err
	}
	e, err := j.store.Get(ctx, key)
	if err != nil || bytes.Equal(e.Value, value) {
		return err
	}
	have, err := decodeGeneration(key, e.Value)
	if err != nil {
		return err
	}
	return &DivergedError{j.job, j.run, have, r}
}

// Read returns a generation: ErrNotFound if it was not written.
func (j *Journal) Read(ctx context.Context, g topo.Generation) (member.Record, error) {
	key := j.key(g)
	e, err := j.store.Get(ctx, key)
	if err != nil {
		return member.Record{}, err
	}
	return decodeGeneration(key, e.Value)
}

// Generations lists what was written, in ascending order. One may be missing where the store could not be reached for long.
func (j *Journal) Generations(ctx context.Context) ([]topo.Generation, error) {
	keys, err := j.store.Keys(ctx, generations(j.job, j.run))
	if err != nil {
		return nil, err
	}
	all := make([]topo.Generation, 0, len(keys))
	for _, key := range keys {
		var g topo.Generation
		if _, err := fmt.Sscanf(key[len(generations(j.job, j.run)):], ".%d", &g); err != nil || j.key(g) != key {
			return nil, fmt.Errorf("the store holds the key %s, which is no generation: delete it", key)
		}
		all = append(all, g)
	}
	slices.Sort(all)
	return all, nil
}

// Newest returns the newest generation that was written: ErrNotFound if none was.
func (j *Journal) Newest(ctx context.Context) (member.Record, error) {
	all, err := j.Generations(ctx)
	if err != nil {
		return member.Record{}, err
	}
	if len(all) == 0 {
		return member.Record{}, ErrNotFound
	}
	return j.Read(ctx, all[len(all)-1])
}

func (j *Journal) key(g topo.Generation) string { return generationKey(j.job, j.run, g) }

func decodeGeneration(key string, data []byte) (member.Record, error) {
	var v generationValue
	if err := decode(key, kindGeneration, data, &v); err != nil {
		return member.Record{}, err
	}
	return v.Record.record(), nil
}
