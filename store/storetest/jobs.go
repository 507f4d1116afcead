package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/record"
	"github.com/shoal-ml/shoal/topo"
)

// The functions with a Server are tests of Run, each on the goroutine of its subtest: the server is
// empty, and t's own. owner and Record are pure.

// noon is when owners of these tests began to lead.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// owner returns an owner of the job "digits", in this run on this host.
func owner(run, host string) store.Owner {
	return store.Owner{Job: "digits", Run: run, Host: host, Address: host + ":7000", Since: noon}
}

// Record returns a record of generation g, led by head, with two members and one host without any.
func Record(g topo.Generation, head string) member.Record {
	return member.Record{
		View: topo.View{Generation: g,
			Members: []topo.Member{{Worker: 0, Host: "h1"},
				{Worker: topo.WorkerID(g), Host: "h2"}}},
		Head: head, Since: 1,
		Hosts: []member.Host{{Name: "h1", Slots: 2}, {Name: "h2"},
			{Name: "h3", Slots: 1, Draining: true}},
		Want: 2, Min: 1, Max: 4, Next: topo.WorkerID(g) + 1, Done: 1,
	}
}

// claimRace has eight heads claim one job at once: one of them gets it.
func claimRace(t *testing.T, server Server) {
	clients := []store.Store{openClient(t, server), openClient(t, server)}
	var winner atomic.Pointer[store.Owner]
	runTogether(t, 8, func(i int) error {
		o := owner(fmt.Sprintf("run%d", i), fmt.Sprintf("h%d", i))
		var taken *store.TakenError
		switch err := Claim(t.Context(), clients[i%2], o, false); {
		case err == nil && !winner.CompareAndSwap(nil, &o):
			return fmt.Errorf("%s and %s lead one job", winner.Load().Host, o.Host)
		case err != nil && !errors.As(err, &taken):
			return err
		}
		return nil
	})
	o, err := store.Find(t.Context(), clients[0], "digits")
	if diff := cmp.Diff(*winner.Load(), o); diff != "" || err != nil {
		t.Errorf("who leads (%v): %s", err, diff)
	}
}

// generationRace has eight heads write one generation at once: one of them writes it, and to write
// the same again is no error.
func generationRace(t *testing.T, server Server) {
	clients := []store.Store{openClient(t, server), openClient(t, server)}
	var winner atomic.Pointer[member.Record]
	runTogether(t, 8, func(i int) error {
		r := Record(7, fmt.Sprintf("h%d", i))
		var diverged *record.DivergedError
		switch err := NewJournal(clients[i%2], "digits", "run1").Write(t.Context(), r); {
		case err == nil && !winner.CompareAndSwap(nil, &r):
			return errors.New("a generation was decided twice")
		case err != nil && !errors.As(err, &diverged):
			return err
		case err != nil && diverged.Wants.Head != r.Head:
			return fmt.Errorf("the error tells of %s and not of %s", diverged.Wants.Head, r.Head)
		}
		return nil
	})
	j := NewJournal(clients[0], "digits", "run1")
	for range 2 { // writing the same is no error
		if r, err := j.Newest(t.Context()); err != nil || !r.Equal(*winner.Load()) {
			t.Errorf("the newest is %v (%v), want %v", r, err, *winner.Load())
		}
		checkKind(t, "the same again", j.Write(t.Context(), *winner.Load()), nil)
	}
}

// jobsApart checks that jobs whose names begin alike, or are no words, have a record each.
func jobsApart(t *testing.T, server Server) {
	s := openClient(t, server)
	ctx := t.Context()
	jobs := []string{"digits", "digits-2", "digits.2", "über.alles"}
	claimed := func(job string) store.Owner {
		o := owner("run1", "h.example.org")
		o.Job = job
		return o
	}
	for i, job := range jobs {
		_, err := store.Find(ctx, s, job)
		checkKind(t, "no such job", err, store.ErrNotFound)
		checkKind(t, "claim", Claim(ctx, s, claimed(job), false), nil)
		j := NewJournal(s, job, "run1")
		_, err = j.Newest(ctx)
		checkKind(t, "no generation", err, store.ErrNotFound)
		for _, g := range []topo.Generation{9, 1, topo.Generation(10 + i)} {
			checkKind(t, "write", j.Write(ctx, Record(g, "h1")), nil)
		}
	}
	ended := claimed("digits")
	ended.Ended = noon.Add(time.Hour)
	checkKind(t, "release", Release(ctx, s, ended, ended.Ended), nil)
	for i, job := range jobs {
		want := claimed(job)
		if job == ended.Job {
			want = ended
		}
		if o, err := store.Find(ctx, s, job); err != nil || o != want {
			t.Errorf("led by %v (%v), want %v", o, err, want)
		}
		all, err := NewJournal(s, job, "run1").Generations(ctx)
		if want := []topo.Generation{1, 9, topo.Generation(10 + i)}; err != nil ||
			!slices.Equal(all, want) {
			t.Errorf("%s has generations %v (%v), want %v", job, all, err, want)
		}
	}
}
