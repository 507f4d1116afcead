package record

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// fakeStore is a store of which a test sees every call. Only the test's goroutine uses it.
type fakeStore struct {
	values    map[string][]byte // by key, with those that were taken out
	revisions map[string]uint64 // by key; 0 = the key holds nothing
	last      uint64            // the newest revision
}

// newFakeStore returns an empty store.
func newFakeStore() *fakeStore { return &fakeStore{map[string][]byte{}, map[string]uint64{}, 0} }

// answer carries out a call, and returns what a store would say, but is never Silent.
func (s *fakeStore) answer(c Call) (a Answer) {
	have := s.revisions[c.Key]
	switch {
	case c.Op == Get && have == 0:
		return Answer{Said: Empty, Err: errors.New("nothing")}
	case c.Op == Get:
		return Answer{Value: s.values[c.Key], Revision: have}
	case c.Op == Keys:
		for key := range s.values {
			if strings.HasPrefix(key, c.Key+".") {
				a.Keys = append(a.Keys, key)
			}
		}
		return a
	case c.Op == Create && have != 0, c.Op == Update && have != c.Was:
		return Answer{Said: Taken, Err: errors.New("taken")}
	}
	s.last++
	s.values[c.Key], s.revisions[c.Key] = c.Value, s.last
	return a
}

// runWriter answers the calls of a writer until it has no more, and returns its reports.
func (s *fakeStore) runWriter(w *Writer) (told []Report) {
	for c, ok := w.Next(); ok; c, ok = w.Next() {
		w.Answered(s.answer(c))
	}
	return w.Reports()
}

// owner returns the owner of the job "train" that the store has. It ends the test if there is none.
func (s *fakeStore) owner(t *testing.T) Owner {
	t.Helper()
	o, err := DecodeOwner("owner.train", s.values["owner.train"])
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// generation returns a record with one member on the host that leads, since a generation.
func generation(g topo.Generation, head string, since topo.Generation) member.Record {
	return member.Record{
		View: topo.View{Generation: g, Members: []topo.Member{{Worker: 0, Host: head}}}, Head: head,
		Since: since, Hosts: []member.Host{{Name: head}}}
}

// newWriter returns the writer of a host, for run r of the job "train" after five generations of
// heads that have ended. It does not lead yet.
func newWriter(host string) *Writer {
	w := &Writer{}
	w.SetHost(host, host+":7077")
	w.SetRecord("train", "r", 5, 1)
	return w
}

// TestFewDecisionsAreKept checks that a host that does not lead keeps only the newest generations,
// and writes nothing.
func TestFewDecisionsAreKept(t *testing.T) {
	w := newWriter("b")
	for g := topo.Generation(0); g <= 100; g++ {
		w.AddGeneration(generation(g, "a", 0), 1)
	}
	if n := len(w.waiting); n != MaxKept || w.waiting[0].View.Generation != 37 ||
		w.waiting[n-1].View.Generation != 100 {
		t.Errorf("%d are kept, from %v", n, w.waiting[0].View)
	}
	if _, ok := w.Next(); ok {
		t.Error("a host that does not lead writes")
	}
}

// A head that hands over and later leads again is the owner again, so that it can tell of the end.
func TestAHeadThatLeadsAgain(t *testing.T) {
	s, a, b := newFakeStore(), newWriter("a"), newWriter("b")
	a.Lead(1)
	for g, head := range []string{"", "a", "b", "a"} {
		r := generation(topo.Generation(g), head, topo.Generation(g))
		a.AddGeneration(r, 1)
		b.AddGeneration(r, 1)
		for _, w := range []*Writer{a, b} {
			if told := s.runWriter(w); len(told) > 0 {
				t.Errorf("generation %d: told %+v", g, told)
			}
		}
		if o := s.owner(t); head != "" && o.Host != head {
			t.Errorf("generation %d is led by %s, and the owner is %+v", g, head, o)
		}
	}
	a.End(9)
	if told := s.runWriter(a); len(told) > 0 || s.owner(t).Ended != 9 {
		t.Errorf("the end: told %+v, and the owner is %+v", told, s.owner(t))
	}
	if len(s.values) != 1+3 {
		t.Errorf("the store has %d values", len(s.values))
	}
}

// A host that led, and could not reach the store before the job ended, does not take the end back,
// and has nothing to complain of.
func TestTheEndStays(t *testing.T) {
	s, a, b := newFakeStore(), newWriter("a"), newWriter("b")
	a.Lead(1)
	a.Next()
	a.Answered(Answer{Said: Silent, Err: errors.New("cut off")})
	if told := a.Reports(); len(told) != 1 || told[0].Unreachable == nil {
		t.Errorf("told %+v", told)
	}
	b.AddGeneration(generation(2, "b", 2), 1)
	b.End(9)
	s.runWriter(b)
	a.PauseOver()
	if told := s.runWriter(a); len(told) != 1 || !told[0].Back {
		t.Errorf("told %+v", told)
	}
	if o := s.owner(t); o.Host != "b" || o.Ended != 9 {
		t.Errorf("the owner is %+v", o)
	}
	o := s.owner(t)
	o.Host, o.Generation, o.Ended = "a", 99, 0
	claim, err := Claim(o, false)
	if err != nil {
		t.Fatal(err)
	}
	_, err = claim.Answered(s.answer(claim.Call))
	var taken *TakenError
	if !errors.As(err, &taken) {
		t.Errorf("a run that has ended is led on: %v", err)
	}
}

// An owner that is not the newest any more is not claimed after an outage.
func TestTheNewestOwner(t *testing.T) {
	s, a := newFakeStore(), newWriter("a")
	a.Lead(1)
	a.Next()
	a.Answered(Answer{Said: Silent, Err: errors.New("cut off")})
	for i, want := range []int{50, 100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		if got := a.PauseMillis(); got != want {
			t.Errorf("pause %d takes %d ms, want %d", i, got, want)
		}
		if _, ok := a.Next(); ok {
			t.Error("it asks while it waits")
		}
		a.PauseOver()
		a.Next()
		a.Answered(Answer{Said: Silent, Err: errors.New("cut off")})
	}
	a.AddGeneration(generation(4, "a", 4), 1)
	if n, end := a.Unwritten(); n != 2 || end {
		t.Errorf("%d changes are left, and the end: %v", n, end)
	}
	a.PauseOver()
	s.runWriter(a)
	if o := s.owner(t); o.Generation != 9 || s.last != 2 {
		t.Errorf("after %d writes the owner is %+v", s.last, o)
	}
}

// TestParseGenerations reads the keys of generations, and refuses any other.
func TestParseGenerations(t *testing.T) {
	good := []string{GenerationKey("train", "r", 12), GenerationKey("train", "r", 3)}
	if all, err := ParseGenerations("train", "r", good); err != nil || fmt.Sprint(all) != "[3 12]" {
		t.Errorf("%v, %v", all, err)
	}
	for _, key := range []string{"generation.train.r.3", "generation.train.r",
		"generation.other.r.00000000000000000003", good[0] + "x"} {
		if all, err := ParseGenerations("train", "r", []string{key}); err == nil {
			t.Errorf("%s is read as %v", key, all)
		}
	}
}
