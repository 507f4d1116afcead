package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/topo"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func owner(run, host string) store.Owner {
	return store.Owner{Job: "digits", Run: run, Host: host, Address: host + ":7000", Authority: "sha256:00ff", Since: noon}
}

// Record returns a record of a generation with two members and one host without any.
func Record(g topo.Generation, head string) member.Record {
	return member.Record{
		View: topo.View{Generation: g, Members: []topo.Member{{Worker: 0, Host: "h1"}, {Worker: topo.Worker(g), Host: "h2"}}},
		Head: head, Since: 1, Hosts: []member.Host{{Name: "h1", Slots: 2}, {Name: "h2"}, {Name: "h3", Slots: 1, Draining: true}},
		Want: 2, Min: 1, Max: 4, Next: topo.Worker(g) + 1, Done: 1,
	}
}

// claimRace: two heads for one job.
func claimRace(t *testing.T, server Server) {
	clients := []store.Store{open(t, server), open(t, server)}
	var winner atomic.Pointer[store.Owner]
	together(t, 8, func(i int) error {
		o := owner(fmt.Sprintf("run%d", i), fmt.Sprintf("h%d", i))
		var taken *store.TakenError
		switch err := store.Claim(t.Context(), clients[i%2], o, false); {
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

func generationRace(t *testing.T, server Server) {
	clients := []store.Store{open(t, server), open(t, server)}
	var winner atomic.Pointer[member.Record]
	together(t, 8, func(i int) error {
		r := Record(7, fmt.Sprintf("h%d", i))
		var diverged *store.DivergedError
		switch err := store.NewJournal(clients[i%2], "digits", "run1").Write(t.Context(), r); {
		case err == nil && !winner.CompareAndSwap(nil, &r):
			return errors.New("a generation was decided twice")
		case err != nil && !errors.As(err, &diverged):
			return err
		case err != nil && diverged.Wants.Head != r.Head:
			return fmt.Errorf("the error tells of %s and not of %s", diverged.Wants.Head, r.Head)
		}
		return nil
	})
	j := store.NewJournal(clients[0], "digits", "run1")
	for range 2 { // writing the same is no error
		if r, err := j.Newest(t.Context()); err != nil || !r.Equal(*winner.Load()) {
			t.Errorf("the newest is %v (%v), want %v", r, err, *winner.Load())
		}
		fails(t, "the same again", j.Write(t.Context(), *winner.Load()), nil)
	}
}

func jobsAndForget(t *testing.T, server Server) {
	s := open(t, server)
	ctx := t.Context()
	_, err := store.Find(ctx, s, "digits")
	fails(t, "no such job", err, store.ErrNotFound)
	for _, job := range []string{"digits", "digits-2", "über.alles"} {
		o := owner("run1", "h.example.org")
		o.Job = job
		fails(t, "claim", store.Claim(ctx, s, o, false), nil)
		j := store.NewJournal(s, job, "run1")
		_, err := j.Newest(ctx)
		fails(t, "no generation", err, store.ErrNotFound)
		for _, g := range []topo.Generation{9, 1, 10} {
			fails(t, "write", j.Write(ctx, Record(g, "h1")), nil)
		}
		_, _, err = store.OpenVoter(ctx, s, job, "run1", "h.example.org")
		fails(t, "voter", err, nil)
	}
	o := owner("run1", "h.example.org")
	var taken *store.TakenError
	if err := store.Forget(ctx, s, "digits"); !errors.As(err, &taken) {
		t.Errorf("a job that is led is forgotten: %v", err)
	}
	fails(t, "release", store.Release(ctx, s, o, noon.Add(time.Hour)), nil)
	fails(t, "forget", store.Forget(ctx, s, "digits"), nil)
	jobs, err := store.Jobs(ctx, s)
	if err != nil || len(jobs) != 2 || jobs[0].Job != "über.alles" || jobs[1].Job != "digits-2" {
		t.Errorf("jobs: %v (%v)", jobs, err)
	}
	for _, job := range []string{"digits", "digits-2"} {
		all, err := store.NewJournal(s, job, "run1").Generations(ctx)
		if want := map[string]string{"digits": "[]", "digits-2": "[1 9 10]"}[job]; err != nil || fmt.Sprint(all) != want {
			t.Errorf("%s has generations %v (%v), want %s", job, all, err, want)
		}
	}
	if keys, err := s.Keys(ctx, "voter.digits"); err != nil || len(keys) != 0 {
		t.Errorf("what is left of the voters: %v (%v)", keys, err)
	}
}

// voterComesBack: a host that has voted restarts, and keeps its word.
func voterComesBack(t *testing.T, server Server) {
	s := open(t, server)
	ctx := t.Context()
	before, m, err := store.OpenVoter(ctx, s, "digits", "run1", "h1")
	if err != nil || m != (member.Memory{}) {
		t.Fatalf("a voter that never voted remembers %v (%v)", m, err)
	}
	var a member.Acceptor
	a.Decide(Record(3, "h1"))
	ask := func(a *member.Acceptor, round uint64, host string) member.Answer {
		return a.Step(member.Accept{Vote: member.Vote{Ballot: member.Ballot{Round: round, Host: host}, Record: Record(4, host)}, After: Record(3, "h1")})
	}
	if _, ok := ask(&a, 5, "h2").(member.Accepted); !ok {
		t.Fatal("no vote")
	}
	fails(t, "save", before.Save(ctx, a.Memory()), nil)
	fails(t, "save again", before.Save(ctx, a.Memory()), nil)

	after, m, err := store.OpenVoter(ctx, s, "digits", "run1", "h1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a.Memory(), m); diff != "" {
		t.Errorf("the memory changed: %s", diff)
	}
	again := member.Remember(m)
	if answer, ok := ask(again, 4, "h3").(member.Refused); !ok || answer.Promised.Round != 5 {
		t.Errorf("a vote for less than was promised: %#v", answer)
	}
	fails(t, "save after the restart", after.Save(ctx, again.Memory()), nil)
	fails(t, "the process before the restart", before.Save(ctx, a.Memory()), store.ErrConflict)
}
