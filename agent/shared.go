package agent

import (
	"fmt"
	"sync"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/topo"
)

// results are the shared results of a host, by name.
type results struct {
	mu sync.Mutex
	of map[resultName]*result

	// of memory, on which they lie in turns: all workers read them; none = the host has no choice
	nodes []int
}

// resultName is the group whose result it is, and what its workers call it.
type resultName struct {
	group topo.GroupID
	name  string
}

// result is memory that workers map to read, and only the agent writes. Whoever holds it closes it.
type result struct {
	resultName
	bytes   int64 // as its workers ask for it
	results *results
	// guarded by results.mu: to workers that were released; who asks for the name gets a copy
	left bool
	once sync.Once
	// of which it is the copy; held until that is made, or for good where the host has no room
	before  *result
	segment *arena.Segment
	err     error // why there is no segment
	holders int   // guarded by results.mu; without any it is gone
}

// open holds the result of a name, and makes it if it is not there. Sessions that ask at once wait
// for the first.
func (rs *results) open(name resultName, bytes int64) (*result, error) {
	rs.mu.Lock()
	r := rs.of[name]
	if r == nil || r.left {
		next := &result{resultName: name, bytes: bytes, results: rs}
		if r != nil && r.bytes == bytes {
			r.holders++
			next.before = r
		}
		rs.of[name], r = next, next
	}
	if r.bytes != bytes {
		rs.mu.Unlock()
		return nil, &collective.FieldError{Field: "bytes",
			Problem: fmt.Sprintf("the shared result %q has %d bytes on other ranks, and %d "+
				"here: give it the same shape and type everywhere", name.name, r.bytes, bytes)}
	}
	r.holders++
	rs.mu.Unlock()
	r.once.Do(r.make)
	if r.err != nil {
		_ = r.Close()
		return nil, r.err
	}
	return r, nil
}

// make finds the memory. Where there is no room for a copy, who was released sees what comes.
func (r *result) make() {
	r.segment, r.err = arena.NewResult(fmt.Sprintf("result-%d", r.group), r.bytes,
		r.results.nodes...)
	switch before := r.before; {
	case before == nil:
	case r.err != nil:
		r.segment, r.err = before.segment, nil
	default:
		copy(r.segment.Mem, before.segment.Mem)
		r.before = nil
		_ = before.Close()
	}
}

// keep adds a holder.
func (r *result) keep() *result {
	r.results.mu.Lock()
	defer r.results.mu.Unlock()
	r.holders++
	return r
}

// Close takes a holder away.
func (r *result) Close() (err error) {
	r.release(func(s *arena.Segment) { err = s.Close() })
	return err
}

// release takes a holder away, and gives free the memory that nobody holds any more.
func (r *result) release(free func(*arena.Segment)) {
	r.results.mu.Lock()
	r.holders--
	last := r.holders == 0
	if last && r.results.of[r.resultName] == r {
		delete(r.results.of, r.resultName)
	}
	r.results.mu.Unlock()
	switch {
	case !last || r.segment == nil:
	case r.before != nil:
		r.before.release(free)
	default:
		free(r.segment)
	}
}

// shared lets a worker see a shared result. It asks again in each generation: the memory may be
// another one then.
func (s *session) shared(r *api.SharedRequest) error {
	name := resultName{topo.GroupID(r.Group), r.Name}
	switch {
	case len(r.Name) < 1 || len(r.Name) > collective.MaxName:
		return &collective.FieldError{Field: "name",
			Problem: fmt.Sprintf("a name of %d bytes: a shared result has one of 1 to %d",
				len(r.Name), collective.MaxName)}
	case r.Bytes <= 0:
		return &collective.FieldError{Field: "bytes",
			Problem: fmt.Sprintf("%d: a shared result needs at least one byte", r.Bytes)}
	}
	e := s.agent.engine
	in := name.group == topo.World
	if err := e.do(func() {
		if !in {
			_, _, in = e.driver.head.Index(name.group, s.worker)
		}
	}); err != nil {
		return err
	}
	if !in {
		return &collective.FieldError{Field: "group",
			Problem: fmt.Sprintf("%d is no group of this rank", r.Group)}
	}
	found, err := e.results.open(name, r.Bytes)
	if err != nil {
		return err
	}
	defer found.Close()
	id := s.lastSeg + 1
	if err := e.do(func() { id = e.byID[s.worker].hold(found, id) }); err != nil {
		return err
	}
	s.lastSeg = max(s.lastSeg, id)
	return s.reply(&api.SharedReply{ID: id, Bytes: int64(len(found.segment.Mem))},
		found.segment.FD())
}

// hold gives a worker a result: as the segment that it knows by the name already, or as a new one.
func (m *worker) hold(r *result, next uint32) (id uint32) {
	if id, have := m.holds(r.resultName); have != nil {
		m.dying = append(m.dying, have)
		m.results[id] = r.keep()
		return id
	}
	m.results[next] = r.keep()
	return next
}

// holds finds what a worker has under a name; nil if it has nothing.
func (m *worker) holds(name resultName) (id uint32, r *result) {
	for id, r := range m.results {
		if r.resultName == name {
			return id, r
		}
	}
	return 0, nil
}

// forget takes the results of a group from a worker.
func (m *worker) forget(g topo.GroupID) {
	for id, r := range m.results {
		if r.group == g {
			delete(m.results, id)
			m.dying = append(m.dying, r)
		}
	}
}

// leave lets released workers keep what results they have as they are: those who stay ask again
// before their next call, which waits for nobody who is released, and go on with a copy.
func (e *engine) leave(released []*worker) {
	for _, gone := range released {
		if gone.left {
			continue // nobody reads them any more
		}
		for _, r := range gone.results {
			r.leave()
		}
	}
}

// leave has the name mean another memory for who asks next.
func (r *result) leave() {
	r.results.mu.Lock()
	defer r.results.mu.Unlock()
	r.left = true
}

// checkShared finds who still reads a result that a call is to write into: who makes the call does
// not any more.
func (d *driver) checkShared(call *collective.Call) error {
	at := call.Shared
	if at.Name == "" || at.Group == call.Group {
		return nil
	}
	for _, m := range d.engine.members {
		if _, r := m.holds(resultName{at.Group, at.Name}); r == nil || m.left || !m.entered ||
			m.fresh {
			continue // it reads nothing, or has not begun to
		}
		if _, _, in := d.head.Index(call.Group, m.id); !in {
			return &collective.FieldError{Field: "out.segment",
				Problem: fmt.Sprintf("rank %d has the shared result %q too, and is not in group "+
					"%d: give each group results of its own", m.rank, at.Name, call.Group)}
		}
	}
	return nil
}
