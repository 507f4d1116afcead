package agent

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/topo"
)

// Shared results: memory of a host into which the agent writes the result of a collective once, for
// all workers there to read.

// results are the shared results of a host: the newest of each name. It is safe for concurrent use.
type results struct {
	mu sync.Mutex // guards of, and left and holders of each result
	of map[resultName]*result

	// nodes are the memory nodes on which results lie in turns, since all workers read them; none =
	// the host has no choice. New sets them.
	nodes []int
}

// resultName names a shared result: the group whose result it is, and the name that the workers of
// the group give it.
type resultName struct {
	group topo.GroupID
	name  string
}

// result is memory that workers map to read, and that only the agent writes. It counts its holders;
// each of them calls Close or release once. Any goroutine that does not hold results.mu may call
// the methods.
type result struct {
	resultName
	bytes   int64 // size that its workers ask for
	results *results
	// left says that the result belongs to workers that were released: whoever asks for its name
	// gets a copy. It is guarded by results.mu.
	left bool
	once sync.Once // runs makeMemory, after which before, segment and err stay as they are
	// before is the result that this one is to be a copy of; nil once the copy is made. Where the
	// host has no room for a copy, before is held for good, and its segment is shared.
	before  *result
	segment *arena.Segment
	err     error // why there is no segment; nil = there is one
	holders int   // guarded by results.mu; at 0 the memory is freed
}

// open returns the result of a name with one more holder, and makes it, bytes long, if it is not
// there. The caller releases it. Sessions that ask at the same time wait for the first, which
// makes the memory.
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
	r.once.Do(r.makeMemory)
	if r.err != nil {
		_ = r.Close()
		return nil, r.err
	}
	return r, nil
}

// makeMemory makes the memory of a result, once, on the goroutine that opens it first. Where there
// is no room for a copy, released workers go on seeing the results of the others.
func (r *result) makeMemory() {
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

// retain adds a holder, who releases the result, and returns the result.
func (r *result) retain() *result {
	r.results.mu.Lock()
	defer r.results.mu.Unlock()
	r.holders++
	return r
}

// Close is release for the caller's own holding: it frees the memory itself after the last holder.
func (r *result) Close() (err error) {
	r.release(func(s *arena.Segment) { err = s.Close() })
	return err
}

// release removes a holder, and passes the memory to free after the last. Any goroutine may call
// it.
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

// serveShared answers a request to map a shared result. The worker asks again in each generation:
// the memory may be another one then. It runs on the session's goroutine, and waits for the
// engine's thread.
func (s *session) serveShared(r *api.SharedRequest) error {
	name := resultName{topo.GroupID(r.Group), r.Name}
	switch {
	case len(r.Name) < 1 || len(r.Name) > collective.MaxName:
		return &collective.FieldError{Field: "name",
			Problem: fmt.Sprintf("a name of %d bytes: a shared result has one of 1 to %d",
				len(r.Name), collective.MaxName)}
	case strings.ContainsRune(r.Name, utf8.RuneError): // JSON has it in place of what is no UTF-8
		return &collective.FieldError{Field: "name",
			Problem: fmt.Sprintf("%q is not UTF-8, so others could have the same", r.Name)}
	case r.Bytes <= 0:
		return &collective.FieldError{Field: "bytes",
			Problem: fmt.Sprintf("%d: a shared result needs at least one byte", r.Bytes)}
	}
	e := s.agent.engine
	in := name.group == topo.World
	if err := e.runAndWait(func() {
		if !in {
			_, _, in = e.driver.head.IndexInGroup(name.group, s.worker)
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
	if err := e.runAndWait(func() { id = e.byID[s.worker].holdResult(found, id) }); err != nil {
		return err
	}
	s.lastSeg = max(s.lastSeg, id)
	return s.reply(&api.SharedReply{ID: id, Bytes: int64(len(found.segment.Mem))},
		found.segment.FD())
}

// holdResult makes a worker a holder of a result, and returns the number of its segment: the one
// that the worker knows by the name of the result already, or else next. It runs on the engine's
// thread.
func (m *worker) holdResult(r *result, next uint32) (id uint32) {
	if id, have := m.findResult(r.resultName); have != nil {
		m.dying = append(m.dying, have)
		m.results[id] = r.retain()
		return id
	}
	m.results[next] = r.retain()
	return next
}

// findResult finds the result that a worker has under a name; nil if it has none. It runs on the
// engine's thread, and adds no holder.
func (m *worker) findResult(name resultName) (id uint32, r *result) {
	for id, r := range m.results {
		if r.resultName == name {
			return id, r
		}
	}
	return 0, nil
}

// forgetResults removes the results of a group from a worker; their memory goes when no open call
// uses it. It runs on the engine's thread.
func (m *worker) forgetResults(g topo.GroupID) {
	for id, r := range m.results {
		if r.group == g {
			delete(m.results, id)
			m.dying = append(m.dying, r)
		}
	}
}

// detachResults lets released workers keep their results as they are. The workers that stay ask
// again before their next call, which waits for nobody who is released, and go on with a copy. It
// runs on the engine's thread.
func (e *engine) detachResults(released []*worker) {
	for _, gone := range released {
		if gone.left {
			continue // nobody reads this worker's results any more
		}
		for _, r := range gone.results {
			r.detach()
		}
	}
}

// detach has the name of a result mean another memory for whoever asks next. Any goroutine may call
// it.
func (r *result) detach() {
	r.results.mu.Lock()
	defer r.results.mu.Unlock()
	r.left = true
}

// checkShared returns an error if a worker that is not in the group of a call reads the shared
// result which the call is to write. The workers that make the call have read that result. It runs
// on the engine's thread.
func (d *driver) checkShared(call *collective.Call) error {
	at := call.Shared
	if at.Name == "" || at.Group == call.Group {
		return nil
	}
	for _, m := range d.engine.members {
		if _, r := m.findResult(resultName{at.Group, at.Name}); r == nil || m.left || !m.entered ||
			m.fresh {
			continue // this worker reads nothing, or has not begun to
		}
		if _, _, in := d.head.IndexInGroup(call.Group, m.id); !in {
			return &collective.FieldError{Field: "out.segment",
				Problem: fmt.Sprintf("rank %d has the shared result %q too, and is not in group "+
					"%d: give each group results of its own", m.rank, at.Name, call.Group)}
		}
	}
	return nil
}
