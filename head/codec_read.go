package head

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
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
	leastInt     = 1
)

// Reader decodes messages. It reads a frame in bytes into memory that it uses again: the frame is
// valid until the next Read, but for what a Commit points to. The zero value is ready. One
// goroutine uses it at a time, and its methods do no I/O.
type Reader struct {
	in    input             // what is left of the message
	frame Frame             // the frame that Read returns
	room  pool              // memory for payloads
	names map[string]string // texts that were read before, by themselves
}

// roomBytes is how long a message may be for its memory to be kept, and mostNames how many names
// are.
const (
	roomBytes = 64 << 10
	mostNames = 1 << 10
)

// Read is the inverse of Encode. A message in JSON is in new memory, and b is the caller's again.
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
		r.room.release(w)
	}
	clear(r.frame.Payloads)
	r.in = input{b: b[1:]}
	r.readFrame()
	if r.in.bad || len(r.in.b) > 0 {
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
	f.Up = in.byte(1) != 0
	f.Term, f.First, f.Ack = topo.Generation(in.uint(math.MaxUint64)), in.uint(math.MaxUint64),
		in.uint(math.MaxUint64)
	n, some := in.count(leastPayload)
	if f.Payloads = resized(f.Payloads, 0); !some {
		f.Payloads = nil
	}
	for range n {
		switch in.byte(kindCommit) {
		case kindPosted:
			w := popOrNew(&r.room.posted)
			r.readCall(&w.Call)
			f.Payloads = append(f.Payloads, w)
		case kindExecuted:
			w := popOrNew(&r.room.executed)
			*w = Executed{Batch: BatchID(in.uint(math.MaxUint64))}
			f.Payloads = append(f.Payloads, w)
		case kindExec:
			w := popOrNew(&r.room.execs)
			r.readExec(w)
			f.Payloads = append(f.Payloads, w)
		case kindCommit:
			w := popOrNew(&r.room.commits)
			r.readCommit(w)
			f.Payloads = append(f.Payloads, w)
		default:
			in.fail()
		}
		if in.bad {
			return
		}
	}
}

// readCall reads a call into c, whose lists are used again.
func (r *Reader) readCall(c *Call) {
	in, splits, shape, far := &r.in, c.Splits, c.Shape, c.Far
	*c = Call{Worker: topo.WorkerID(in.uint(math.MaxUint64)), Ticket: in.uint(math.MaxUint64)}
	c.Kind, c.DType, c.Reduction = collective.Kind(in.byte(math.MaxUint8)),
		tensor.DType(in.byte(math.MaxUint8)), collective.Reduction(in.byte(math.MaxUint8))
	bits := in.uint(callBits - 1)
	c.Flags = collective.Flags{More: bits&callMore != 0, Step: bits&callStep != 0,
		Aside: bits&callAside != 0, Narrow: bits&callNarrow != 0, Sparing: bits&callSparing != 0}
	c.Promoted = bits&callPromoted != 0
	c.Group, c.Peer, c.Tag = topo.GroupID(in.uint(math.MaxUint32)), in.int(),
		uint32(in.uint(math.MaxUint32))
	c.Splits, c.Shape = in.ints(splits), in.ints(shape)
	if bits&callFar != 0 {
		c.Far = storeIn(far, collective.Far{In: in.int(), Out: in.int()})
	}
	if bits&callShared != 0 {
		c.Shared = collective.Shared{Group: topo.GroupID(in.uint(math.MaxUint32)),
			Name: r.readName(),
			Off:  in.int()}
	}
	if bits&callWeight != 0 {
		if c.Weight = in.float64(); math.IsNaN(c.Weight) || math.IsInf(c.Weight, 0) {
			in.fail()
		}
	}
}

// readExec reads an Exec into e, whose lists are used again.
func (r *Reader) readExec(e *Exec) {
	in, hosts, without := &r.in, e.Hosts, e.Without
	e.Batch, e.Replaces, e.More = BatchID(in.uint(math.MaxUint64)),
		BatchID(in.uint(math.MaxUint64)),
		in.byte(1) != 0
	e.Hosts, e.Without = r.readNames(hosts), r.readNames(without)
	n, some := in.count(leastSet)
	if e.Sets = resized(e.Sets, n); !some {
		e.Sets = nil
	}
	for i := range e.Sets {
		r.readSet(&e.Sets[i])
	}
}

