package store_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/mem"
	"github.com/shoal-ml/shoal/store/storetest"
	"github.com/shoal-ml/shoal/topo"
)

// noon is when owners of these tests began to lead.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// owner returns an owner of the job "digits", who leads since generation g.
func owner(run, host string, g topo.Generation) store.Owner {
	return store.Owner{Job: "digits", Run: run, Host: host, Address: "10.0.0.1:7000", Generation: g,
		Since: noon}
}

// TestClaim has one owner claim the job of another, in every relation of runs, hosts and
// generations.
func TestClaim(t *testing.T) {
	ended := owner("run1", "h1", 5)
	ended.Ended = noon.Add(time.Hour)
	for _, test := range []struct {
		name       string
		have, want store.Owner
		force, ok  bool
	}{
		{name: "another run", have: owner("run1", "h1", 0), want: owner("run2", "h2", 0)},
		{name: "another run on the same host", have: owner("run1", "h1", 0),
			want: owner("run2", "h1", 0)},
		{name: "another run with a later generation", have: owner("run1", "h1", 1),
			want: owner("run2", "h2", 9)},
		{name: "by force", have: owner("run1", "h1", 5), want: owner("run2", "h2", 0), force: true,
			ok: true},
		{name: "after the end", have: ended, want: owner("run2", "h2", 0), ok: true},
		{name: "restarted", have: owner("run1", "h1", 5), want: owner("run1", "h1", 5), ok: true},
		{name: "restarted with an old generation", have: owner("run1", "h1", 5),
			want: owner("run1", "h1", 4)},
		{name: "decided", have: owner("run1", "h1", 5), want: owner("run1", "h2", 6), ok: true},
		{name: "not decided", have: owner("run1", "h1", 5), want: owner("run1", "h2", 5)},
		{name: "decided long ago", have: owner("run1", "h1", 5), want: owner("run1", "h2", 4)},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, ctx := mem.New().Open(), t.Context()
			if err := storetest.Claim(ctx, s, test.have, false); err != nil {
				t.Fatal(err)
			}
			err := storetest.Claim(ctx, s, test.want, test.force)
			var taken *store.TakenError
			if errors.As(err, &taken) == test.ok || (err == nil) != test.ok {
				t.Fatalf("got %v", err)
			}
			leads := test.have
			if test.ok {
				leads = test.want
			} else if taken.Owner != test.have {
				t.Errorf("the error tells of %v", taken.Owner)
			}
			if o, err := store.Find(ctx, s, "digits"); err != nil || o != leads {
				t.Errorf("led by %v (%v), want %v", o, err, leads)
			}
		})
	}
}

// TestClaimOvertaken: another head claims the job between the look and the write.
func TestClaimOvertaken(t *testing.T) {
	for _, at := range []mem.Op{mem.Create, mem.Update} {
		server := mem.New()
		s, ctx := server.Open(), t.Context()
		if at == mem.Update {
			ended := owner("run0", "h0", 0)
			ended.Ended = noon
			if err := storetest.Claim(ctx, s, ended, false); err != nil {
				t.Fatal(err)
			}
		}
		server.SetFaults(func(op mem.Op, key string) mem.Fate {
			if op == at {
				server.SetFaults(nil)
				if err := storetest.Claim(ctx, server.Open(), owner("run2", "h2", 0),
					false); err != nil {
					t.Error(err)
				}
			}
			return mem.Works
		})
		var taken *store.TakenError
		if err := storetest.Claim(ctx, s, owner("run1", "h1", 0), false); !errors.As(err, &taken) ||
			taken.Owner.Run != "run2" {
			t.Errorf("overtaken at %s: %v", at, err)
		}
	}
}

// TestTakenSaysWhatToDo checks that the error names who leads, and what to do.
func TestTakenSaysWhatToDo(t *testing.T) {
	text := (&store.TakenError{Owner: owner("run1", "h1", 0)}).Error()
	for _, want := range []string{`"digits"`, "h1", "10.0.0.1:7000", "run1",
		"2026-11-21 12:00:00 UTC", "by force"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
}

// TestRelease ends a job: only its head can, and the first end counts.
func TestRelease(t *testing.T) {
	s, ctx := mem.New().Open(), t.Context()
	first, second := owner("run1", "h1", 1), owner("run1", "h2", 2)
	if err := storetest.Release(ctx, s, first, noon); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("release of nothing: %v", err)
	}
	for _, o := range []store.Owner{first, second} {
		if err := storetest.Claim(ctx, s, o, false); err != nil {
			t.Fatal(err)
		}
	}
	var taken *store.TakenError
	if err := storetest.Release(ctx, s, first, noon); !errors.As(err, &taken) ||
		taken.Owner != second {
		t.Errorf("a head that was followed by another ends the job: %v", err)
	}
	for i := range 2 { // it ended when that was first said
		if err := storetest.Release(ctx, s, second,
			noon.Add(time.Duration(1+i)*time.Hour)); err != nil {
			t.Error(err)
		}
	}
	want := second
	want.Ended = noon.Add(time.Hour)
	if o, err := store.Find(ctx, s, "digits"); err != nil || o != want {
		t.Errorf("after the end: %v (%v)", o, err)
	}
}

// TestLostAnswer: a write that was done, and whose answer was lost, does not look like that of
// another process: it succeeds when it is repeated.
func TestLostAnswer(t *testing.T) {
	server := mem.New()
	s, ctx := server.Open(), t.Context()
	first, second := owner("run1", "h1", 0), owner("run1", "h2", 1)
	for _, write := range []struct {
		name string
		do   func() error
	}{
		{"the first head", func() error { return storetest.Claim(ctx, s, first, false) }},
		{"the second head", func() error { return storetest.Claim(ctx, s, second, false) }},
		{"a generation", func() error {
			return storetest.NewJournal(s, "digits", "run1").Write(ctx, storetest.Record(1, "h2"))
		}},
		{"the end", func() error { return storetest.Release(ctx, s, second, noon) }},
	} {
		server.SetFaults(func(op mem.Op, key string) mem.Fate {
			if op == mem.Create || op == mem.Update {
				return mem.Unheard
			}
			return mem.Works
		})
		if err := write.do(); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("%s, unheard: %v", write.name, err)
		}
		server.SetFaults(nil)
		if err := write.do(); err != nil {
			t.Errorf("%s, again: %v", write.name, err)
		}
	}
}

// TestUnreadable: what cannot be read stands in the way of nobody but its own job, and force
// overrules it.
func TestUnreadable(t *testing.T) {
	s, ctx := mem.New().Open(), t.Context()
	if _, err := s.Create(ctx, "owner.digits",
		[]byte(`{"shoal":"owner","version":2}`)); err != nil {
		t.Fatal(err)
	}
	other := owner("run1", "h1", 0)
	other.Job = "other"
	if err := storetest.Claim(ctx, s, other, false); err != nil {
		t.Error(err)
	}
	if o, err := store.Find(ctx, s, "other"); err != nil || o != other {
		t.Errorf("led by %v (%v), want %v", o, err, other)
	}
	if _, err := store.Find(ctx, s, "digits"); err == nil ||
		!strings.Contains(err.Error(), "version 2 of the format") {
		t.Errorf("found what cannot be read: %v", err)
	}
	if err := storetest.Claim(ctx, s, owner("run1", "h1", 0), false); err == nil ||
		!strings.Contains(err.Error(), "owner.digits") {
		t.Errorf("claimed what cannot be read: %v", err)
	}
	if err := storetest.Claim(ctx, s, owner("run1", "h1", 0), true); err != nil {
		t.Error(err)
	}
}
