package launcher

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/mem"
	"github.com/shoal-ml/shoal/store/record"
	"github.com/shoal-ml/shoal/store/storetest"
	"github.com/shoal-ml/shoal/topo"
)

// newGeneration returns the record of generation g, which head has led since a generation, with a
// member on each host: workers 0, 1 and so on.
func newGeneration(g topo.Generation, head string, since topo.Generation,
	hosts ...string) member.Record {
	r := member.Record{View: topo.View{Generation: g}, Head: head, Since: since, Want: len(hosts),
		Next: topo.WorkerID(len(hosts))}
	for i, h := range hosts {
		r.View.Members = append(r.View.Members, topo.Member{Worker: topo.WorkerID(i), Host: h})
		r.Hosts = append(r.Hosts, member.Host{Name: h, Slots: 1})
	}
	return r
}

// newRecording returns the recording of a host, which appends to lines, on a goroutine of its own
// until it is closed, what it tells people.
func newRecording(host string, lines *[]string) *recording {
	r := &recording{Recorder: store.NewRecorder(func(line string) {
		*lines = append(*lines, line)
	})}
	r.SetHost(host, host+":7077")
	return r
}

// storedRecord returns what a store has of a run of the job "train": who leads it, and all its
// generations. If the store does not have it the test fails.
func storedRecord(t *testing.T, s store.Store, run string) (o store.Owner, all []topo.Generation) {
	t.Helper()
	o, err := store.Find(t.Context(), s, "train")
	if err == nil {
		all, err = storetest.NewJournal(s, "train", run).Generations(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return o, all
}

// A head decides while its store hangs, which it does not notice, and is lost. The next one writes
// it all.
func TestTheNextHeadWritesWhatTheOneBeforeCouldNot(t *testing.T) {
	server := mem.New()
	note := recordMessage{URL: "nats://db", Job: "train", Run: "r"}
	hung, down := make(chan struct{}), mem.New()
	down.SetFaults(func(mem.Op, string) mem.Fate { <-hung; return mem.Lost })
	var said []string
	a, b := newRecording("a", &said), newRecording("b", &said)
	for g := topo.Generation(1); g <= 3; g++ {
		a.AddGeneration(newGeneration(g, "a", 0, "a", "b", "c"))
		b.AddGeneration(newGeneration(g, "a", 0, "a", "b", "c"))
	}
	a.setRecord(note, 5, down.Open()) // returns, and so does what is decided from now on
	b.setRecord(note, 5, server.Open())
	a.AddGeneration(newGeneration(4, "a", 0, "a", "b", "c"))
	b.AddGeneration(newGeneration(4, "a", 0, "a", "b", "c"))
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Find(t.Context(), server.Open(), "train"); !errors.Is(err,
		store.ErrNotFound) {
		t.Errorf("a host that does not lead writes: %v", err)
	}
	b.AddGeneration(newGeneration(5, "b", 5, "b", "c"))
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	o, all := storedRecord(t, server.Open(), "r")
	if o.Host != "b" || o.Address != "b:7077" || o.Generation != 10 || !o.Ended.IsZero() {
		t.Errorf("the owner is %+v", o)
	}
	if want := []topo.Generation{6, 7, 8, 9, 10}; !slices.Equal(all, want) {
		t.Errorf("recorded %v, want %v", all, want)
	}
	if err := b.close(true); err != nil {
		t.Error(err)
	}
	if o, _ := storedRecord(t, server.Open(), "r"); o.Ended.IsZero() {
		t.Error("the record does not tell of the end")
	}
	close(hung)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Close(ctx, false); err == nil {
		t.Error("what was never written is not missed")
	}
}

// claimTestJob begins the job "train" as a head on host a with a store, as far as claimJob does:
// url and takeOver are those of RecordConfig. It returns the error of claimJob; nothing is closed.
func claimTestJob(t *testing.T, s store.Store, run, url string, takeOver bool) (*launcher, error) {
	t.Helper()
	l := &launcher{registry: newRegistry("a", 1), place: &proc.Place{Run: run},
		cfg: RunConfig{Record: &RecordConfig{Store: s, URL: url, TakeOver: takeOver}}}
	return l, l.claimJob(t.Context(), "train")
}

// A host may begin a job of a name in the store if nobody else leads it, or by force.
func TestWhoMayLeadAgain(t *testing.T) {
	alone, spread := newGeneration(7, "a", 0, "a"), newGeneration(7, "a", 0, "a", "b", "c")
	ended := store.Owner{Job: "train", Run: "r1", Host: "a", Since: time.Now(), Ended: time.Now()}
	for name, c := range map[string]struct {
		before   *store.Owner
		newest   *member.Record
		url      string
		takeOver bool
		run      string // that the head then has
		after    topo.Generation
		refused  string
	}{
		"nobody has":   {run: "r2"},
		"it has ended": {before: &ended, run: "r2"},
		"killed on this host": {before: &store.Owner{Host: "a"}, newest: &alone,
			run: "r1", after: 7},
		"killed before it began": {before: &store.Owner{Host: "a"}, run: "r1"},
		"killed after it went on": {before: &store.Owner{Host: "a", Generation: 3},
			run: "r1", after: 3},
		"others may go on": {before: &store.Owner{Host: "a"}, newest: &spread,
			refused: "b, c could go on by themselves"},
		"others are known to be gone": {before: &store.Owner{Host: "a"}, newest: &spread,
			takeOver: true, run: "r2"},
		"led on another host": {before: &store.Owner{Host: "b"},
			refused: "led by host b"},
		"taken over": {before: &store.Owner{Host: "b"}, takeOver: true,
			run: "r2"},
		"killed on this host, on a server": {before: &store.Owner{Host: "a"}, newest: &alone,
			url: "nats://db", refused: "led by host a"},
	} {
		t.Run(name, func(t *testing.T) {
			server := mem.New()
			s := server.Open()
			if o := c.before; o != nil {
				o.Job, o.Run = "train", "r1"
				if err := storetest.Claim(t.Context(), s, *o, false); err != nil {
					t.Fatal(err)
				}
			}
			if c.newest != nil {
				if err := storetest.NewJournal(s, "train", "r1").Write(t.Context(),
					*c.newest); err != nil {
					t.Fatal(err)
				}
			}
			l, err := claimTestJob(t, s, "r2", c.url, c.takeOver)
			if c.refused != "" {
				var taken *store.TakenError
				var elsewhere *record.ElsewhereError
				if err == nil || !strings.Contains(err.Error(), c.refused) ||
					!errors.As(err, &taken) && !errors.As(err, &elsewhere) {
					t.Errorf("got %v, want %q", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			o, _ := storedRecord(t, s, c.run)
			if n := l.record.note; n.Run != c.run || l.record.earlierGenerations() != c.after ||
				o.Run != c.run ||
				o.Host != "a" || !o.Ended.IsZero() {
				t.Errorf("it leads %+v, and the store says %+v", *n, o)
			}
			if (l.resumed != nil) != (c.run == "r1") {
				t.Errorf("resumed: %v", l.resumed)
			}
		})
	}
}

// A record of more generations than other hosts would believe is refused before anything starts.
func TestRecordOfTooManyGenerations(t *testing.T) {
	for after, refused := range map[topo.Generation]bool{maxAfter: false, maxAfter + 1: true} {
		s := mem.New().Open()
		if err := storetest.Claim(t.Context(), s,
			store.Owner{Job: "train", Run: "r1", Host: "a", Generation: after}, false); err != nil {
			t.Fatal(err)
		}
		if _, err := claimTestJob(t, s, "r2", "", false); (err != nil) != refused ||
			refused && !strings.Contains(err.Error(), "give the job another name") {
			t.Errorf("after %d: %v", after, err)
		}
	}
}

// A host that joined a job without a record, and leads it when it ends, has nothing to tell.
func TestNoRecord(t *testing.T) {
	var said []string
	r := newRecording("b", &said)
	r.AddGeneration(newGeneration(1, "b", 0, "a", "b"))
	if err := r.close(true); err != nil || len(said) > 0 {
		t.Errorf("the end without a record: %v, %q", err, said)
	}
}
