package wire

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head/form"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// The fewest bytes that an entry of a list takes, so that the length of a list cannot ask for more
// memory than its message justifies.
const (
	leastPayload = 2
	leastSet     = 5
	leastCall    = 10
	leastText    = 1
)

// Reader decodes messages. It reads a frame in bytes into memory that it uses again: the frame is
// valid until the next Read, but for what a Commit points to. The zero value is ready. One
// goroutine uses it at a time, and its methods do no I/O.
type Reader struct {
	in    form.Input        // what is left of the message
	frame Frame             // the frame that Read returns
	room  Memory            // memory for payloads
	names map[string]string // texts that were read before, by themselves
}

// roomBytes is how long a message may be for its memory to be kept, and mostNames how many names
// are.
const (
	roomBytes = 64 << 10
	mostNames = 1 << 10
)

// Read is the inverse of Append. A message in JSON is in new memory, and b is the caller's again.
// It fails for what no agent of this version sends, so that nothing from a link can make an agent
// index out of range or allocate beyond reason.
func (r *Reader) Read(b []byte) (Message, error) {
	if !IsBinary(b) {
		return decodeJSON(b)
	}
	if len(b) > roomBytes {
		r = &Reader{}
	}
	for _, w := range slices.Backward(r.frame.Payloads) { // each place gets its own again
		r.room.Release(w)
	}
	clear(r.frame.Payloads)
	r.in = form.NewInput(b[1:])
	r.readFrame()
	if !r.in.IsRead() {
		return nil, errBinary
	}
	if err := r.frame.validate(); err != nil {
		return nil, fmt.Errorf("a message between agents that cannot be: %w", err)
	}
	for _, w := range r.frame.Payloads {
		if err := validatePayload(w); err != nil {
			return nil, fmt.Errorf("a message between agents that cannot be: %w", err)
		}
	}
	return &r.frame, nil
}

var errBinary = errors.New("a message between agents that cannot be read: it ends too early or " +
	"too late, or has a number that is too large")

// readFrame reads a frame, without its first byte, from r.in into r.frame.
func (r *Reader) readFrame() {
	in, f := &r.in, &r.frame
	f.Up = in.Byte(1) != 0
	f.Term, f.First, f.Ack = topo.Generation(in.Uint(math.MaxUint64)), in.Uint(math.MaxUint64),
		in.Uint(math.MaxUint64)
	n, some := in.Count(leastPayload)
	if f.Payloads = WithLength(f.Payloads, 0); !some {
		f.Payloads = nil
	}
	for range n {
		switch in.Byte(kindCommit) {
		case kindPosted:
			w := PopOrNew(&r.room.posted)
			r.readCall(&w.Call)
			f.Payloads = append(f.Payloads, w)
		case kindExecuted:
			w := PopOrNew(&r.room.executed)
			*w = Executed{Batch: BatchID(in.Uint(math.MaxUint64))}
			f.Payloads = append(f.Payloads, w)
		case kindExec:
			w := PopOrNew(&r.room.execs)
			r.readExec(w)
			f.Payloads = append(f.Payloads, w)
		case kindCommit:
			w := PopOrNew(&r.room.commits)
			r.readCommit(w)
			f.Payloads = append(f.Payloads, w)
		default:
			in.MarkBad()
		}
		if in.IsBad() {
			return
		}
	}
}

