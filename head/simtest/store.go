package simtest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/store/record"
	"github.com/shoal-ml/shoal/topo"
)

// jobName is what the store knows the job by.
const jobName = "train"

// store is a model of the store that the record of the job is in: a map, of which every call is
// lost, answered, done without an answer that arrives, or done when nobody waits for it any more.
// What is written when is decided by the real code (store/record). Nothing of the store reaches the
// agents. One goroutine uses it, that of its Cluster.
type store struct {
	// "folder": of the first host alone; "servers": that all hosts can reach; "" = the job has no
	// record
	kind  string
	down  bool            // nobody reaches it
	away  map[string]bool // hosts that cannot reach it
	held  map[string]held // by key
	last  uint64          // the newest revision
	late  []storeCall     // calls that were given up, and may still be done
	apart []*starter      // other starts of a job of this name
	recorded
}

// held is what a key holds.
type held struct {
	value    []byte
	revision uint64 // number of the write, from 1
}

// storeCall is a call and who makes it.
type storeCall struct {
	by    string // the host, or the starter
	force bool   // a person has said that the name is to be taken over
	record.Call
}

// starter is another start of a job of the same name.
type starter struct {
	name  string
	begin *record.Beginning // how it claims the name
	task  *record.Task      // the call that it has under way
}

// errSilent is the error of a call that is not answered.
var errSilent = errors.New("it does not answer")

// answer carries out a call that has arrived, after checkWrite, and returns the answer.
func (s *store) answer(c *Cluster, e storeCall) record.Answer {
	have, there := s.held[e.Key]
	switch {
	case e.Op == record.Keys:
		var keys []string
		for _, key := range slices.Sorted(maps.Keys(s.held)) {
			if strings.HasPrefix(key, e.Key+".") {
				keys = append(keys, key)
			}
		}
		return record.Answer{Keys: keys}
	case e.Op == record.Get && there:
		return record.Answer{Value: have.value, Revision: have.revision}
	case e.Op == record.Get:
		return record.Answer{Said: record.Empty, Err: errors.New("it holds nothing")}
	case e.Op == record.Create && there, e.Op == record.Update &&
		(!there || have.revision != e.Was):
		return record.Answer{Said: record.Taken, Err: errors.New("somebody was faster")}
	}
	s.checkWrite(c, e, have.value)
	s.last++
	s.held[e.Key] = held{e.Value, s.last}
	return record.Answer{}
}

// IsStoreEvent reports whether an event is of the store alone: of what becomes of the calls to it.
func IsStoreEvent(event string) bool {
	what, _, _ := strings.Cut(event, " ")
	return slices.Contains([]string{"serve", "lose-answer", "lose-call", "delay-call",
		"deliver-call", "store", "rival", "split"}, what)
}

// performStoreEvent performs an event of the store:
//
//	serve A                   it does what A asks for, and A hears the answer
//	lose-answer A             it does what A asks for, and the answer is lost
//	lose-call A               it does not hear A
//	delay-call A              it does not hear A yet, and A waits no longer
//	deliver-call 1            it does the second of the calls that nobody waits for any more
//	store down · store up     for all hosts; store down A: for one
//	rival R · rival R force   a job of the same name starts elsewhere · and is to have the name
//	split 4                   a part of the job that a person has split from it by force records
//	                          another generation 4
func (c *Cluster) performStoreEvent(what, arg, more string) {
	s, n := &c.store, 0
	if s.kind == "" {
		return
	}
	switch what {
	case "store":
		if more != "" {
			s.away[more] = arg == "down"
		} else {
			s.down = arg == "down"
		}
	case "deliver-call":
		if n, _ = strconv.Atoi(arg); !s.down && len(s.late) > 0 {
			n %= len(s.late)
			e := s.late[n]
			s.late = slices.Delete(s.late, n, n+1)
			s.answer(c, e)
		}
	case "rival":
		if s.kind == "servers" && s.findStarter(arg) == nil && c.findHost(arg) == nil {
			b := &record.Beginning{
				Owner:    record.Owner{Job: jobName, Run: "of " + arg, Host: arg, Since: 1},
				TakeOver: more == "force"}
			task, err := b.Task()
			if err != nil {
				c.invariants.fail("%s cannot begin: %v", arg, err)
			}
			s.apart = append(s.apart, &starter{arg, b, task})
		}
	case "split":
		if n, _ = strconv.Atoi(arg); n > 0 && s.kind == "servers" {
			s.writeForeign(c, topo.Generation(n))
		}
	default:
		c.resolveCall(what, arg)
	}
}

