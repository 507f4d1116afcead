package launcher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/topo"
)

// RecordConfig says where the record of a job is kept. docs/design/store.md has what it is for.
type RecordConfig struct {
	Store store.Store // open; Run does not close it
	// by which the job's other hosts find it, to go on with the record if they lead; "" = they
	// cannot: it is in this process
	URL      string
	TakeOver bool // the job gets the name even if the store says that somebody leads it
}

// recordPatience is how long the end of a job waits for its store.
const recordPatience = 3 * time.Second

// recording keeps the record of a job where it is led. Nothing of it waits for the store but close.
type recording struct {
	*store.Recorder

	mu       sync.Mutex
	note     *recordMessage  // which record; nil = not known yet
	after    topo.Generation // which it has already, of heads that have ended
	store    store.Store     // that it is in
	borrowed bool            // the store is not closed here
}

// learn is told which record it is, and where.
func (r *recording) learn(n recordMessage, after topo.Generation, s store.Store) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note, r.after, r.store = &n, after, s
	r.Learn(s, n.Job, n.Run, after)
}

// shared is what the job's other hosts must know to go on with the record; nil if they cannot.
func (r *recording) shared() *recordMessage {
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

// close waits a while until all is written, and tells the store if the job has ended. The agent
// has.
func (r *recording) close(ended bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), recordPatience)
	defer cancel()
	err := r.Close(ctx, ended)
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
		return fmt.Sprintf("the record %s goes on: the head before this one has ended before "+
			"its first generation", r.where)
	}
	workers := make([]string, len(r.newest.View.Members))
	for i, m := range r.newest.View.Members {
		workers[i] = fmt.Sprint(m.Worker)
	}
	return fmt.Sprintf("the record %s goes on after generation %d. Its members (workers %s) "+
		"were lost with their agent, and with them the state of the job, which is in no store: "+
		"training begins anew, or where the script resumes", r.where, r.newest.View.Generation,
		strings.Join(workers, ", "))
}

// claim makes this host the head of the job of a name, or says who is. It touches no agent, and
// comes before anything starts.
func (l *launcher) claim(ctx context.Context, name string) error {
	c := l.cfg.Record
	if c == nil {
		return nil
	}
	o := store.Owner{Job: name, Run: l.place.Run, Host: l.registry.self(), Since: time.Now()}
	alone := c.URL == "" // whoever opens the folder knows that the process before has ended
	o, newest, err := store.Begin(ctx, c.Store, o, alone, c.TakeOver)
	if err != nil {
		return err
	}
	if o.Generation > maxAfter { // other hosts would refuse to join
		return fmt.Errorf("the record %s says that the job %s has had %d generations, more than "+
			"anybody counts: give the job another name", c.Store, name, o.Generation)
	}
	if newest != nil {
		l.resumed = &resumption{c.Store.String(), *newest}
	}
	n := recordMessage{URL: c.URL, Job: name, Run: o.Run}
	say := func(line string) { l.console.Note(line) }
	l.record = &recording{Recorder: store.NewRecorder(say), note: &n, after: o.Generation,
		store: c.Store, borrowed: true}
	l.record.Claimed(c.Store, o)
	return nil
}

// joinAddress is where other hosts join.
func (l *launcher) joinAddress() string {
	if f := l.cfg.Fleet; f != nil && f.Join != nil {
		return f.Join()
	}
	return ""
}

// openRecord begins to keep the record, now that this host has its name in the job and an address.
// Where the job begins, others can find it from now on.
func (l *launcher) openRecord() {
	if l.record == nil {
		return
	}
	l.record.Is(l.registry.self(), l.joinAddress())
	if l.registry.initial == 0 {
		return
	}
	if l.resumed != nil {
		l.console.Note(l.resumed.String())
	}
	l.record.Lead()
}

// recorded tells what becomes of the record at the end of this host's part in the job.
func (l *launcher) recorded() {
	if l.record == nil {
		return
	}
	leader, leads := l.registry.whoLeads()
	ended := l.registry.endsHere() || l.agent == nil
	err := l.record.close(ended)
	if l.agent == nil { // nothing has begun, and the error of that is told
		return
	}
	var taken *store.TakenError
	switch {
	case ended && errors.As(err, &taken):
		l.console.Note("the record has not been told of the end of this job: " + err.Error())
	case ended && err != nil:
		l.console.Note(fmt.Sprintf("the record does not say that the job %s has ended: who "+
			"starts one of this name has to take it over (%v)", l.registry.name(), err))
	case err != nil:
		l.console.Note("the record is not complete: " + err.Error())
	case l.cfg.Record != nil && l.cfg.Record.URL == "" && leader != "" && !leads:
		l.console.Note(fmt.Sprintf(
			"the record %s ends here: host %s leads the job now, and cannot reach it",
			l.cfg.Record.Store, leader))
	}
}