// readCall reads a call into c, whose lists are used again.
func (r *Reader) readCall(c *Call) {
	in, splits, shape, far := &r.in, c.Splits, c.Shape, c.Far
	*c = Call{Worker: topo.WorkerID(in.Uint(math.MaxUint64)), Ticket: in.Uint(math.MaxUint64)}
	c.Kind, c.DType, c.Reduction = collective.Kind(in.Byte(math.MaxUint8)),
		tensor.DType(in.Byte(math.MaxUint8)), collective.Reduction(in.Byte(math.MaxUint8))
	bits := in.Uint(callBits - 1)
	c.Flags = collective.Flags{More: bits&callMore != 0, Step: bits&callStep != 0,
		Aside: bits&callAside != 0, Narrow: bits&callNarrow != 0, Sparing: bits&callSparing != 0}
	c.Promoted = bits&callPromoted != 0
	c.Group, c.Peer, c.Tag = topo.GroupID(in.Uint(math.MaxUint32)), in.Int(),
		uint32(in.Uint(math.MaxUint32))
	c.Splits, c.Shape = in.Ints(splits), in.Ints(shape)
	if bits&callFar != 0 {
		c.Far = storeIn(far, collective.Far{In: in.Int(), Out: in.Int(),
			Shares: bits&callShares != 0})
		if bits&callAt != 0 {
			c.Far.At = in.Int()
		}
	} else if bits&(callShares|callAt) != 0 {
		in.MarkBad()
	}
	if bits&callShared != 0 {
		c.Shared = collective.Shared{Group: topo.GroupID(in.Uint(math.MaxUint32)),
			Name: r.readName(),
			Off:  in.Int()}
	}
	if bits&callWeight != 0 {
		if c.Weight = in.Float64(); math.IsNaN(c.Weight) || math.IsInf(c.Weight, 0) {
			in.MarkBad()
		}
	}
}

// readExec reads an Exec into e, whose lists are used again.
func (r *Reader) readExec(e *Exec) {
	in, hosts, without := &r.in, e.Hosts, e.Without
	e.Batch, e.Replaces, e.More = BatchID(in.Uint(math.MaxUint64)),
		BatchID(in.Uint(math.MaxUint64)),
		in.Byte(1) != 0
	e.Hosts, e.Without = r.readNames(hosts), r.readNames(without)
	n, some := in.Count(leastSet)
	if e.Sets = WithLength(e.Sets, n); !some {
		e.Sets = nil
	}
	for i := range e.Sets {
		r.readSet(&e.Sets[i])
	}
}

// readSet reads a set of an Exec into s, whose lists are used again.
func (r *Reader) readSet(s *Set) {
	in := &r.in
	bits := in.Byte(3)
	s.Lost, s.Route, s.Err = bits&1 != 0, collective.Route{}, string(in.Text())
	if bits&2 != 0 && s.Route.UnmarshalText(in.Text()) != nil {
		in.MarkBad()
	}
	s.Of = in.Ints(s.Of)
	n, some := in.Count(leastCall)
	if s.Calls = WithLength(s.Calls, n); !some {
		s.Calls = nil
	}
	for i := range s.Calls {
		r.readCall(&s.Calls[i])
	}
}

// readCommit reads an entry of the log into c, as appendCommit writes one that has no rare fields:
// bit 1 is Elastic, and bit 2 says that a place in the data follows. What c points to is new.
func (r *Reader) readCommit(c *Commit) {
	in := &r.in
	bits := in.Byte(3)
	*c = Commit{Elastic: bits&1 != 0, Index: in.Uint(math.MaxUint64),
		Batch: BatchID(in.Uint(math.MaxUint64)), Steps: in.Uint(math.MaxUint64),
		Stable: in.Uint(math.MaxUint64)}
	if bits&2 == 0 {
		return
	}
	data, err := cursor.Parse(in.Next(int(in.Uint16())))
	if err != nil {
		in.MarkBad()
	}
	c.Data = &data
}

// readNames reads a list of texts that repeat from message to message, into room if that is large
// enough.
func (r *Reader) readNames(room []string) []string {
	n, some := r.in.Count(leastText)
	if !some {
		return nil
	}
	room = WithLength(room, n)
	for i := range room {
		room[i] = r.readName()
	}
	return room
}

// readName reads a text that repeats from message to message: it takes memory once, in r.names.
func (r *Reader) readName() string {
	b := r.in.Text()
	if len(b) > collective.MaxName {
		return string(b)
	}
	if name, known := r.names[string(b)]; known {
		return name
	}
	if r.names == nil || len(r.names) >= mostNames {
		r.names = map[string]string{}
	}
	name := string(b)
	r.names[name] = name
	return name
}
