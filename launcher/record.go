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
	Store store.Store // an open store, which Run does not close
	// URL is by what the job's other hosts find the store, to go on with the record if they come to
	// lead; "" = they cannot, since the store is in this process.
	URL      string
	TakeOver bool // the job gets its name even if the store says that somebody leads it
}

// recordPatience is how long the end of a job waits for its store.
const recordPatience = 3 * time.Second

// recording keeps the record of a job, on the host that leads, by a Recorder, which has a lock of
// its own. Of its methods only close waits for the store. Any goroutine may call them, but for
// recordForHosts and earlierGenerations: Run calls these before others know the recording, so they
// take no lock. A nil recording is that of a job without a record.
type recording struct {
	*store.Recorder

	mu       sync.Mutex      // guards what follows
	note     *recordMessage  // names the record; nil = it is not known yet
	after    topo.Generation // generations that the record has of heads before this start
	store    store.Store     // store that the record is in; nil = it is not known yet
	borrowed bool            // somebody else closes the store
}

// setRecord stores the name of the record, the generations that it has of heads before, and the
// store that it is in, which close closes. It is called once, on a host that joins.
func (r *recording) setRecord(n recordMessage, after topo.Generation, s store.Store) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note, r.after, r.store = &n, after, s
	r.SetRecord(s, n.Job, n.Run, after)
}

// recordForHosts is what the job's other hosts must know to go on with the record, which nobody
// changes; nil if they cannot, or there is no record.
func (r *recording) recordForHosts() *recordMessage {
	if r == nil || r.note.URL == "" {
		return nil
	}
	return r.note
}

// earlierGenerations is how many generations the job had before this start; 0 without a record.
func (r *recording) earlierGenerations() topo.Generation {
	if r == nil {
		return 0
	}
	return r.after
}

// close blocks up to recordPatience until all is written, tells the store whether the job has
// ended, and closes the store unless it is borrowed. It is called once, after the agent has ended.
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

// resumption is what a record says of a job whose head has ended without saying so. Nobody changes
// it.
type resumption struct {
	where  string        // the store, in words
	newest member.Record // its View has generation 0 where the head ended before the first
}

// String says, for people, what the record goes on after.
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

// The methods of launcher below run on the goroutine of Run or Serve.

// claimJob makes this host the head of the job of a name in the store, and l.record the recording
// of that; if another host is the head, the error says which. Without a RecordConfig it does
// nothing. It waits for the store, and comes before the agent and all processes.
func (l *launcher) claimJob(ctx context.Context, name string) error {
	c := l.cfg.Record
	if c == nil {
		return nil
	}
	o := store.Owner{Job: name, Run: l.place.Run, Host: l.registry.hostName(), Since: time.Now()}
	alone := c.URL == "" // opening the folder showed that the process before has ended
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
	l.record.SetOwner(c.Store, o)
	return nil
}

// joinAddress is HOST:PORT where other hosts join; "" = they cannot.
func (l *launcher) joinAddress() string {
	if f := l.cfg.Fleet; f != nil && f.Join != nil {
		return f.Join()
	}
	return ""
}

// openRecord begins to keep the record, now that this host has its name in the job and an address.
// If the job begins on this host, others can find the job in the store from now on. It does not
// wait for the store.
func (l *launcher) openRecord() {
	if l.record == nil {
		return
	}
	l.record.SetHost(l.registry.hostName(), l.joinAddress())
	if l.registry.initial == 0 {
		return
	}
	if l.resumed != nil {
		l.console.Note(l.resumed.String())
	}
	l.record.Lead()
}

// closeRecord closes the record at the end of this host's part in the job, and notes on the console
// what is wrong with it. It waits for the store as recording.close does.
func (l *launcher) closeRecord() {
	if l.record == nil {
		return
	}
	leader, leads := l.registry.whoLeads()
	ended := l.registry.endsHere() || l.agent == nil
	err := l.record.close(ended)
	if l.agent == nil { // nothing has begun, and Run returns why
		return
	}
	var taken *store.TakenError
	switch {
	case ended && errors.As(err, &taken):
		l.console.Note("the record has not been told of the end of this job: " + err.Error())
	case ended && err != nil:
		l.console.Note(fmt.Sprintf("the record does not say that the job %s has ended: who "+
			"starts one of this name has to take it over (%v)", l.registry.jobName(), err))
	case err != nil:
		l.console.Note("the record is not complete: " + err.Error())
	case l.cfg.Record != nil && l.cfg.Record.URL == "" && leader != "" && !leads:
		l.console.Note(fmt.Sprintf(
			"the record %s ends here: host %s leads the job now, and cannot reach it",
			l.cfg.Record.Store, leader))
	}
}