// findStarter returns another start of the job by name; nil if there is none.
func (s *store) findStarter(name string) *starter {
	if i := slices.IndexFunc(s.apart, func(x *starter) bool { return x.name == name }); i >= 0 {
		return s.apart[i]
	}
	return nil
}

// resolveCall decides, by the event what, what becomes of the call that a host or another start has
// under way, and gives it the answer.
func (c *Cluster) resolveCall(what, name string) {
	s := &c.store
	h, x := c.findHost(name), s.findStarter(name)
	e := storeCall{by: name}
	switch {
	case x != nil:
		e.force, e.Call = x.begin.TakeOver, x.task.Call
	case h != nil && h.alive && h.writer != nil:
		var asks bool
		if e.Call, asks = h.writer.Next(); !asks {
			return
		}
	default:
		return
	}
	a := record.Answer{Said: record.Silent, Err: errSilent}
	switch {
	case what == "delay-call":
		s.late = append(s.late, e)
	case s.down || s.away[name] || what == "lose-call":
	case what == "serve":
		a = s.answer(c, e)
	default:
		s.answer(c, e)
	}
	if x != nil {
		s.answerStarter(c, x, a)
		return
	}
	h.writer.Answered(a)
	h.checkReports()
}

// answerStarter takes an answer to another start of the job, which is told at once if it fails.
func (s *store) answerStarter(c *Cluster, x *starter, a record.Answer) {
	err := a.Err
	if a.Said != record.Silent {
		x.task, err = x.task.Answered(a)
	}
	if x.task != nil && err == nil {
		return
	}
	s.apart = slices.DeleteFunc(s.apart, func(y *starter) bool { return x == y })
	if err != nil {
		c.printStore("%s does not begin: %v", x.name, err)
	}
}

// printStore prints what becomes of the record.
func (c *Cluster) printStore(format string, args ...any) { c.print("store: "+format, args...) }

// tellWriter tells the host's writer of a generation.
func (h *host) tellWriter(r member.Record) {
	if h.writer != nil && r.View.Generation > 0 {
		h.told = append(h.told, r.View.Generation)
		h.writer.AddGeneration(r, 1)
		h.writer.Next() // is asked for at once
	}
}

// addWriter gives a host that can reach the store a writer; first is the one that the job begins
// on.
func (h *host) addWriter(s *store, first bool) {
	if s.kind == "" || !first && s.kind != "servers" {
		return
	}
	h.writer = &record.Writer{}
	h.writer.SetHost(h.name, h.name+":7000")
	if first {
		h.writer.SetOwner(s.owner)
		h.writer.Lead(1)
	} else {
		h.writer.SetRecord(jobName, s.run, s.after, 1)
	}
	h.writer.Next() // is asked for at once
}

// tellWriterOver tells the host's writer that the job is over.
func (h *host) tellWriterOver() {
	h.cluster.store.over = true
	if h.writer != nil && h.agent.Record().Head == h.name {
		h.writer.End(2)
		h.writer.Next()
	}
}

// claimJob claims the job's name in the store for its first host; false if that may not begin.
func (c *Cluster) claimJob(name string) bool {
	s := &c.store
	s.lives++
	b := &record.Beginning{
		Owner: record.Owner{Job: jobName, Run: fmt.Sprint("r", s.lives), Host: name, Since: 1},
		Alone: s.kind == "folder"}
	t, err := b.Task()
	for t != nil && err == nil {
		if s.down {
			err = errSilent
			break
		}
		s.run, s.after = b.Owner.Run, b.Owner.Generation
		t, err = t.Answered(s.answer(c, storeCall{by: name, Call: t.Call}))
	}
	if err != nil {
		c.printStore("%s does not begin: %v", name, err)
		return false
	}
	s.owner, s.over, s.foreign = b.Owner, false, map[topo.Generation]bool{}
	return true
}

// restart runs the job anew on its first host, which is lost, with the store in its folder. The
// hosts that are left of the old job are on their own.
func (c *Cluster) restart(name string) {
	s, h := &c.store, c.findHost(name)
	if s.kind != "folder" || h == nil || h != c.hosts[0] || h.alive {
		return
	}
	run, after, over := s.run, s.after, s.over
	s.late = nil // the server was in the process that has ended
	if !c.claimJob(name) {
		s.run, s.after = run, after
		return
	}
	if s.checkResume(c, run, after, over); c.invariants.broken != nil {
		return
	}
	c.printStore("%s begins again, after generation %d of run %s", name, s.after, s.run)
	every := c.disk.every
	c.hosts, c.net.links, c.last = nil, map[pair]*link{}, 0
	c.invariants.reset()
	c.disk.reset()
	c.disk.every = every
	c.addFirstHost(name)
}
