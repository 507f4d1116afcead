package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/topo"
)

// Shared results: memory of the agent that the workers of a host see, and into which it writes a
// result once for all of them. Any goroutine may call the functions and methods of this file.

// sharing is a shared result as this worker sees it: memory.shares has it until closeShared or
// unmapAll closes it. What is above mu is set when it is made. Any goroutine may use its methods,
// which lock mu.
type sharing struct {
	*arena.Window              // the addresses of the result, whatever memory they show
	group         topo.GroupID // the group that shares the result
	name          string       // the name of the result, which the program gave it
	bytes         int          // the size of the result, as the program asked for it

	mu sync.Mutex // guards the fields below, and what the window shows; taken after memory.mu
	id uint32     // the agent's number of the memory that the window shows
	// generation is the one for which the window shows the agent's memory; 0 = the memory is
	// this worker's own.
	generation topo.Generation
}

// Shared returns n elements that all ranks of r on this host see, and only the agent writes: the
// output of AllReduceInto and AllGather. What is the same for all of them is then written once, and
// not once a rank. Ranks that give the same name get the same memory; the others' next call with it
// waits until this rank has called too, so a result stays as it is until then. The program that
// writes to the slice is ended by the kernel. It lives as long as the group. A worker that is
// released keeps what is in it. Without an agent each call returns memory of its own. It may ask
// the agent for memory, and waits for that; any goroutine may call it.
func Shared[T Element](r Ranks, name string, n int) ([]T, error) {
	g := r.group()
	size, err := sizeOf[T](n)
	switch {
	case err != nil:
		return nil, err
	case n < 1:
		return nil, fmt.Errorf("client: a shared result of %d elements", n)
	case g.freed.Load():
		return nil, errFreed
	case g.job.solo || g.alone:
		return makeOwn[T](n, size)
	}
	s, err := g.sharedResult(name, size)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&s.Mem[0])), n), nil
}

// sharedResult returns the shared result of the group with a name and a size, which it makes at the
// first call: it may ask the agent for memory. It holds m.mu meanwhile. The result stays that of
// memory.
func (g *Group) sharedResult(name string, bytes int) (*sharing, error) {
	m := &g.job.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sharedResults() {
		if s.group == g.id && s.name == name && s.bytes == bytes {
			return s, nil
		}
	}
	page := os.Getpagesize()
	w, err := arena.NewWindow((bytes + page - 1) / page * page)
	if err != nil {
		return nil, err
	}
	s := &sharing{Window: w, group: g.id, name: name, bytes: bytes}
	if !g.job.aside.Load() {
		if err := s.showAgentMemory(g.job); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	m.setSharedResults(append(m.sharedResults(), s))
	return s, nil
}

// showAgentMemory makes the window show the memory of the agent. It asks the agent once a
// generation: that can have made other memory for the new members. It holds s.mu while it waits for
// the answer.
func (s *sharing) showAgentMemory(j *Job) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := j.Generation() // before the request: the memory is that of this one, or newer
	if s.generation == now {
		return nil
	}
	var reply api.SharedReply
	fds, err := j.request(&api.SharedRequest{Group: uint32(s.group), Name: s.name,
		Bytes: int64(s.bytes)}, &reply, 1)
	if err != nil {
		return err
	}
	if err := s.Show(fds[0]); err != nil {
		return err
	}
	s.id, s.generation = reply.ID, now
	return nil
}

// makeOwn makes the bytes in the window this worker's own, for a job of one. It takes s.mu.
func (s *sharing) makeOwn() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generation = 0
	return s.MakeOwn()
}

// sharedRef returns where the output of a call lies in a shared result, which it may ask the agent
// for. The goroutine that makes the call runs it, inside calls.beginUse.
func (c *call) sharedRef(j *Job, s *sharing) (arena.Ref, error) {
	if c.inPlace() {
		return arena.Ref{}, errInPlace
	}
	if err := s.showAgentMemory(j); err != nil {
		return arena.Ref{}, err
	}
	off := uintptr(unsafe.Pointer(&c.out[0])) - uintptr(unsafe.Pointer(&s.Mem[0]))
	return arena.Ref{Segment: s.id, Offset: uint64(off),
		Count: uint64(len(c.out) / c.dtype.Size())}, nil
}

// errInPlace means that the input of a call lies in the shared result which it is to fill.
var errInPlace = errors.New("client: a shared result is read-only: give the input in other " +
	"memory, as AllReduceInto takes it")

// sharedResults lists the shared results. Any goroutine may call it; the list must not be changed.
func (m *memory) sharedResults() []*sharing {
	if list := m.shares.Load(); list != nil {
		return *list
	}
	return nil
}

// setSharedResults sets the list of shared results to a copy of list, since sharedResults reads it
// without the lock. m.mu is held.
func (m *memory) setSharedResults(list []*sharing) {
	list = append([]*sharing(nil), list...)
	m.shares.Store(&list)
}

// sharedResultOf returns the shared result that b is a part of; nil if it is none. It takes m.mu.
// The result stays open as long as the group is not freed and the job not closed.
func (m *memory) sharedResultOf(b []byte) *sharing {
	if len(m.sharedResults()) == 0 { // as in most jobs
		return nil
	}
	m.mu.Lock() // none is unmapped meanwhile
	defer m.mu.Unlock()
	for _, s := range m.sharedResults() {
		if p, start := uintptr(unsafe.Pointer(unsafe.SliceData(b))),
			uintptr(unsafe.Pointer(&s.Mem[0])); len(b) > 0 && p >= start &&
			p+uintptr(len(b)) <= start+uintptr(s.bytes) {
			return s
		}
	}
	return nil
}

// closeShared closes the shared results of a group, which Free calls when no call of the group is
// open: so it takes m.mu, and need not take that of each result.
func (m *memory) closeShared(g topo.GroupID) (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var rest []*sharing
	for _, s := range m.sharedResults() {
		if s.group != g {
			rest = append(rest, s)
			continue
		}
		err = errors.Join(err, s.Close())
	}
	m.setSharedResults(rest)
	return err
}

// AllReduceInto fills out on every rank with the reduction of all ranks' in, which stays as it is.
// All ranks end with the same bytes. With out from Shared, they are written once a host. It blocks
// until all ranks have called it. Any goroutine may call it, as with AllReduce.
func AllReduceInto[T Element](ctx context.Context, r Ranks, out, in []T, op collective.Reduction,
	opts ...Option) error {
	return wait(ctx, startCall(ctx, r, collective.AllReduce, op, 0, in, out, opts))
}

// AllReduceIntoAsync starts an AllReduceInto and does not wait for it. Both slices must be left
// alone until Wait returns.
func AllReduceIntoAsync[T Element](r Ranks, out, in []T, op collective.Reduction,
	opts ...Option) *Handle {
	return startCall(context.Background(), r, collective.AllReduce, op, 0, in, out, opts)
}
