package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/topo"
)

// RecordConfig says where the record of a job is kept. docs/design/store.md has what it is for.
type RecordConfig struct {
	Store    store.Store // open; Run does not close it
	URL      string      // by which the job's other hosts find it, to go on with the record if they lead; "" = they cannot: it is in this process
	TakeOver bool        // the job gets the name even if the store says that somebody leads it
}

const (
	// maxKept bounds the generations that a host remembers in case it must write them for a head that was lost.
	maxKept = 64
	// recordPatience is how long the end of a job waits for its store.
	recordPatience = 3 * time.Second
)

// recording keeps the record of a job where it is led. Nothing of it waits for the store but close.
type recording struct {
	host string        // the name of this host in the job
	at   func() string // HOST:PORT where this host lets others join; "" = nowhere
	say  func(line string)

	mu       sync.Mutex
	note     *recordNote     // which record; nil = not known yet
	after    topo.Generation // which it has already, of heads that have ended
	store    store.Store     // that it is in
	borrowed bool            // the store is not closed here
	kept     []member.Record // newest decisions, not yet written by this host
	recorder *store.Recorder // nil before this host leads
	owner    store.Owner     // as which it does
}

// decided takes a generation, on the engine's thread.
func (r *recording) decided(g member.Record) {
	if g.View.Generation == 0 {
		return
	}
	g.View.Members, g.Hosts = slices.Clone(g.View.Members), slices.Clone(g.Hosts)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept = append(r.kept, g); len(r.kept) > maxKept {
		r.kept = slices.Delete(r.kept, 0, 1)
	}
	r.write()
}

// learn is told which record it is, and where.
func (r *recording) learn(n recordNote, after topo.Generation, s store.Store) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note, r.after, r.store = &n, after, s
	r.write()
}

// write gives the recorder what this host knows, if it leads or did so. What the head before it has written already is written again, which
// changes nothing.
func (r *recording) write() {
	if r.note == nil || len(r.kept) == 0 {
		return
	}
	if newest := r.kept[len(r.kept)-1]; r.recorder == nil && newest.Head == r.host {
		r.lead(newest.Since)
	}
	if r.recorder == nil {
		return
	}
	for _, g := range r.kept {
		g.View.Generation += r.after
		g.Since += r.after
		r.recorder.Decided(g)
	}
	r.kept = nil
}

// lead begins to write.
func (r *recording) lead(since topo.Generation) {
	r.recorder = store.NewRecorder(r.store, r.note.Job, r.note.Run, r.say)
	r.owner = store.Owner{Job: r.note.Job, Run: r.note.Run, Host: r.host, Address: r.at(), Generation: r.after + since, Since: time.Now()}
	r.recorder.Leads(r.owner)
}

// shared is what the job's other hosts must know to go on with the record; nil if they cannot.
func (r *recording) shared() *recordNote {
	if r == nil || r.note.URL == "" {
		return nil
	}
	return r.note
}

// had is how many generations the job had before this start.
func (r *recording) had() topo.Generation {
	if r == nil {
		return 0
	}
	return r.after
}

// close waits a while until all is written, and tells the store if the job has ended. The agent has.
func (r *recording) close(ended bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	ctx, cancel := context.WithTimeout(context.Background(), recordPatience)
	defer cancel()
	if r.recorder != nil {
		err = r.recorder.Close(ctx)
	}
	if ended && err == nil && r.note != nil { // else the job has no record
		err = store.Release(ctx, r.store, r.owner, time.Now())
	}
	if r.store != nil && !r.borrowed {
		err = errors.Join(err, r.store.Close())
	}
	return err
}

// resumption is what a record says of a job whose head has ended without saying so.
type resumption struct {
	where  string
	newest member.Record
}

func (r *resumption) String() string {
	if r.newest.View.Generation == 0 {
		return fmt.Sprintf("the record %s goes on: the head before this one has ended before its first generation", r.where)
	}
	workers := make([]string, len(r.newest.View.Members))
	for i, m := range r.newest.View.Members {
		workers[i] = fmt.Sprint(m.Worker)
	}
	return fmt.Sprintf("the record %s goes on after generation %d. Its members (workers %s) were lost with their agent, and with them the state of the job, which is in no store: "+
		"training begins anew, or where the script resumes", r.where, r.newest.View.Generation, strings.Join(workers, ", "))
}