// readSet reads a set of an Exec into s, whose lists are used again.
func (r *Reader) readSet(s *Set) {
	in := &r.in
	bits := in.byte(3)
	s.Lost, s.Route, s.Err = bits&1 != 0, collective.Route{}, string(in.text())
	if bits&2 != 0 && s.Route.UnmarshalText(in.text()) != nil {
		in.fail()
	}
	s.Of = in.ints(s.Of)
	n, some := in.count(leastCall)
	if s.Calls = resized(s.Calls, n); !some {
		s.Calls = nil
	}
	for i := range s.Calls {
		r.readCall(&s.Calls[i])
	}
}

// readCommit reads a Commit into c. What it points to is new.
func (r *Reader) readCommit(c *Commit) {
	in := &r.in
	bits := in.byte(3)
	*c = Commit{Elastic: bits&1 != 0, Index: in.uint(math.MaxUint64),
		Batch: BatchID(in.uint(math.MaxUint64)), Steps: in.uint(math.MaxUint64),
		Stable: in.uint(math.MaxUint64)}
	if bits&2 == 0 {
		return
	}
	data, err := cursor.Parse(in.next(int(in.uint16())))
	if err != nil {
		in.fail()
	}
	c.Data = &data
}

// readNames reads a list of texts that repeat from message to message, into room if that is large
// enough.
func (r *Reader) readNames(room []string) []string {
	n, some := r.in.count(leastText)
	if !some {
		return nil
	}
	room = resized(room, n)
	for i := range room {
		room[i] = r.readName()
	}
	return room
}

// readName reads a text that repeats from message to message: it takes memory once, in r.names.
func (r *Reader) readName() string {
	b := r.in.text()
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

// input is the unread part of a message. Once it is bad, everything read from it is zero. One
// goroutine uses it at a time; reading moves it on, and does no I/O.
type input struct {
	b   []byte // what is not read yet
	bad bool   // whether the message is none that an agent sends
}

// fail makes the message bad: nothing more is read, and Read returns errBinary.
func (in *input) fail() { in.b, in.bad = nil, true }

// uint reads a number of variable length. One that is larger than most makes the message bad.
func (in *input) uint(most uint64) uint64 {
	n, size := binary.Uvarint(in.b)
	if size <= 0 || n > most {
		in.fail()
		return 0
	}
	in.b = in.b[size:]
	return n
}

// int reads a signed number of variable length. One that is cut short makes the message bad.
func (in *input) int() int {
	n, size := binary.Varint(in.b)
	if size <= 0 {
		in.fail()
		return 0
	}
	in.b = in.b[size:]
	return int(n)
}

// next reads n bytes; fewer make the message bad. The slice is a part of the message.
func (in *input) next(n int) []byte {
	if n > len(in.b) {
		in.fail()
		return nil
	}
	b := in.b[:n]
	in.b = in.b[n:]
	return b
}

// byte reads a byte. One that is larger than most makes the message bad.
func (in *input) byte(most byte) byte {
	b := in.next(1)
	if in.bad || b[0] > most {
		in.fail()
		return 0
	}
	return b[0]
}

// uint16 reads a number of two bytes.
func (in *input) uint16() uint16 {
	if b := in.next(2); !in.bad {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

// float64 reads a number of eight bytes.
func (in *input) float64() float64 {
	if b := in.next(8); !in.bad {
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	}
	return 0
}

// text reads a text after its length. The slice is a part of the message.
func (in *input) text() []byte { return in.next(int(in.uint(uint64(len(in.b))))) }

// count reads the length of a list whose entries have least bytes or more each; some is false where
// there is no list.
func (in *input) count(least int) (n int, some bool) {
	c := in.uint(uint64(len(in.b)/least) + 1)
	return max(0, int(c)-1), c > 0
}

// ints reads a list of numbers into room if that is large enough; nil where there is no list.
func (in *input) ints(room []int) []int {
	n, some := in.count(leastInt)
	if !some {
		return nil
	}
	room = resized(room, n)
	for i := range room {
		room[i] = in.int()
	}
	return room
}