// ElsewhereError says that a job whose head has ended may be led from another host by now, of which this store cannot know.
type ElsewhereError struct {
	Job    string
	Newest member.Record
	Hosts  []string // that are enough to go on without this one
}

func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("the job %q may go on without this host: when its head ended, in generation %d or later, %s could go on by themselves: look there with shoal ps; if you know that they are gone for good, take the name over by force",
		e.Job, e.Newest.View.Generation, strings.Join(e.Hosts, ", "))
}

// claim makes this host the head of the job of a name, or says who is. It touches no agent, and comes before anything starts.
func (l *launch) claim(ctx context.Context, name string) error {
	c := l.cfg.Record
	if c == nil {
		return nil
	}
	n, after := recordNote{URL: c.URL, Job: name, Run: l.place.Run}, topo.Generation(0)
	have, err := store.Find(ctx, c.Store, name)
	switch {
	case errors.Is(err, store.ErrNotFound), c.TakeOver:
	case err != nil:
		return err
	case c.URL == "" && have.Ended.IsZero() && have.Host == l.host: // whoever opens the folder knows that the process before has ended
		if l.resumed, err = resume(ctx, c.Store, have); err != nil {
			return err
		}
		n.Run, after = have.Run, max(have.Generation, l.resumed.newest.View.Generation)
	}
	owner := store.Owner{Job: name, Run: n.Run, Host: l.host, Generation: after, Since: time.Now()}
	if err := store.Claim(ctx, c.Store, owner, c.TakeOver); err != nil {
		return err
	}
	l.record = &recording{at: l.joinAddress, say: func(line string) { l.console.Note(line) }, note: &n, after: after, store: c.Store, borrowed: true, owner: owner}
	return nil
}

func resume(ctx context.Context, s store.Store, have store.Owner) (*resumption, error) {
	newest, err := store.NewJournal(s, have.Job, have.Run).Newest(ctx)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	var others []string
	for _, h := range newest.Hosts {
		if h.Name != have.Host {
			others = append(others, h.Name)
		}
	}
	if err == nil && newest.Quorum(others) {
		return nil, &ElsewhereError{have.Job, newest, others}
	}
	return &resumption{s.String(), newest}, nil
}

// joinAddress is where other hosts join.
func (l *launch) joinAddress() string {
	if f := l.cfg.Fleet; f != nil && f.Join != nil {
		return f.Join()
	}
	return ""
}

// openRecord begins to keep the record, now that this host has its name in the job and an address. Where the job begins, others can
// find it from now on.
func (l *launch) openRecord() {
	if l.record == nil {
		return
	}
	l.record.host = l.host
	if l.least == 0 {
		return
	}
	if l.resumed != nil {
		l.console.Note(l.resumed.String())
	}
	l.record.mu.Lock()
	defer l.record.mu.Unlock()
	l.record.lead(0)
}

// recorded tells what becomes of the record at the end of this host's part in the job.
func (l *launch) recorded() {
	if l.record == nil {
		return
	}
	l.mu.Lock()
	leader := l.leader
	ended := (leader == l.host || l.agent == nil) && !l.over // else the job goes on elsewhere
	l.mu.Unlock()
	err := l.record.close(ended)
	if l.console == nil { // nothing has begun, and the error of that is told
		return
	}
	var taken *store.TakenError
	switch {
	case ended && errors.As(err, &taken):
		l.console.Note("the record has not been told of the end of this job: " + err.Error())
	case ended && err != nil:
		l.console.Note(fmt.Sprintf("the record does not say that the job %s has ended: who starts one of this name has to take it over (%v)", l.name(), err))
	case err != nil:
		l.console.Note("the record is not complete: " + err.Error())
	case l.cfg.Record != nil && l.cfg.Record.URL == "" && leader != "" && leader != l.host:
		l.console.Note(fmt.Sprintf("the record %s ends here: host %s leads the job now, and cannot reach it", l.cfg.Record.Store, leader))
	}
}
